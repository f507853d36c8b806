"""What a claim may have of the memory of divided devices, and which backend keeps it to that.

A `MemoryPart` stands in each plan of shares (sharing/shares.py), so that to undo takes nothing but
the record. The backends, best first: control groups (sharing/memory_groups.py), which no program
gets round; limits of MPS, which its daemon enforces and which need nothing here; else nothing.
Pure; which one a device gets is chosen in sharing/share_memory.py.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Any

from msgspec import Struct, field

from dra_driver.devices.model import Gpu, GpuUuid
from dra_driver.devices.shares import ShareStrategy
from dra_driver.sharing.base import SharingPlan

KEY = "memory"
"""Where a plan's changes hold its `MemoryPart`."""

LIMITS_SINCE = (7, 0)
"""Compute capability of Volta, the first whose MPS clients have limits of their own."""


class Backend(StrEnum):
    """What enforces memory, best first."""

    CONTROL_GROUPS = "ControlGroups"
    MPS = "MPS"
    NOTHING = "Nothing"


class DividedDevice(Struct, frozen=True, kw_only=True):
    """A device of which tenants have shares: the GPU itself, or a MIG device on it."""

    gpu: Gpu
    is_mig: bool
    strategy: ShareStrategy


class Choice(Struct, frozen=True, kw_only=True):
    """What enforces memory. `why` is the reason for nothing better; empty for the best."""

    by: Backend
    why: str = ""

    def words(self) -> str | None:
        """Return the backend for people; None for nothing."""
        match self.by:
            case Backend.CONTROL_GROUPS:
                return "control groups (NVML)"
            case Backend.MPS:
                return "MPS"
            case Backend.NOTHING:
                return None

    def with_condition(self) -> str | None:
        """Return the backend and what its limits depend on; None for nothing.

        Programs can lift MPS's limit by their environment, the daemon's too (docs/hardware.md).
        """
        words = self.words()
        if self.by is Backend.MPS:
            return f"{words}, while programs leave its variables alone"
        return words


class MemoryPart(Struct, frozen=True, kw_only=True):
    """What a claim may have of the memory of a plan's GPUs, and what enforces it.

    `of_device` enforces it for tenants of the device in general, and `why` is why nothing better
    does. `claim` is the claim's UID. `pod`, the UID of the pod that is limited, and `mib`, MiB of
    each GPU for all of the claim's shares there, are empty unless it is by control groups.
    """

    by: Backend
    of_device: Backend
    why: str = ""
    claim: str = ""
    pod: str = ""
    mib: Mapping[GpuUuid, int] = field(default_factory=dict)

    @property
    def choice(self) -> Choice:
        """What enforces it, and why."""
        return Choice(by=self.by, why=self.why)


def part_json(part: MemoryPart) -> dict[str, object]:
    """Return a part as a plan's changes hold it."""
    return {
        "by": str(part.by),
        "ofDevice": str(part.of_device),
        "why": part.why,
        "claim": part.claim,
        "pod": part.pod,
        "mib": dict(part.mib),
    }


def part_of(plan: SharingPlan) -> MemoryPart | None:
    """Return the part of a plan; None for a plan that says nothing of memory.

    Raises ValueError, TypeError, KeyError or AttributeError if it cannot be read.
    """
    value: Any = plan.changes.get(KEY)
    if value is None:
        return None
    return MemoryPart(
        by=Backend(value["by"]),
        of_device=Backend(value["ofDevice"]),
        why=str(value["why"]),
        claim=str(value["claim"]),
        pod=str(value["pod"]),
        mib={GpuUuid(uuid): int(mib) for uuid, mib in value["mib"].items()},
    )
