"""What a pod asks for and does not get, although a cluster accepts it: warnings. Pure.

Names of resources that nothing serves; a node named without the scheduler, so that nobody allocates
devices (KEP-4381); and resources of the whole pod, which are not devices.
"""

from collections.abc import Iterator

from dra_driver.admin.wrong_names import meant
from dra_driver.fields import at, entries, mapping
from resource_nvidia_com.printable import plain
from resource_nvidia_com.problems import Path, Problem, dotted

_OF_PODS = ("cpu", "memory")
_HUGE = "hugepages-"
_NVIDIA = "nvidia.com/"
_CONTAINERS = ("initContainers", "containers")


def refused(value: object, path: Path) -> Iterator[Problem]:
    """Yield what the API server refuses in the resources of a pod as a whole (KEP-2837)."""
    for part in ("requests", "limits"):
        where = (*path, "spec", "resources", part)
        for name in mapping(value, "spec", "resources", part):
            if name not in _OF_PODS and not name.startswith(_HUGE):
                text = (
                    f"{dotted(where)}: {plain(name)}: a pod as a whole has only cpu, memory and "
                    "hugepages: write it under the limits of a container"
                )
                yield Problem(path=(*where, name), text=text)


def warnings(value: object, path: Path) -> Iterator[Problem]:
    """Yield what a cluster accepts and does not give."""
    for part in _CONTAINERS:
        for index, container in enumerate(entries(value, "spec", part)):
            for kind in ("limits", "requests"):
                where = (*path, "spec", part, index, "resources", kind)
                for name in mapping(container, "resources", kind):
                    if why := meant(name):
                        text = f"{dotted(where)}: {plain(name)}: {why}"
                        yield Problem(path=(*where, name), text=text)
    if _names_node(value) and (asked := _devices(value)):
        where = (*path, "spec", "nodeName")
        text = (
            f"{dotted(where)}: the pod goes past the scheduler, so nobody allocates {asked}: "
            "choose the node by a nodeSelector or affinity on kubernetes.io/hostname"
        )
        yield Problem(path=where, text=text)


def _names_node(value: object) -> bool:
    """Tell whether the author named the node: in a cluster, the scheduler may have."""
    return bool(at(value, "spec", "nodeName")) and not mapping(value, "status")


def _devices(value: object) -> str:
    """Return what the scheduler would have to allocate for a pod; empty for nothing."""
    if entries(value, "spec", "resourceClaims"):
        return "its claims"
    names = {
        name
        for part in _CONTAINERS
        for container in entries(value, "spec", part)
        for name in mapping(container, "resources", "limits")
        if name.startswith(_NVIDIA)
    }
    return ", ".join(map(plain, sorted(names)))
