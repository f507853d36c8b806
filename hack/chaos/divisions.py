"""The share configs between which a campaign changes, and the names of their shares. Pure.

Each of them divides all GPUs, so that a workload with a share always has a place; claims for whole
GPUs and for MIG devices get theirs, too. Shares serve a name that whole GPUs do not serve.
"""

import re
from collections.abc import Mapping

import yaml
from testbed.api import Object

_RESOURCE = "nvidia.com/gpu"
_COUNTS: Mapping[str, tuple[str, int]] = {"mps": ("mps", 10), "turns": ("timeSlicing", 4)}
_MORE: Mapping[str, Object] = {"mps": {}, "turns": {"memory": "equal"}}
_SHARE = re.compile(r"^gpu-\d+-single-share-\d+-of-(?P<count>\d+)$")

DIVISIONS = tuple(_COUNTS)
"""Their names, that of the first config first."""

MPS = "mps"
"""The one whose shares are served by MPS."""


def config(division: str) -> str:
    """The share config, as a file's text."""
    kind, count = _COUNTS[division]
    sharing: Object = {
        "renameByDefault": True,
        "failRequestsGreaterThanOne": True,
        "resources": [{"name": _RESOURCE, "replicas": count, **_MORE[division]}],
    }
    flags = {"plugin": {"sharedDevicesAllocationPolicy": "packed"}}
    return yaml.safe_dump({"version": "v1", "flags": flags, "sharing": {kind: sharing}})


def division_of(device: str) -> str | None:
    """The division in which a device of this name is a share; None if it is no share."""
    match = _SHARE.match(device)
    if match is None:
        return None
    return next(name for name, (_, count) in _COUNTS.items() if count == int(match["count"]))
