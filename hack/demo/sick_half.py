"""A GPU that becomes sick under a demo's pods: reports, new pods, recovery."""

import time
from collections.abc import Mapping

from testbed.api import Object
from testbed.commands import wait_until
from testbed.node import GpuNode
from testbed.pods import gpus_seen, wait_running

from demo.demos import Demo, Found
from demo.screen import Screen


def play(
    screen: Screen, node: GpuNode, demo: Demo, names: Mapping[str, str], before: Found
) -> list[str]:
    """Make a container's GPU sick and well again; return what went wrong.

    `names` are the pods' real names, by those in the demo.
    """
    sick = demo.sick
    if sick is None:
        return []
    (uuid,) = before.gpus[sick.container]
    mine, others = names[sick.container.split("/")[0]], set(names.values())
    ids = _container_ids(node, demo, others)
    began = time.monotonic()
    node.machine.xid(uuid, sick.xid)
    screen.step(f"the GPU of {sick.container}, {uuid}, reports XID {sick.xid}")
    wait_until(lambda: _taints(node, uuid), "its taint", timeout=10, interval=0.05)
    screen.step(f"tainted after {time.monotonic() - began:.1f} s: {', '.join(_taints(node, uuid))}")
    said = wait_until(lambda: _told(node, demo, mine, "Unhealthy"), "its pod's status", timeout=30)
    screen.step("the status of its pod says:")
    screen.text(f"Unhealthy: {said}")

    count = len(names) + 1
    scale = ("scale", "deployment", sick.grows, f"--replicas={count}")
    node.cluster.kubectl("--namespace", demo.namespace, *scale)
    new = wait_until(lambda: _new(node, demo, others, count), "one pod more", timeout=30)
    wait_running(node.cluster.api, demo.namespace, [new], timeout=90)
    seen = gpus_seen(node.cluster, new, sick.container.split("/")[1], demo.namespace)
    screen.step(f"one pod more in {sick.grows} runs, on {', '.join(seen)}")
    problems = [f"the new pod {new} has the sick GPU {uuid}"] if uuid in seen else []

    node.machine.fault("lose", uuid)
    # A GPU that recovers before anybody looked was never noticed.
    wait_until(
        lambda: any("gpu-lost" in taint for taint in _taints(node, uuid)), "the loss", timeout=30
    )
    node.machine.fault("restore", uuid)
    screen.step("the GPU was out of reach for a moment, and is back")
    wait_until(lambda: not _taints(node, uuid), "its taint to be lifted", timeout=60)
    wait_until(lambda: _told(node, demo, mine, "Healthy"), "its pod to be well", timeout=30)
    screen.step("the taint is lifted, and the status of its pod says: Healthy")
    if _container_ids(node, demo, others) != ids:
        problems.append("containers were restarted or replaced")
    return problems


def _taints(node: GpuNode, uuid: str) -> list[str]:
    return [
        f"{taint['key']}={taint.get('value', '')}:{taint['effect']}"
        for spec in node.slices()
        for device in spec.get("devices", [])
        if device["attributes"].get("uuid", {}).get("string") == uuid
        for taint in device.get("taints", [])
    ]


def _told(node: GpuNode, demo: Demo, pod: str, health: str) -> str:
    """Return what the status of a pod says about a device's health; a blank for nothing."""
    for status in _statuses(node, demo, pod):
        for each in status.get("allocatedResourcesStatus", []):
            for resource in each["resources"]:
                if resource.get("health") == health:
                    return str(resource.get("message", " "))
    return ""


def _container_ids(node: GpuNode, demo: Demo, pods: set[str]) -> set[str]:
    return {status["containerID"] for pod in pods for status in _statuses(node, demo, pod)}


def _statuses(node: GpuNode, demo: Demo, pod: str) -> list[Object]:
    stored: Object = node.cluster.api.get("Pod", pod, demo.namespace)
    return list(stored["status"].get("containerStatuses", []))


def _new(node: GpuNode, demo: Demo, others: set[str], count: int) -> str | None:
    pods = {each["metadata"]["name"] for each in node.cluster.api.all("Pod", demo.namespace)}
    return (pods - others).pop() if len(pods) == count else None
