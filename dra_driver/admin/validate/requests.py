"""Where claims, templates and classes keep their requests, selectors and configs. Pure."""

from collections.abc import Iterator, Mapping

from dra_driver.fields import at, entries, text
from resource_nvidia_com.problems import Path

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

    In v1beta1 a request says by itself what it asks for.
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
