"""Device names, which are the same as those of NVIDIA's DRA driver, so that they work unchanged.

A whole GPU is `gpu-<minor>`: the minor number of its device node, not NVML's index. A MIG device is
`gpu-<minor>-mig-<profile>-<profile id>-<start>`, whether it exists or could be made. A share of
either, which NVIDIA's DRA driver does not have, is `<name>-share-<index>-of-<count>`, with `single`
or `mps` before `share` if a request may have only one share, or several of one device only. Name
and allocation are all that an admission policy knows of a share, and the chart's policy refuses
others. The count is included so that a name never comes to mean a larger share. A GPU for a VM is
`gpu-vfio-<i>`: it has no minor number, so this is its position among the GPUs on the PCI bus, by
address. A device name is a DNS label (resource.k8s.io/v1 Device.name, at most 63 bytes).
"""

import re
from typing import NewType

from msgspec import Struct

DRIVER_NAME = "gpu.nvidia.com"
"""The DRA driver's name: in ResourceSlices, allocation results and the kubelet's registration."""

CONTROLLER = f"{DRIVER_NAME}/dra-driver"
"""The reporting controller in the Events that this driver creates."""

DeviceName = NewType("DeviceName", str)

_VFIO = re.compile(r"gpu-vfio-(?P<number>0|[1-9][0-9]*)")
_GPU = re.compile(r"gpu-(?P<minor>[0-9]+)")
_MIG = re.compile(r"gpu-(?P<minor>[0-9]+)-mig-.+-(?P<id>[0-9]+)-(?P<start>[0-9]+)")
_SHARE = re.compile(
    r"(?P<of>.+?)-(?:single-|mps-)?share-(?P<index>0|[1-9][0-9]*)-of-(?P<count>[1-9][0-9]*)"
)
_LONGEST_LABEL = 63
_NOT_IN_LABELS = re.compile(r"[^a-z0-9-]")


class GpuName(Struct, frozen=True, kw_only=True):
    """What the name of a whole GPU says: the minor number of its device node."""

    minor: int


class MigName(Struct, frozen=True, kw_only=True):
    """What the name of a MIG device says: its parent's minor number, profile id and start."""

    minor: int
    profile_id: int
    start: int


class VfioName(Struct, frozen=True, kw_only=True):
    """What the name of a GPU for a virtual machine says: its number on the PCI bus."""

    number: int


class ShareName(Struct, frozen=True, kw_only=True):
    """What the name of a share says: its device, its index, and the number of shares."""

    of: GpuName | MigName
    index: int
    count: int


def gpu_name(minor: int) -> DeviceName:
    """Return the device name of the whole GPU behind /dev/nvidia<minor>."""
    return DeviceName(f"gpu-{minor}")


SINGLE_SHARE = "single-share"
MPS_SHARE = "mps-share"
"""Shares of which a request may have one, or several of one device; of others any number."""


def share_suffix(kind: str, index: int, count: int) -> str:
    """Return the part of a share's name that follows its device's name."""
    return f"-{kind}-{index}-of-{count}"


def mig_name(minor: int, profile: str, profile_id: int, start: int, suffix: str = "") -> DeviceName:
    """Return the device name of a MIG device.

    The profile's name is included only for readers: `1g.10gb+me` becomes `1g10gb-me`, and so does
    `1g.10gb-me`, which has another id.
    """
    numbers = f"{profile_id}-{start}{suffix}"
    readable = _NOT_IN_LABELS.sub("-", profile.lower().replace(".", ""))
    room = _LONGEST_LABEL - len(f"gpu-{minor}-mig--{numbers}")
    readable = readable.strip("-")[:room].strip("-") or "profile"
    return DeviceName(f"gpu-{minor}-mig-{readable}-{numbers}")


def in_order(name: str) -> tuple[tuple[int, str], ...]:
    """Return a key that sorts names as people count: `gpu-2` before `gpu-10`."""
    parts = re.split(r"([0-9]+)", name)
    return tuple((int(part), "") if part.isdecimal() else (-1, part) for part in parts)


def undivided_name(name: str) -> str:
    """Return the name of a share's device; other names are returned unchanged."""
    match = _SHARE.fullmatch(name)
    return match["of"] if match else name


def parse_device_name(name: str) -> GpuName | MigName | VfioName | ShareName | None:
    """Return what a device name says; None if it has none of the four forms."""
    if match := _VFIO.fullmatch(name):
        return VfioName(number=int(match["number"]))
    if match := _SHARE.fullmatch(name):
        of = _undivided(match["of"])
        return of and ShareName(of=of, index=int(match["index"]), count=int(match["count"]))
    return _undivided(name)


def _undivided(name: str) -> GpuName | MigName | None:
    if match := _GPU.fullmatch(name):
        return GpuName(minor=int(match["minor"]))
    if match := _MIG.fullmatch(name):
        return MigName(
            minor=int(match["minor"]), profile_id=int(match["id"]), start=int(match["start"])
        )
    return None
