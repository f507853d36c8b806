"""Which pod is on which device, as monitoring finds it: by the rules of dcgm-exporter.

It asks the kubelet's PodResources for the pools and devices of a container's claims, and looks them
up in the ResourceSlices of driver gpu.nvidia.com: of type `gpu` by `uuid`, of type `mig` by
`parentUUID`, `uuid` and `profile`. A device that lacks one of these is not mapped.
"""

from dataclasses import dataclass

from testbed.driver import DRIVER_NAME
from testbed.pod_resources import ToldDevice, devices_of_pod, listed_devices

from e2e.scene import NAMESPACE, Scene


@dataclass(frozen=True, kw_only=True)
class Mapped:
    """What a metric of a GPU is joined with."""

    device: str
    gpu: str
    mig: str | None = None
    profile: str | None = None


def told(scene: Scene, pod: str, ctr: str = "ctr") -> list[ToldDevice]:
    """What the kubelet tells of a container's claims, the same in its list and of the pod alone."""
    socket = scene.node.cluster.plugins.parent / "pod-resources" / "kubelet.sock"
    found = listed_devices(socket, NAMESPACE, pod, ctr)
    assert devices_of_pod(socket, NAMESPACE, pod, ctr) == found != []
    assert {one.driver for one in found} == {DRIVER_NAME}
    statuses = {
        claim: scene.api.get("ResourceClaim", claim, NAMESPACE)["status"]
        for claim in {one.claim for one in found}
    }
    allocated = [
        (claim, result["driver"], result["pool"], result["device"], result.get("shareID", ""))
        for claim, status in statuses.items()
        for result in status["allocation"]["devices"]["results"]
    ]
    said = [(one.claim, one.driver, one.pool, one.device, one.share_id) for one in found]
    assert sorted(said) == sorted(allocated)
    # With a second device of a claim, kubelets name the CDI ids of the first once more.
    assert all(
        one.cdi_ids[-1].endswith(f"-{one.device}{one.share_id and '-'}{one.share_id}")
        for one in found
    )
    return found


def mapped(scene: Scene, pod: str, ctr: str = "ctr") -> set[Mapped]:
    """What dcgm-exporter makes of a container's claims; devices that it cannot map are left out."""
    published = {
        (one["pool"]["name"], device["name"]): device["attributes"]
        for one in scene.node.slices()
        for device in one.get("devices", [])
    }
    found: set[Mapped] = set()
    for one in told(scene, pod, ctr):
        attributes = published.get((one.pool, one.device), {})
        text = {key: value["string"] for key, value in attributes.items() if "string" in value}
        match text:
            case {"type": "gpu", "uuid": uuid}:
                found.add(Mapped(device=one.device, gpu=uuid))
            case {"type": "mig", "uuid": uuid, "parentUUID": gpu, "profile": profile}:
                found.add(Mapped(device=one.device, gpu=gpu, mig=uuid, profile=profile))
    return found
