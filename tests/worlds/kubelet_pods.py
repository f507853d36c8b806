"""A kubelet's PodResources, served on its socket for as long as a test needs it."""

from collections.abc import Iterator, Mapping, Sequence
from concurrent import futures
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc

from dra_driver.kubelet.protos import pod_resources_v1_pb2 as messages
from dra_driver.kubelet.protos import pod_resources_v1_pb2_grpc as rpc

Told = Mapping[tuple[str, str], Sequence[str]]
"""The CDI names of the devices of each pod, by namespace and name; its claim has that name, too."""


class KubeletPods(rpc.PodResourcesListerServicer):
    """What a kubelet tells of its pods; `told` may be changed while it serves."""

    def __init__(self, told: Told) -> None:
        self.told = told
        self.asked = 0

    def List(self, request: Any, context: Any) -> Any:  # noqa: N802 (the name on the wire)
        self.asked += 1
        return messages.ListPodResourcesResponse(
            pod_resources=[_pod(*name, devices) for name, devices in self.told.items()]
        )


def _pod(namespace: str, name: str, devices: Sequence[str]) -> Any:
    resources = [
        messages.ClaimResource(cdi_devices=[messages.CDIDevice(name=device)]) for device in devices
    ]
    claim = messages.DynamicResource(
        claim_name=name, claim_namespace=namespace, claim_resources=resources
    )
    # A container whose claim the kubelet does not know is listed without any.
    claims = [claim] if devices else []
    containers = [
        messages.ContainerResources(name="sidecar"),
        messages.ContainerResources(name="ctr", dynamic_resources=claims),
    ]
    return messages.PodResources(name=name, namespace=namespace, containers=containers)


@contextmanager
def serving_pods(plugins: Path, told: Told) -> Iterator[KubeletPods]:
    """Serve beside the kubelet's plugins directory."""
    folder = plugins.parent / "pod-resources"
    folder.mkdir(exist_ok=True)
    kubelet = KubeletPods(told)
    server = grpc.server(futures.ThreadPoolExecutor(2))
    rpc.add_PodResourcesListerServicer_to_server(kubelet, server)
    server.add_insecure_port(f"unix:{folder / 'kubelet.sock'}")
    server.start()
    try:
        yield kubelet
    finally:
        server.stop(None).wait()
        (folder / "kubelet.sock").unlink(missing_ok=True)


def note_pod(host: Path, namespace: str, name: str, uid: str) -> None:
    """Make the folder of a pod's logs, as the kubelet does."""
    (host / "var/log/pods" / f"{namespace}_{name}_{uid}").mkdir(parents=True, exist_ok=True)
