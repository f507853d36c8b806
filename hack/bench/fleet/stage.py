"""The cluster that is measured: only its control plane, and simulated Nodes.

The cluster's own node is removed. No kubelet keeps the made-up ones ready, and the controller that
would react to that is left out. Scheduler and controller manager may send any number of requests,
unless they should have the limits of most clusters: by default a scheduler sends 50 a second, and
then mainly this limit is measured.
"""

from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import yaml
from testbed.api import Api, Object, thing
from testbed.cluster import Cluster
from testbed.driver import resident_memory
from testbed.manifests import CLASSES
from testbed.pods import make_namespace

from bench.fleet.loads import NAMESPACE

UNLIMITED = 10000
"""Requests a second that clients may send."""

NO_LIMITS = (
    f"kube-scheduler:--kube-api-qps={UNLIMITED}",
    f"kube-scheduler:--kube-api-burst={UNLIMITED}",
    f"kube-controller-manager:--kube-api-qps={UNLIMITED}",
    f"kube-controller-manager:--kube-api-burst={UNLIMITED}",
)
NO_LIFECYCLE = "kube-controller-manager:--controllers=*,-node-lifecycle-controller"
MEASURED = ("kube-scheduler", "kube-apiserver", "kube-controller-manager", "etcd")
SILENCE_S = 60.0
"""How long the API server may be silent, which is its own limit for a request. To list the slices
of a thousand nodes takes many seconds."""

AT_ONCE = 8
"""How many requests run at the same time when they are not measured."""

_MIB = 1 << 20


@dataclass(slots=True, kw_only=True)
class Stage:
    """A control plane, and the UIDs of the simulated nodes by name."""

    cluster: Cluster
    nodes: Mapping[str, str]

    @property
    def api(self) -> Api:
        return self.cluster.api

    @property
    def kubeconfig(self) -> Path:
        return Path(self.cluster.env["KUBECONFIG"])

    def pids(self) -> dict[str, int]:
        """The process ids of the measured components."""
        return {name: self.cluster.pid(name) for name in MEASURED}

    def memory_mib(self) -> dict[str, float]:
        """The resident memory of the measured components."""
        memory = {name: resident_memory(pid)[0] for name, pid in self.pids().items()}
        return {name: round(size / _MIB, 1) for name, size in memory.items()}

    def restart_api_server(self) -> None:
        """Restart the API server, so that its memory is empty."""
        self.cluster.stop("kube-apiserver", signal="KILL")
        self.cluster.start("kube-apiserver")

    def stop_scheduler(self) -> None:
        self.cluster.stop("kube-scheduler", signal="KILL")

    def delete(self, kind: str, names: Iterable[str]) -> None:
        """Delete objects one by one, because a request for many takes longer than allowed."""
        with ThreadPoolExecutor(AT_ONCE, thread_name_prefix="delete") as pool:
            list(pool.map(lambda name: self.api.delete(kind, name), names))


@contextmanager
def control_plane(name: str, kubernetes: str, *, limited: bool = False) -> Iterator[Cluster]:
    """Bring up a cluster with the project's DeviceClasses and no node; remove it at the end.

    `limited`: leave scheduler and controller manager their default limits on requests.
    """
    cluster = Cluster(name, kubernetes, (NO_LIFECYCLE, *(() if limited else NO_LIMITS)))
    cluster.down()
    try:
        cluster.up(lambda _: None)
        cluster.api.timeout_s = SILENCE_S
        for component in ("kubelet", "containerd"):
            cluster.stop(component)
        cluster.api.delete("Node", cluster.node)
        for manifest in ("gpu.yaml", "mig.yaml", "extended-resources.yaml"):
            text = (CLASSES / manifest).read_text()
            for device_class in yaml.safe_load_all(text):
                cluster.api.create(device_class)
        make_namespace(cluster.api, NAMESPACE, timeout=60)
        yield cluster
    finally:
        cluster.down()


@contextmanager
def made_up_nodes(cluster: Cluster, count: int) -> Iterator[Stage]:
    """Make Nodes that are ready; remove them at the end."""
    names = [f"node-{number:04}" for number in range(count)]
    with ThreadPoolExecutor(AT_ONCE, thread_name_prefix="nodes") as pool:
        uids = dict(
            zip(names, pool.map(lambda name: _make_node(cluster.api, name), names), strict=True)
        )
    stage = Stage(cluster=cluster, nodes=uids)
    yield stage
    stage.delete("Node", names)


def _make_node(api: Api, name: str) -> str:
    uid: str = api.create(node_object(name))["metadata"]["uid"]
    # The API server puts the taint not-ready on each new Node; the controller that removes it is
    # left out.
    api.patch("Node", name, {"spec": {"taints": None}})
    return uid


def node_object(name: str) -> Object:
    """Return a Node that is ready and has room for any number of pods."""
    room = {"cpu": "192", "memory": "2Ti", "pods": "1000", "ephemeral-storage": "2Ti"}
    ready = {
        "type": "Ready",
        "status": "True",
        "reason": "KubeletReady",
        "message": "made up",
        "lastHeartbeatTime": "2026-01-01T00:00:00Z",
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    }
    metadata = {"name": name, "labels": {"kubernetes.io/hostname": name}}
    status = {"capacity": room, "allocatable": room, "conditions": [ready]}
    return thing("Node", name) | {"metadata": metadata, "status": status}
