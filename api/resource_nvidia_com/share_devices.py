"""Which devices of a resource are divided, as the device plugin's config file says it.

In: the value of a field `devices`. Out: a `DeviceChoice`: all, a count, or a list of references.
A reference says what it is of: a GPU or a MIG device, by indexes or by UUID. Whether there is such
a device, and whether two references mean the same one, only the node knows.
"""

import re
from dataclasses import dataclass
from typing import Final

from resource_nvidia_com.printable import shown

MOST_DEVICES: Final = 1024
"""More than any node has; the bound of counts and indexes."""

_INDEX = "(0|[1-9][0-9]{0,3})"
_HEX = "[0-9A-Fa-f]"
_UUID = f"{_HEX}{{8}}-{_HEX}{{4}}-{_HEX}{{4}}-{_HEX}{{4}}-{_HEX}{{12}}"
_GPU_INDEX = re.compile(_INDEX)
_MIG_INDEX = re.compile(f"{_INDEX}:{_INDEX}")
_GPU_UUID = re.compile(f"GPU-({_UUID})")
_MIG_UUID = re.compile(f"MIG-({_UUID})")
_OLD_MIG_UUID = re.compile(f"MIG-GPU-({_UUID})/{_INDEX}/{_INDEX}")
_ALLOWED = 'must be "all", a count of devices, or a list of indexes and UUIDs'
_REFERENCE = "a GPU's index (0), a MIG device's (\"0:1\") or a UUID (GPU-… or MIG-…)"


@dataclass(frozen=True, slots=True)
class GpuIndex:
    """A GPU by its index in NVML."""

    index: int

    def __str__(self) -> str:
        return str(self.index)


@dataclass(frozen=True, slots=True)
class MigIndex:
    """A MIG device by its GPU's index in NVML and its own on that GPU."""

    gpu: int
    mig: int

    def __str__(self) -> str:
        return f"{self.gpu}:{self.mig}"


@dataclass(frozen=True, slots=True)
class GpuUuid:
    """A GPU by its UUID, in NVML's spelling."""

    uuid: str

    def __str__(self) -> str:
        return self.uuid


@dataclass(frozen=True, slots=True)
class MigUuid:
    """A MIG device by its UUID, in NVML's spelling; also `MIG-GPU-…/3/0` of old drivers."""

    uuid: str

    def __str__(self) -> str:
        return self.uuid


DeviceReference = GpuIndex | MigIndex | GpuUuid | MigUuid


@dataclass(frozen=True, slots=True)
class AllDevices:
    """Every device of the resource."""


@dataclass(frozen=True, slots=True)
class DeviceCount:
    """So many devices of the resource, whichever they are."""

    count: int


@dataclass(frozen=True, slots=True)
class DeviceList:
    """These devices of the resource; at least one, none twice."""

    references: tuple[DeviceReference, ...]


DeviceChoice = AllDevices | DeviceCount | DeviceList


def device_choice(value: object) -> DeviceChoice:
    """Return which devices a user chose. Raises ValueError."""
    match value:
        case "all":
            return AllDevices()
        case bool():
            raise ValueError(f"{_ALLOWED}, not {shown(value)}")
        case int():
            if not 0 < value <= MOST_DEVICES:
                raise ValueError(
                    f"a count of devices must be 1 to {MOST_DEVICES}, not {shown(value)}"
                )
            return DeviceCount(value)
        case list():
            return _device_list(value)
        case _:
            raise ValueError(f"{_ALLOWED}, not {shown(value)}")


def _device_list(value: list[object]) -> DeviceList:
    if not value:
        raise ValueError('the list names no device: name some, or write "all"')
    references = tuple(_reference(text) for text in value)
    known: set[DeviceReference] = set()
    for reference in references:
        if reference in known:
            raise ValueError(f"{reference} is twice in the list: name each device once")
        known.add(reference)
    return DeviceList(references)


def _reference(value: object) -> DeviceReference:
    text = str(value) if isinstance(value, int) and not isinstance(value, bool) else value
    if isinstance(text, str):
        if _GPU_INDEX.fullmatch(text):
            return GpuIndex(int(text))
        if match := _MIG_INDEX.fullmatch(text):
            return MigIndex(int(match[1]), int(match[2]))
        if match := _GPU_UUID.fullmatch(text):
            return GpuUuid(f"GPU-{match[1].lower()}")
        if match := _MIG_UUID.fullmatch(text):
            return MigUuid(f"MIG-{match[1].lower()}")
        if match := _OLD_MIG_UUID.fullmatch(text):
            return MigUuid(f"MIG-GPU-{match[1].lower()}/{match[2]}/{match[3]}")
    raise ValueError(f"{shown(value)} is not a device: write {_REFERENCE}")
