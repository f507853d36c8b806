"""Device names as NVIDIA's own DRA driver gives them, so that they work here unchanged.

A whole GPU is `gpu-<minor>`: the minor number of its device node, not NVML's index. A MIG device is
`gpu-<minor>-mig-<profile>-<profile id>-<start>`, the same whether it exists or could be made. A
device name is a DNS label (resource.k8s.io/v1 Device.name, at most 63 bytes).
"""

import re
from dataclasses import dataclass
from typing import NewType

DRIVER_NAME = "gpu.nvidia.com"
"""The DRA driver's name: in ResourceSlices, allocation results and the kubelet's registration."""

DeviceName = NewType("DeviceName", str)

_MIG = re.compile(r"gpu-(?P<minor>[0-9]+)-mig-.+-(?P<id>[0-9]+)-(?P<start>[0-9]+)")
_LONGEST_LABEL = 63
_NOT_IN_LABELS = re.compile(r"[^a-z0-9-]")


@dataclass(frozen=True, slots=True, kw_only=True)
class MigName:
    """What the name of a MIG device says: parent's minor number, id of the profile, start."""

    minor: int
    profile_id: int
    start: int


def gpu_name(minor: int) -> DeviceName:
    """Return the device name of the whole GPU behind /dev/nvidia<minor>."""
    return DeviceName(f"gpu-{minor}")


def mig_name(minor: int, profile: str, profile_id: int, start: int) -> DeviceName:
    """Return the device name of a MIG device.

    The profile is there to be read: `1g.10gb+me` becomes `1g10gb-me`. So does `1g.10gb-me`, which
    has another id.

    Args:
        minor: of the GPU's device node.
        profile: the profile's name.
        profile_id: the card's number for it.
        start: first memory slice.
    """
    numbers = f"{profile_id}-{start}"
    readable = _NOT_IN_LABELS.sub("-", profile.lower().replace(".", ""))
    room = _LONGEST_LABEL - len(f"gpu-{minor}-mig--{numbers}")
    readable = readable.strip("-")[:room].strip("-") or "profile"
    return DeviceName(f"gpu-{minor}-mig-{readable}-{numbers}")


def parse_mig_name(name: str) -> MigName | None:
    """Return what the name of a MIG device says; None if it is no such name."""
    match = _MIG.fullmatch(name)
    if match is None:
        return None
    return MigName(
        minor=int(match["minor"]), profile_id=int(match["id"]), start=int(match["start"])
    )
