"""Amounts of capacity that a claim asks for, where whole devices may be given: warnings. Pure."""

from collections.abc import Iterator, Mapping

from dra_driver.fields import at, entries
from resource_nvidia_com.problems import Path, Problem, dotted

_REQUESTS: Mapping[str, Path] = {
    "ResourceClaim": ("spec", "devices", "requests"),
    "ResourceClaimTemplate": ("spec", "spec", "devices", "requests"),
}


def warnings(value: Mapping[str, object]) -> Iterator[Problem]:
    """Yield requests for a part of a device: without `--consumable-shares` they get all of it."""
    path = _REQUESTS.get(str(value.get("kind")), ())
    for index, request in enumerate(entries(value, *path) if path else ()):
        for below in ((), ("exactly",)):
            where = (*path, index, *below, "capacity", "requests")
            name = at(request, *below, "deviceClassName")
            if at(request, *below, "capacity", "requests") and name in _CLASSES:
                text = (
                    f"{dotted(where)}: a part of a device is given out only where the driver runs "
                    "with --consumable-shares (chart value consumableShares); elsewhere this gets "
                    "a whole device that has so much"
                )
                yield Problem(path=where, text=text)


_CLASSES = ("gpu.nvidia.com", "mig.nvidia.com")
