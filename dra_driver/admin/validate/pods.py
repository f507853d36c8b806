"""What a pod asks for and does not get, although a cluster accepts it: warnings. Pure.

Resource names that nothing serves, annotations that nothing reads; claims that no container names;
a node named in the spec, so that the scheduler does not allocate devices (KEP-4381).
"""

from collections.abc import Iterator

from dra_driver.admin.of_others import NAMES, NOT_SERVED, unread
from dra_driver.admin.validate.claim_fields import CONVERTS
from dra_driver.admin.wrong_names import meant
from dra_driver.kube.fields import at, entries, mapping
from resource_nvidia_com.printable import plain, shown
from resource_nvidia_com.problems import Path, Problem, dotted
from resource_nvidia_com.quantity import Quantity

_NVIDIA = "nvidia.com/"
_CONTAINERS = ("initContainers", "containers")
_SOURCE = (
    "write resourceClaimName or resourceClaimTemplateName beside `name`, which have been there "
    "since Kubernetes 1.31"
)


def refused(value: object, path: Path) -> Iterator[Problem]:
    """Yield what the API server refuses without advice on what to write instead."""
    for index, claim in enumerate(entries(value, "spec", "resourceClaims")):
        if at(claim, "source") is not None:
            where: Path = (*path, "spec", "resourceClaims", index)
            text = f'{dotted(where)}: unknown field "source": {_SOURCE}; {CONVERTS}'
            yield Problem(path=(*where, "source"), text=text)
    for where, name, amount in _amounts(value, path):
        if name.startswith(_NVIDIA) and not _is_whole(amount):
            text = (
                f"{dotted(where)}: {plain(name)} must be a whole number, not {shown(amount)}: for "
                "a part of a GPU, use a claim with a capacity (docs/shares.md)"
            )
            yield Problem(path=(*where, name), text=text)


def warnings(value: object, path: Path) -> Iterator[Problem]:
    """Yield what a cluster accepts, but what leaves the pod without devices."""
    for where, name, _ in _amounts(value, path):
        if why := meant(name) or (NOT_SERVED if name in NAMES else ""):
            yield Problem(path=(*where, name), text=f"{dotted(where)}: {plain(name)}: {why}")
    yield from _unused_claims(value, path)
    annotations = (*path, "metadata", "annotations")
    yield from unread(mapping(value, "metadata", "annotations"), annotations)
    if _names_node(value) and (asked := _devices(value)):
        where = (*path, "spec", "nodeName")
        text = (
            f"{dotted(where)}: the pod bypasses the scheduler, so nothing allocates {asked}: "
            "choose the node by a nodeSelector or affinity on kubernetes.io/hostname"
        )
        yield Problem(path=where, text=text)


def _amounts(value: object, path: Path) -> Iterator[tuple[Path, str, object]]:
    """Yield (path of the limits or requests, name, amount) of what containers ask for."""
    for part in _CONTAINERS:
        for index, container in enumerate(entries(value, "spec", part)):
            for kind in ("limits", "requests"):
                for name, amount in mapping(container, "resources", kind).items():
                    yield (*path, "spec", part, index, "resources", kind), name, amount


def _is_whole(amount: object) -> bool:
    try:
        return Quantity.parse(str(amount)).nanos % 10**9 == 0
    except ValueError:
        return False


def _unused_claims(value: object, path: Path) -> Iterator[Problem]:
    """Yield claims of a pod that none of its containers names, so that none sees their devices."""
    named = {
        at(claim, "name")
        for part in _CONTAINERS
        for container in entries(value, "spec", part)
        for claim in entries(container, "resources", "claims")
    }
    for index, claim in enumerate(entries(value, "spec", "resourceClaims")):
        name, where = at(claim, "name"), (*path, "spec", "resourceClaims", index)
        if isinstance(name, str) and name not in named:
            text = (
                f"{dotted(where)}: no container has {shown(name)} in its resources.claims: its "
                "devices are allocated, and no container sees them"
            )
            yield Problem(path=where, text=text)


def _names_node(value: object) -> bool:
    """Return whether the author named the node: in a cluster, the scheduler may have done it."""
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
