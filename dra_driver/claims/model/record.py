"""What this node knows of one claim, and its form on disk (envelope: host/envelope.py).

A record is written before hardware is changed, so that a later process can undo the change, and
again when the claim is prepared. A repeated Prepare is answered from it. It holds all that is
needed to answer the kubelet and to undo, because the API server may no longer have the claim then.
Its JSON follows from its values, so a new device or step needs no code to be read and written.

`steps` are all that is done for a claim, in the order in which it is done: first what makes devices
exist, then what shares them. Code that reads a step first checks its type. Once a claim is being
taken back (`released`), all of them are pending cleanups, whether done or not: it does no harm to
undo one twice.
"""

import re
from enum import StrEnum
from typing import ClassVar

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from dra_driver.claims.model.claim import (
    ClaimRef,
    ClaimUid,
    ConsumerGroup,
    ConsumerPod,
    allocation_id,
)
from dra_driver.devices.device import Device, Mig
from dra_driver.devices.model import GpuUuid
from dra_driver.host.envelope import seal, unseal, value_of
from dra_driver.sharing.steps import SharingStep, Step

MIG = "MIG"
"""The name of steps that make devices exist, in logs, metrics and status."""


class _MigStep(Step, frozen=True, kw_only=True):
    name: ClassVar[str] = MIG

    @property
    def gpu(self) -> GpuUuid:
        """The GPU that is changed."""
        return self.devices[0].gpu

    @property
    def places(self) -> tuple[Mig, ...]:
        """The places of MIG devices on it."""
        return tuple(device.base for device in self.devices if isinstance(device.base, Mig))


class MakeMigDevices(_MigStep, frozen=True, kw_only=True, tag="makeMigDevices"):
    """Makes MIG devices on one GPU. `claim` is the UID of the claim that they are made for."""

    excludes: ClassVar[bool] = True

    claim: ClaimUid


class TurnMigModeOn(_MigStep, frozen=True, kw_only=True, tag="turnMigModeOn"):
    """Turns on MIG mode of a GPU, for MIG devices that are made there for a claim.

    Each claim for which devices are made on a GPU whose mode this driver turned on has this step.
    Undo turns the mode off once no other claim has it.
    """

    claim: ClaimUid


class TurnMigModeOff(_MigStep, frozen=True, kw_only=True, tag="turnMigModeOff"):
    """Turns off MIG mode of a GPU, so that it can be used as a whole.

    `restore` says that the mode was on before, and not turned on by this driver: undo turns it on.
    """

    restore: bool


MigStep = TurnMigModeOn | MakeMigDevices | TurnMigModeOff
"""A step that makes devices exist."""

ClaimStep = MigStep | SharingStep
"""Any step that is done for a claim."""

_WRITER = "writtenBy"
_WRITTEN_BY = re.compile(rb'"writtenBy":\s?"([0-9A-Za-z.+!-]{1,64})"')


class RecordState(StrEnum):
    """How far a claim has come."""

    PREPARING = "preparing"
    """Hardware may have been changed; the record was written before that."""

    PREPARED = "prepared"
    """The kubelet has its answer, or will get it."""

    RELEASED = "released"
    """Unprepared and without devices, but something is still to be undone: see pending cleanups."""


class DeviceRecord(Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """One device of a claim. Its name can later mean another card; `device` cannot.

    `request_names` are without sub-requests. The first CDI id is unique to the device, because the
    kubelet uses it as the device's id in pod status. `subrequest` is the one that was chosen.
    """

    name: str
    device: Device
    pool: str
    request_names: tuple[str, ...]
    cdi_device_ids: tuple[str, ...]
    admin_access: bool = False
    share_id: str | None = None
    subrequest: str | None = None

    @property
    def allocation_id(self) -> str:
        """What distinguishes this device from the claim's other devices."""
        return allocation_id(self.name, self.share_id)


class PendingCleanup(Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """A step that could not be undone, with the reason of the latest attempt, for people.

    `since` is when it first failed, in seconds since the epoch; None if that was not recorded.
    `may_pass` says that another attempt may succeed soon.
    """

    of: ClaimStep
    reason: str
    since: float | None = None
    may_pass: bool = False


class ClaimRecord(Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """One claim on this node, with the devices that it has, or had.

    If `boot_id` is not that of this boot, what the record says of hardware is no longer true. What
    is to be undone is in `steps`, and, from an earlier preparation, in `pending`. The claim was
    reserved for `pods` and `groups` (PodGroups) when it was prepared. `pod_claim_name` is the pod's
    name for the claim, empty if it was not made for one pod, or NVIDIA's DRA driver prepared it.
    """

    ref: ClaimRef
    boot_id: str
    state: RecordState
    devices: tuple[DeviceRecord, ...]
    steps: tuple[ClaimStep, ...]
    pending: tuple[PendingCleanup, ...] = ()
    pods: tuple[ConsumerPod, ...] = ()
    groups: tuple[ConsumerGroup, ...] = ()
    pod_claim_name: str = ""

    @property
    def held_gpus(self) -> tuple[GpuUuid, ...]:
        """The GPUs of its devices without admin access, each once, sorted."""
        return tuple(sorted({device.gpu for device in self.held}))

    @property
    def held(self) -> tuple[Device, ...]:
        """The devices that this claim keeps others away from."""
        return tuple(entry.device for entry in self.devices if not entry.admin_access)

    @property
    def all_steps(self) -> tuple[ClaimStep, ...]:
        """What was done for it and is not undone: what could not be undone before comes first."""
        return (*(cleanup.of for cleanup in self.pending), *self.steps)

    @property
    def gpus(self) -> frozenset[GpuUuid]:
        """The GPUs that it is about: those that it holds, and those of all its steps."""
        in_steps = (device.gpu for step in self.all_steps for device in step.devices)
        return frozenset((*self.held_gpus, *in_steps))

    @property
    def touched_gpus(self) -> tuple[GpuUuid, ...]:
        """The GPUs that it holds or still has to clean up, each once, sorted: those to lock."""
        owed = {uuid for cleanup in self.pending for uuid in cleanup.of.gpus}
        return tuple(sorted(owed.union(self.held_gpus)))

    @property
    def is_complete(self) -> bool:
        """Whether all its devices exist, so that none is still to be made."""
        return all(entry.device.exists for entry in self.devices)


def released(record: ClaimRecord, since: float) -> ClaimRecord:
    """Return the record as of a claim taken back since then: all its steps are pending."""
    if record.state is RecordState.RELEASED:
        return record
    broken_off = "the driver was stopped, or its disk was full, while it was undone"
    todo = (PendingCleanup(of=step, reason=broken_off, since=since) for step in record.steps)
    return replace(record, state=RecordState.RELEASED, steps=(), pending=(*record.pending, *todo))


def encode(record: ClaimRecord, writer: str = "") -> bytes:
    """Return the bytes of a record; the same record gives the same bytes.

    `writer` is the version of the driver. A driver too old to read the record names that version to
    the user, so the field keeps its name in every version of the format.
    """
    said = {_WRITER: writer} if writer else {}
    return seal({**said, **msgspec.to_builtins(record)})


def written_by(data: bytes) -> str | None:
    """Return the version of the driver that wrote a record of any format; None if not given."""
    match = _WRITTEN_BY.search(data)
    return match[1].decode() if match else None


def decode(data: bytes) -> ClaimRecord:
    """Return the record in bytes that `encode` made.

    Raises VersionError if a newer version wrote them, StateError if they are damaged.
    """
    return value_of(unseal(data), ClaimRecord, "a record")
