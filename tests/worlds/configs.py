"""What claims are configured as, and how long tests wait."""

from collections.abc import Mapping
from typing import Any

import make

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
