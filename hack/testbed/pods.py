"""Long-running containers: the GPUs, variables and mounts that they see, and their pods' state."""

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from dra_driver.kube.resource import Resource
from testbed.api import Api, Object, thing
from testbed.cluster import Cluster
from testbed.commands import TestbedError, wait_until

PODS = Resource(group="", version="v1", plural="pods", namespaced=True)

IMAGE = "registry.local/gpu-test:1"
"""The image that a local cluster has."""

STAY = "trap 'exit 0' TERM; sleep 99999 & wait"
"""A script for bash that does nothing until a signal ends it."""

GPU_LINE = re.compile(r"^GPU (?P<index>\d+): (?P<name>.+) \(UUID: (?P<uuid>GPU-[0-9a-f-]+)\)$")

MIG_LINE = re.compile(
    r"^  MIG (?P<profile>\S+) +Device +(?P<index>\d+): \(UUID: (?P<uuid>MIG-[0-9a-f-]+)\)$"
)


def container(name: str, resources: Object, script: str = STAY) -> Object:
    """Return a pod's container that runs a script in bash, with these resources."""
    return {
        "name": name,
        "image": IMAGE,
        "imagePullPolicy": "IfNotPresent",
        "command": ["bash", "-c", script],
        "resources": resources,
    }


def exec_in(
    cluster: Cluster, pod: str, container: str, namespace: str, *words: str, timeout: float = 60
) -> str:
    """Run a command in a running container; return what it printed. Raises TestbedError."""
    where = ("exec", "--namespace", namespace, pod, "--container", container, "--")
    return cluster.kubectl(*where, *words, timeout=timeout)


def migs_seen(cluster: Cluster, pod: str, container: str, namespace: str) -> dict[str, str]:
    """Return the profiles of the MIG devices that `nvidia-smi -L` lists in a container, by UUID.

    Raises TestbedError if it failed there, or printed anything but GPUs and MIG devices.
    """
    return parse_mig_list(exec_in(cluster, pod, container, namespace, "nvidia-smi", "-L"))


def parse_mig_list(text: str) -> dict[str, str]:
    """Return profiles by UUID of the MIG devices in the output of `nvidia-smi -L`."""
    parse_gpu_list(text)
    lines = (MIG_LINE.match(line) for line in text.splitlines())
    return {line["uuid"]: line["profile"] for line in lines if line}


def gpus_seen(cluster: Cluster, pod: str, container: str, namespace: str) -> tuple[str, ...]:
    """Return the UUIDs that `nvidia-smi -L` lists in a running container, in its order.

    Raises TestbedError if it failed there, or printed anything but GPUs.
    """
    return parse_gpu_list(exec_in(cluster, pod, container, namespace, "nvidia-smi", "-L"))


def parse_gpu_list(text: str) -> tuple[str, ...]:
    """Return the UUIDs in the output of `nvidia-smi -L`."""
    if text.strip() == "No devices found.":
        return ()
    gpu_lines = [line for line in text.strip().splitlines() if not MIG_LINE.match(line)]
    lines = [GPU_LINE.match(line) for line in gpu_lines]
    if not all(lines):
        raise TestbedError(f"nvidia-smi -L printed:\n{text}")
    return tuple(line["uuid"] for line in lines if line)


def environment(cluster: Cluster, pod: str, container: str, namespace: str) -> dict[str, str]:
    """Return the variables with which a running container's first process was started."""
    words = exec_in(cluster, pod, container, namespace, "cat", "/proc/1/environ").split("\0")
    return {name: value for name, _, value in (word.partition("=") for word in words) if name}


def mount_points(cluster: Cluster, pod: str, container: str, namespace: str) -> dict[str, str]:
    """Return the mount points in a running container, each with its type."""
    lines = exec_in(cluster, pod, container, namespace, "cat", "/proc/1/mountinfo").splitlines()
    return {line.split(" ")[4]: line.partition(" - ")[2].split(" ")[0] for line in lines}


def iommu_groups(cluster: Cluster, pod: str, container: str, namespace: str) -> tuple[str, ...]:
    """Return the IOMMU groups that a running container can open, by their numbers."""
    names = exec_in(cluster, pod, container, namespace, "ls", "/dev/vfio").split()
    return tuple(filter(str.isdecimal, names))


