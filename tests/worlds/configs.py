"""What claims are configured as, and how long tests wait."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import make
from dra_driver.devices.shares import ShareStrategy

PATIENCE = 40.0
"""Seconds for what comes if all is well."""

MPS = make.config(sharing={"strategy": "MPS"})
MPS_ON_MIG = make.config(kind="MigDeviceConfig", sharing={"strategy": "MPS"})
CONFIGS: Mapping[str, list[dict[str, Any]]] = {"exclusive": [], "sharing": [MPS]}
"""By mode: the configs of a claim whose sharing is played."""

LONG = {"strategy": "TimeSlicing", "timeSlicingConfig": {"interval": "Long"}}
HALF = {
    "strategy": "MPS",
    "mpsConfig": {"defaultActiveThreadPercentage": 50, "defaultPinnedDeviceMemoryLimit": "10Gi"},
}
REQUESTS: Mapping[str, Mapping[str, dict[str, Any]]] = {
    "time-slicing": {"ts": LONG},
    "mps": {"mps": HALF},
    "both": {"ts": LONG, "mps": HALF},
}
"""By mode: how the requests of a claim, of one GPU each, share."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SharesMode:
    """How GPUs are shared, and what claims have of them.

    `devices` are those of the claim in question, `others` that of another one. They are divided as
    `division` says, or where that is empty claims have parts of them under these `configs`. Each
    device is of a container's own request, or all are of one (`in_one_request`).
    """

    division: Mapping[str, Any] = field(default_factory=dict)
    devices: tuple[str, ...]
    others: str
    minors: tuple[int, ...] = (0,)
    configs: tuple[dict[str, Any], ...] = ()
    by_mps: bool = True
    in_one_request: bool = False


SHARES: Mapping[str, SharesMode] = {
    "time-slicing": SharesMode(
        division={"strategy": ShareStrategy.TIME_SLICING},
        devices=("gpu-0-single-share-0-of-10",),
        others="gpu-0-single-share-9-of-10",
        by_mps=False,
    ),
    "mps": SharesMode(
        division={"strategy": ShareStrategy.MPS},
        devices=("gpu-0-single-share-0-of-10",),
        others="gpu-0-single-share-9-of-10",
    ),
    "mps on two": SharesMode(
        division={"strategy": ShareStrategy.MPS},
        devices=("gpu-0-single-share-0-of-10", "gpu-1-single-share-0-of-10"),
        others="gpu-1-single-share-9-of-10",
        minors=(0, 1),
    ),
    "mps combined": SharesMode(
        division={"strategy": ShareStrategy.MPS, "combines": True},
        devices=("gpu-0-mps-share-0-of-10", "gpu-0-mps-share-1-of-10"),
        others="gpu-0-mps-share-9-of-10",
        in_one_request=True,
    ),
    "parts by time-slicing": SharesMode(devices=("gpu-0",), others="gpu-0", by_mps=False),
    "parts by mps": SharesMode(devices=("gpu-0",), others="gpu-0", configs=(MPS,)),
}
"""By mode: the shares of a claim."""
