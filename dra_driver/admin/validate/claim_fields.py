"""Where claims, templates and classes have their fields, and which stand in the wrong place. Pure.

The API server refuses them as unknown, and does not say where they belong. Fields that no version
of resource.k8s.io has are left to it, as are all values.
"""

from collections.abc import Iterator, Mapping

from dra_driver.kube.fields import at, entries, mapping, text
from resource_nvidia_com.printable import plain, shown
from resource_nvidia_com.problems import Path, Problem, dotted, parts

CLAIMS: Mapping[str, Path] = {
    "ResourceClaim": ("spec", "devices"),
    "ResourceClaimTemplate": ("spec", "spec", "devices"),
}
"""Where objects of each kind have requests."""

DEVICES: Mapping[str, Path] = {**CLAIMS, "DeviceClass": ("spec",)}
"""Where objects of each kind have configs."""


def requests_of(value: object) -> Iterator[tuple[Path, object]]:
    """Yield (path, what it asks for) of each request of an object, and of each alternative."""
    path = CLAIMS.get(str(at(value, "kind")))
    if path:
        for below, _, request in alternatives(at(value, *path)):
            yield (*path, *below), request


def alternatives(devices: object) -> Iterator[tuple[Path, str, object]]:
    """Yield (path below `devices`, name, what it asks for) of each request and alternative.

    In v1beta1 what it asks for is in the request itself.
    """
    for index, request in enumerate(entries(devices, "requests")):
        name, path = text(request, "name"), ("requests", index)
        several = entries(request, "firstAvailable")
        for number, choice in enumerate(several):
            yield (*path, "firstAvailable", number), f"{name}/{text(choice, 'name')}", choice
        if isinstance(exactly := at(request, "exactly"), Mapping):
            yield (*path, "exactly"), name, exactly
        elif not several:
            yield path, name, request


CONVERTS = "`dra-driver convert FILE` converts it"
"""Added to the advice about older APIs."""

_ASKED = (
    *("deviceClassName", "selectors", "allocationMode", "count", "adminAccess", "capacity"),
    *("tolerations", "derivedAttributes"),
)
_PLACES: Mapping[str, tuple[str, ...]] = {
    "spec": ("devices",),
    "devices": ("requests", "constraints", "config"),
    "requests": ("name", "exactly", "firstAvailable"),
    "exactly": _ASKED,
    "firstAvailable": ("name", *_ASKED),
    "constraints": ("requests", "matchAttribute", "distinctAttribute"),
    "config": ("requests", "opaque"),
    "opaque": ("driver", "parameters"),
    "selectors": ("cel",),
    "cel": ("expression",),
}
"""The fields of each part of a claim, or of its entries if it is a list."""

_HOMES = {field: place for place, fields in reversed([*_PLACES.items()]) for field in fields}
_CLASSIC = ("resourceClassName", "parametersRef", "allocationMode")
_OF_DEVICES = (
    "since resource.k8s.io/v1alpha3 a claim asks for devices: write `devices: {requests: "
    "[{name: gpu, exactly: {deviceClassName: gpu.nvidia.com}}]}`"
)
_EXACTLY = "since resource.k8s.io/v1beta2 a request has its fields under `exactly`: write"


def misplaced(value: Mapping[str, object]) -> Iterator[Problem]:
    """Yield the fields of a claim or template that belong elsewhere in it."""
    spec = CLAIMS[str(value["kind"])][:-1]
    if len(spec) > 1 and "devices" in mapping(value, "spec"):
        yield _problem(("spec",), "devices", f"it belongs under {dotted(spec)}")
    for path, part in parts(at(value, *spec), spec):
        place = next(key for key in reversed(path) if isinstance(key, str))
        if isinstance(part, Mapping) and place in _PLACES and "parameters" not in path:
            for key in part:
                if why := _why(place, key):
                    yield _problem(path, key, why)


def _why(place: str, key: str) -> str:
    if key in _PLACES[place]:
        return ""
    if place == "spec" and key in _CLASSIC:
        return _OF_DEVICES
    if place == "requests" and key in _ASKED:
        return f"{_EXACTLY} `exactly: {{{key}: …}}`"
    home = "parameters" if place == "opaque" else _HOMES.get(key)
    return f"it belongs under `{home}`" if home else ""


def _problem(path: Path, key: str, text: str) -> Problem:
    return Problem(path=(*path, key), text=f'{dotted(path)}: unknown field "{plain(key)}": {text}')


def resource_names(value: Mapping[str, object]) -> Iterator[Problem]:
    """Yield resource names, such as nvidia.com/gpu, in place of a DeviceClass's name."""
    for path, request in requests_of(value):
        name, where = at(request, "deviceClassName"), (*path, "deviceClassName")
        if isinstance(name, str) and "/" in name:
            text = (
                f"{dotted(where)}: {shown(name)} is a resource name, for limits of "
                "containers; a class has a name such as gpu.nvidia.com"
            )
            yield Problem(path=where, text=text)
