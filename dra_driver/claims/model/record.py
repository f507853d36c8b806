"""What this node knows of one claim, and its form on disk (envelope: host/envelope.py).

A record is written when hardware is about to be changed, so that a later process can take the
change back, and once more when the claim is prepared, which is what a repeated Prepare is answered
from. It says everything that is needed to answer the kubelet and to undo, because the claim may be
gone from the API server by then. It is JSON in the words of its values: a device or step that is
added here is written and read without code of its own.

Its steps stand in the order in which they are done. From the moment in which a claim is taken back
all of them are pending cleanups (`released`), done or not: to undo is harmless when it is repeated.
"""

import re
from enum import StrEnum

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from dra_driver.claims.model import former
from dra_driver.claims.model.claim import ClaimRef, ConsumerGroup, ConsumerPod, allocation_id
from dra_driver.claims.model.steps import ClaimStep
from dra_driver.devices.device import Device
from dra_driver.devices.model import GpuUuid
from dra_driver.errors import StateError
from dra_driver.host.envelope import MALFORMED, seal, unseal, value_of

_FORMAT = 2
_WRITER = "writtenBy"
_WRITTEN_BY = re.compile(rb'"writtenBy":\s?"([0-9A-Za-z.+!-]{1,64})"')


class RecordState(StrEnum):
    """How far a claim has come."""

    PREPARING = "preparing"
    """Hardware may have been changed: the record was written before."""

    PREPARED = "prepared"
    """The kubelet has, or will get, its answer."""

    RELEASED = "released"
    """Unprepared, but something could not be undone yet: it has pending cleanups, and no device."""


class DeviceRecord(Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """One device of a claim. The name can come to mean another card; the device cannot.

    `request_names` hold no sub-request. The first CDI id is unique to the device, because the
    kubelet, which is answered with it, takes it as the device's id in pod status. `subrequest` is
    what was chosen of a request with several; records of former versions lack it.
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
        """What tells it from the claim's other devices."""
        return allocation_id(self.name, self.share_id)


class PendingCleanup(Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """A step that could not be undone, and why not at the latest attempt, for people.

    `since` is when that was first seen, in seconds since the epoch; None where it was not noted.
    `may_pass` says that an attempt may succeed in a moment.
    """

    of: ClaimStep
    reason: str
    since: float | None = None
    may_pass: bool = False


class ClaimRecord(Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """One claim on this node, with the devices that it has, or had.

    What a record of another `boot_id` says of hardware is no longer true. What is to be undone is
    in `steps`, and in `pending` of an earlier preparation. `pods` and `groups` (PodGroups) are
    those that it was reserved for when it was prepared. `taken_over`: NVIDIA's own driver prepared
    it, and wrote its CDI spec (claims/takeover/take_over.py). `pod_claim_name` is what its pod
    calls it, empty for a claim that is no pod's own; None in records of former versions and of what
    was taken over, where that is not known. `asked_parts`: as in Claim.
    """

    ref: ClaimRef
    boot_id: str
    state: RecordState
    devices: tuple[DeviceRecord, ...]
    steps: tuple[ClaimStep, ...]
    pending: tuple[PendingCleanup, ...] = ()
    pods: tuple[ConsumerPod, ...] = ()
    groups: tuple[ConsumerGroup, ...] = ()
    taken_over: bool = False
    pod_claim_name: str | None = None
    asked_parts: tuple[str, ...] = ()

    @property
    def held_gpus(self) -> tuple[GpuUuid, ...]:
        """The GPUs this claim keeps others away from, each once, sorted.

        Those of its devices but for admin access, and what is served together with its shares.
        """
        return tuple(sorted({gpu for device in self.held for gpu in device.served}))

    @property
    def held(self) -> tuple[Device, ...]:
        """The devices that this claim keeps others away from."""
        return tuple(entry.device for entry in self.devices if not entry.admin_access)

    @property
    def touched_gpus(self) -> tuple[GpuUuid, ...]:
        """The GPUs it holds or still has to put right, each once, sorted: those to be locked."""
        owed = {uuid for cleanup in self.pending for uuid in cleanup.of.gpus}
        return tuple(sorted(owed.union(self.held_gpus)))

    @property
    def is_complete(self) -> bool:
        """Whether all its devices exist: none is still to be made."""
        return all(entry.device.exists for entry in self.devices)


def released(record: ClaimRecord, since: float) -> ClaimRecord:
    """Return the record of a claim that is being taken back since then: all of it is pending."""
    if record.state is RecordState.RELEASED:
        return record
    broken_off = "the driver was stopped, or its disk was full, while it was undone"
    todo = (PendingCleanup(of=step, reason=broken_off, since=since) for step in record.steps)
    return replace(record, state=RecordState.RELEASED, steps=(), pending=(*record.pending, *todo))


def encode(record: ClaimRecord, writer: str = "") -> bytes:
    """Return the bytes of a record; the same record gives the same bytes.

    `writer` is the version of the driver. Older drivers that cannot read a record say which one
    could, so its name stays the same in every version of the format.
    """
    said = {_WRITER: writer} if writer else {}
    return seal({**said, **msgspec.to_builtins(record)}, version=_FORMAT)


def written_by(data: bytes) -> str | None:
    """Return the version of the driver that wrote a record of whatever version; None: not said."""
    match = _WRITTEN_BY.search(data)
    return match[1].decode() if match else None


def decode(data: bytes) -> ClaimRecord:
    """Return the record that `encode` made these bytes of, by this version or a former one.

    Raises VersionError if a newer version wrote them, StateError if they are damaged.
    """
    payload = unseal(data, newest=_FORMAT)
    try:
        payload = payload if "steps" in payload else former.lifted(payload)
    except MALFORMED as error:
        raise StateError(f"its content is not that of a record: {error!r}") from error
    return value_of(payload, ClaimRecord, "a record")
