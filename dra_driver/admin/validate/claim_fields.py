"""Fields of a claim or template that stand in the wrong place, and where they belong. Pure.

The API server refuses them as unknown, without a word about their place. Fields that no version of
resource.k8s.io has are left to it, as are all values.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from dra_driver.admin.validate.requests import CLAIMS, requests_of
from dra_driver.fields import at, mapping
from resource_nvidia_com.printable import plain, shown
from resource_nvidia_com.problems import Path, Problem, dotted

CONVERTS = "`dra-driver convert FILE` converts it"
"""Added for older APIs, after what to write instead."""

_Tree = Mapping[str, Any]

_ASKED: _Tree = {
    **dict.fromkeys(("deviceClassName", "allocationMode", "count", "adminAccess")),
    **dict.fromkeys(("capacity", "tolerations", "derivedAttributes")),
    "selectors": {"cel": {"expression": None}},
}
_SPEC: _Tree = {
    "devices": {
        "requests": {"name": None, "exactly": _ASKED, "firstAvailable": {"name": None, **_ASKED}},
        "constraints": dict.fromkeys(("requests", "matchAttribute", "distinctAttribute")),
        "config": {"requests": None, "opaque": dict.fromkeys(("driver", "parameters"))},
    }
}
"""The fields of a claim's spec; of a list, those of its entries."""

_OF_DEVICES = (
    "a claim has asked for devices since resource.k8s.io/v1alpha3: write `devices: {requests: "
    "[{name: gpu, exactly: {deviceClassName: gpu.nvidia.com}}]}`"
)
_CLASSIC = ("resourceClassName", "parametersRef", "allocationMode")


def misplaced(value: Mapping[str, object]) -> Iterator[Problem]:
    """Yield the fields of a claim or template that belong elsewhere in it."""
    below = CLAIMS[str(value["kind"])][:-1]
    if len(below) > 1 and "devices" in mapping(value, "spec"):
        yield _problem(("spec",), "devices", f"it belongs in {dotted(below)}")
    yield from _misplaced(at(value, *below), _SPEC, below, _homes(_SPEC, below))


def resource_names(value: Mapping[str, object]) -> Iterator[Problem]:
    """Yield names of resources, such as nvidia.com/gpu, in place of a DeviceClass's."""
    for path, request in requests_of(value):
        name, where = at(request, "deviceClassName"), (*path, "deviceClassName")
        if isinstance(name, str) and "/" in name:
            text = (
                f"{dotted(where)}: {shown(name)} is the name of a resource, for limits "
                "of containers; a class has a name such as gpu.nvidia.com"
            )
            yield Problem(path=where, text=text)


def _misplaced(
    value: object, tree: _Tree | None, path: Path, homes: Mapping[str, str]
) -> Iterator[Problem]:
    if isinstance(value, list):
        for index, entry in enumerate(value):
            yield from _misplaced(entry, tree, (*path, index), homes)
    elif isinstance(value, Mapping) and tree:
        for key, member in value.items():
            if key in tree:
                yield from _misplaced(member, tree[key], (*path, key), homes)
            elif tree is _SPEC and key in _CLASSIC:
                yield _problem(path, key, _OF_DEVICES)
            elif key in _ASKED and "exactly" in tree:
                since = "a request has had its fields under `exactly` since resource.k8s.io/v1beta2"
                yield _problem(path, key, f"{since}: write `exactly: {{{key}: …}}`")
            elif "parameters" in tree:
                yield _problem(path, key, f"it belongs in {dotted((*path, 'parameters'))}")
            elif key in homes:
                yield _problem(path, key, f"it belongs in {homes[key]}")


def _homes(tree: _Tree | None, path: Path) -> dict[str, str]:
    """Return where each field of a tree belongs; the outermost place, if it has several."""
    homes: dict[str, str] = {}
    for key, inner in (tree or {}).items():
        homes = {**_homes(inner, (*path, key)), **homes}
    return {**homes, **{key: dotted(path) for key in tree or () if key != "name"}}


def _problem(path: Path, key: str, text: str) -> Problem:
    return Problem(path=(*path, key), text=f'{dotted(path)}: unknown field "{plain(key)}": {text}')
