"""Amounts of capacity that a claim asks for, where whole devices may be given: warnings. Pure."""

from collections.abc import Iterator, Mapping

from dra_driver.admin.validate.requests import requests_of
from dra_driver.fields import at, text
from resource_nvidia_com.problems import Problem, dotted

_CLASSES = ("gpu.nvidia.com", "mig.nvidia.com")


def warnings(value: Mapping[str, object]) -> Iterator[Problem]:
    """Yield requests for a part of a device: without `--consumable-shares` they get all of it."""
    for path, request in requests_of(value):
        where = (*path, "capacity", "requests")
        if at(request, "capacity", "requests") and text(request, "deviceClassName") in _CLASSES:
            what = (
                f"{dotted(where)}: a part of a device is given out only where the driver runs "
                "with --consumable-shares (chart value consumableShares); elsewhere this gets "
                "a whole device that has so much"
            )
            yield Problem(path=where, text=what)
