"""Names in an object that refer to nothing in it, as the API server refuses them.

A config and a constraint name requests of their claim; a container names claims of its pod; an
extended resource has a limit in whole numbers, and no other request (validation of core/v1 and
resource.k8s.io/v1).
"""

from collections.abc import Iterator, Mapping

from dra_driver.fields import at, entries
from resource_nvidia_com.printable import plain, shown
from resource_nvidia_com.problems import Path, Problem, dotted, hint
from resource_nvidia_com.quantity import Quantity

_CONTAINERS = ("initContainers", "containers")
_NATIVE = ("kubernetes.io/", ".kubernetes.io/")


def in_claim(value: Mapping[str, object]) -> Iterator[Problem]:
    """Yield what refers to no request of a claim or template."""
    spec: Path = ("spec", "spec") if value.get("kind") == "ResourceClaimTemplate" else ("spec",)
    devices = at(value, *spec, "devices")
    requests: list[str] = []
    for index, request in enumerate(entries(devices, "requests")):
        requests += _names(request)
        yield from _class_name(request, (*spec, "devices", "requests", index))
    for part in ("config", "constraints"):
        for index, entry in enumerate(entries(devices, part)):
            for number, name in enumerate(entries(entry, "requests")):
                if isinstance(name, str) and name not in requests:
                    path = (*spec, "devices", part, index, "requests", number)
                    yield _nothing(
                        path, f"no request of this claim is called {shown(name)}", name, requests
                    )


def in_pod(value: object, path: Path) -> Iterator[Problem]:
    """Yield what refers to no claim of a pod, and wrong limits of extended resources."""
    claims = [str(at(entry, "name")) for entry in entries(value, "spec", "resourceClaims")]
    for part in _CONTAINERS:
        for index, container in enumerate(entries(value, "spec", part)):
            where = (*path, "spec", part, index, "resources")
            resources = at(container, "resources")
            for number, claim in enumerate(entries(resources, "claims")):
                name = at(claim, "name")
                if isinstance(name, str) and name not in claims:
                    text = f"spec.resourceClaims of this pod has no {shown(name)}"
                    yield _nothing((*where, "claims", number, "name"), text, name, claims)
            yield from _extended(resources, where)


def unused_claims(value: object, path: Path) -> Iterator[Problem]:
    """Yield claims of a pod that none of its containers names: nobody sees their devices."""
    spec = at(value, "spec")
    named = {
        at(claim, "name")
        for part in _CONTAINERS
        for container in entries(spec, part)
        for claim in entries(container, "resources", "claims")
    }
    for index, claim in enumerate(entries(spec, "resourceClaims")):
        name, where = at(claim, "name"), (*path, "spec", "resourceClaims", index)
        if isinstance(name, str) and name not in named:
            text = (
                f"{dotted(where)}: no container has {shown(name)} in its resources.claims: its "
                "devices are allocated, and no container sees them"
            )
            yield Problem(path=where, text=text)


def _extended(resources: object, path: Path) -> Iterator[Problem]:
    requests, limits = at(resources, "requests"), at(resources, "limits")
    for part, amounts in (("limits", limits), ("requests", requests)):
        for name, amount in amounts.items() if isinstance(amounts, Mapping) else ():
            if not _is_extended(name):
                continue
            where = (*path, part, name)
            below = f"{dotted((*path, part))}: {plain(name)}"
            if not _is_whole(amount):
                yield Problem(
                    path=where, text=f"{below} must be a whole number, not {shown(amount)}"
                )
            if part == "requests" and str(at(limits, name)) != str(amount):
                text = f"{below} must have a limit of the same amount: write it under limits alone"
                yield Problem(path=where, text=text)


def _is_extended(name: str) -> bool:
    domain, slash, _ = name.partition("/")
    return bool(slash) and not f"{domain}/".endswith(_NATIVE)


def _is_whole(amount: object) -> bool:
    try:
        return Quantity.parse(str(amount)).nanos % 10**9 == 0
    except ValueError:
        return True  # its schema says what it is


def _class_name(request: object, path: Path) -> Iterator[Problem]:
    for where in (("deviceClassName",), ("exactly", "deviceClassName")):
        name = at(request, *where)
        if isinstance(name, str) and "/" in name:
            text = (
                f"{dotted((*path, *where))}: {shown(name)} is the name of a resource, for limits "
                "of containers; a class has a name such as gpu.nvidia.com"
            )
            yield Problem(path=(*path, *where), text=text)


def _names(request: object) -> Iterator[str]:
    """Yield the names by which a request can be referred to: its own, and of what it may be."""
    name = at(request, "name")
    if isinstance(name, str):
        yield name
        for entry in entries(request, "firstAvailable"):
            yield f"{name}/{at(entry, 'name')}"


def _nothing(path: Path, text: str, name: str, known: list[str]) -> Problem:
    near = hint(name, known).strip()
    return Problem(path=path, text=f"{dotted(path)}: {text}{f': {near}' if near else ''}")
