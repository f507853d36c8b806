"""What tests of GPUs that are not well have in common: one GPU of the node, and who tells of it."""

from collections.abc import Mapping
from dataclasses import dataclass

from testbed.api import Object
from testbed.commands import wait_until

from dra_driver.devices.health.record import FILE
from e2e.kubernetes import is_on
from e2e.scene import NAMESPACE, Scene, cel

GPU = "minor:6"
DEVICE = "gpu-6"


@dataclass(frozen=True)
class Told:
    """How a device is, as a pod's status or a claim's has it."""

    health: str
    message: str = ""


def mend(scene: Scene) -> None:
    """Let the GPU be well again, whatever was done to it, and wait until that is seen."""
    scene.node.machine.fault("lose", GPU)
    wait_until(lambda: "gpu.nvidia.com/gpu-lost" in taints(scene), "the loss", timeout=120)
    scene.node.machine.fault("restore", GPU)
    wait_until(lambda: not all_taints(scene), "the taints to be lifted", timeout=60)


def forget(scene: Scene, settings: Mapping[str, str]) -> None:
    """Let the GPU be as if it had never been sick, and give the driver its settings again.

    What comes back within an hour has to look well twice as long each time. So the driver's record
    is deleted, as an admin does who knows better.
    """
    scene.node.machine.fault("restore", GPU)

    def change() -> None:
        (scene.node.place.data / FILE).unlink(missing_ok=True)
        scene.node.driver.env = dict(settings)

    scene.node.without_driver(change, detached=True)
    wait_until(lambda: not all_taints(scene), "no taints", timeout=60)
    scene.rewritten()


def device(scene: Scene) -> Object:
    """The GPU as it is published."""
    (found,) = (
        one
        for spec in scene.node.slices()
        for one in spec.get("devices", [])
        if one["name"] == DEVICE
    )
    return dict(found)


def taints(scene: Scene) -> dict[str, str]:
    """The taints of the GPU: effects by key."""
    return {taint["key"]: taint["effect"] for taint in device(scene).get("taints", [])}


def all_taints(scene: Scene) -> dict[str, list[str]]:
    """The keys of all taints, by device."""
    return {
        one["name"]: [taint["key"] for taint in one["taints"]]
        for spec in scene.node.slices()
        for one in spec.get("devices", [])
        if one.get("taints")
    }


def tainted_soon(scene: Scene) -> None:
    """Wait for the taint of an XID."""
    taint = {"gpu.nvidia.com/xid": "NoSchedule"}
    wait_until(lambda: taints(scene) == taint, "its taint", timeout=60)


def uuid(scene: Scene) -> str:
    """The UUID of the GPU."""
    return str(device(scene)["attributes"]["uuid"]["string"])


def wanting_it(scene: Scene) -> str:
    """A template of claims for that GPU and no other."""
    return scene.template(
        selectors=cel(f'device.attributes["gpu.nvidia.com"].uuid == "{uuid(scene)}"')
    )


def in_pod(scene: Scene, pod: str) -> list[Told]:
    """What the status of a pod's container says of its devices."""
    (status,) = scene.api.get("Pod", pod, NAMESPACE)["status"]["containerStatuses"]
    return [
        Told(resource.get("health", "Unknown"), resource.get("message", ""))
        for each in status.get("allocatedResourcesStatus", [])
        for resource in each["resources"]
    ]


def in_claim(scene: Scene, pod: str) -> list[Told]:
    """What the status of a pod's claims says of their devices."""
    words = {"True": "Healthy", "False": "Unhealthy", "Unknown": "Unknown"}
    return [
        Told(words[condition["status"]], condition["message"])
        for claim in scene.api.all("ResourceClaim", NAMESPACE)
        if any(user["name"] == pod for user in claim.get("status", {}).get("reservedFor", []))
        for entry in claim["status"].get("devices", [])
        for condition in entry["conditions"]
        if condition["type"] == "Healthy"
    ]


def wait_told(scene: Scene, pod: str, health: str, about: str = "") -> None:
    """Wait until pod and claim say that the one device is so, and why."""

    def is_told() -> bool:
        pods, claims = in_pod(scene, pod), in_claim(scene, pod)
        if [one.health for one in (*pods, *claims)] != [health, health]:
            return False
        found = [*claims, *(pods if is_on("ResourceHealthStatusMessage") else ())]
        return all(about in one.message if about else not one.message for one in found)

    wait_until(is_told, f"{pod} to be {health} {about}", timeout=120, interval=0.2)