def claim_uids(api: Api, pod: Object) -> list[str]:
    """Return the UIDs of a pod's claims, with the one that the scheduler made for its limits."""
    asked = pod["spec"].get("resourceClaims", [])
    names = {entry["name"]: entry.get("resourceClaimName") for entry in asked}
    for status in pod.get("status", {}).get("resourceClaimStatuses", []):
        names[status["name"]] = status.get("resourceClaimName")
    of_limits = pod.get("status", {}).get("extendedResourceClaimStatus", {})
    names[""] = of_limits.get("resourceClaimName")
    namespace = pod["metadata"]["namespace"]
    claims = (api.get("ResourceClaim", name, namespace) for name in names.values() if name)
    return [claim["metadata"]["uid"] for claim in claims]


def make_namespace(api: Api, name: str, *, timeout: float = 120) -> None:
    """Make a namespace, and wait until pods can be made in it."""
    api.create(thing("Namespace", name))
    wait_until(
        lambda: api.find("ServiceAccount", "default", name),
        "the namespace's ServiceAccount",
        timeout=timeout,
    )


def wait_running(
    api: Api, namespace: str, names: Sequence[str] = (), *, timeout: float = 120
) -> list[Object]:
    """Wait until all containers of the named pods (or of all pods) are ready; return the pods.

    Raises TestbedError if they were not in time, with the reasons from the pods' events.
    """

    def ready() -> list[Object] | None:
        pods = _named(api, namespace, names)
        are_there = len(pods) == len(names) if names else pods
        return pods if are_there and all(is_ready(pod) for pod in pods) else None

    with explaining(api, namespace, names):
        return wait_until(ready, f"pods in {namespace} to run", timeout=timeout)


def wait_gone(api: Api, namespace: str, names: Sequence[str] = (), *, timeout: float = 120) -> None:
    """Wait until the named pods (or all pods) of a namespace are gone.

    Raises TestbedError if they were not in time. The text says what is left, and the pods' events.
    """
    with explaining(api, namespace, names):
        wait_until(
            lambda: not _named(api, namespace, names),
            f"pods in {namespace} to go",
            timeout=timeout,
        )


@contextmanager
def explaining(api: Api, namespace: str, names: Sequence[str] = ()) -> Iterator[None]:
    """Add the state of the named pods (or all pods) of a namespace to a TestbedError."""
    try:
        yield
    except TestbedError as error:
        reasons = "\n".join(explain(api, pod) for pod in _named(api, namespace, names))
        raise TestbedError(f"{error}\n{reasons}") from error


def is_ready(pod: Object) -> bool:
    """Whether the pod runs and all its containers are ready."""
    conditions = pod.get("status", {}).get("conditions", [])
    return any(
        condition["type"] == "Ready" and condition["status"] == "True" for condition in conditions
    )


def explain(api: Api, pod: Object) -> str:
    """Return the pod's phase, its containers' states and its warnings, for a person to read."""
    name, namespace = pod["metadata"]["name"], pod["metadata"]["namespace"]
    lines = [f"pod {name}: {pod.get('status', {}).get('phase', 'unknown')}"]
    for status in pod.get("status", {}).get("containerStatuses", []):
        for state, facts in status.get("state", {}).items():
            lines.append(f"  container {status['name']}: {state} {_reason(facts)}".rstrip())
    events = api.all("Event", namespace, fieldSelector=f"involvedObject.name={name}")
    lines += [
        f"  {event.get('reason')}: {event.get('message', '').strip()}"
        for event in events
        if event.get("type") == "Warning"
    ]
    return "\n".join(lines)


def _reason(facts: Object) -> str:
    return " ".join(str(facts[field]) for field in ("reason", "message") if facts.get(field))


def _named(api: Api, namespace: str, names: Sequence[str]) -> list[Object]:
    """The pods of a namespace: those with the names, or all."""
    pods = api.all("Pod", namespace)
    return [pod for pod in pods if not names or pod["metadata"]["name"] in names]
