"""The record of one claim: what was prepared for it, as bytes on disk and back. Pure.

A record is a JSON envelope on one line: `{"version":1,"sha256":"…","payload":{…}}`. The checksum is
over the payload's bytes as they are stored, not over a model of them, so a new field never makes an
old record wrong; readers skip payload fields that they do not know. A record holds everything that
Unprepare needs, because the claim object may be gone from the API server by then.

What has to be undone is of two kinds: realisations, through which the claim's devices exist, and
sharing plans, for what was set on them. From the moment in which a claim is taken back all of it is
a pending cleanup (`released`), done or not: to undo is harmless when it is repeated.
"""

import re
from collections.abc import Mapping
from enum import StrEnum
from typing import Any, assert_never

from msgspec import Struct
from msgspec.structs import astuple, replace

from dra_driver.claims.model.claim import (
    ClaimRef,
    ClaimUid,
    ConsumerGroup,
    ConsumerPod,
    PreparedDevice,
)
from dra_driver.claims.model.devices import (
    DeviceRecord,
    RecordedDevice,
    RecordedGpu,
    RecordedMig,
    RecordedPartition,
    RecordedShare,
    part_json,
    part_of,
    partition_json,
    partition_of,
    record_json,
    record_of,
)
from dra_driver.devices.kinds import GpuPart
from dra_driver.devices.model import GpuUuid
from dra_driver.errors import StateError, VersionError
from dra_driver.host.envelope import MALFORMED, seal, unseal
from dra_driver.sharing.base import SharingPlan

_WRITER = "writtenBy"
_WRITTEN_BY = re.compile(rb'"writtenBy":\s?"([0-9A-Za-z.+!-]{1,64})"')

MIG = "MIG"
"""What realisations are called in logs, metrics and status, where sharing plans have a strategy."""


class RecordState(StrEnum):
    """How far a claim has come."""

    PREPARING = "preparing"
    """Hardware may have been changed: the record was written before."""

    PREPARED = "prepared"
    """The kubelet has, or will get, its answer."""

    RELEASED = "released"
    """Unprepared, but something could not be undone yet: it has pending cleanups, and no device."""


class MakeMigDevices(Struct, frozen=True, kw_only=True):
    """MIG devices are made on one GPU."""

    gpu: GpuUuid
    places: tuple[RecordedPartition, ...]

    @property
    def parts(self) -> tuple[GpuPart, ...]:
        """What of the GPU it is about."""
        return tuple(place.part for place in self.places)


class TurnMigModeOff(Struct, frozen=True, kw_only=True):
    """MIG mode of a GPU is turned off, so that it can be used as a whole.

    `restore` says that it was on before, and not turned on by us: it is turned on again.
    """

    gpu: GpuUuid
    restore: bool

    @property
    def parts(self) -> tuple[GpuPart, ...]:
        """What of the GPU it is about."""
        return (GpuPart(gpu=self.gpu),)


Realisation = MakeMigDevices | TurnMigModeOff
"""What is done to one GPU so that devices of a claim exist there."""


class PendingCleanup(Struct, frozen=True, kw_only=True):
    """What could not be undone, and why not at the latest attempt, for people.

    `since` is when that was first seen, in seconds since the epoch; None where it was not noted.
    `may_pass` says that the attempt may succeed in a moment; it is not stored.
    """

    of: SharingPlan | Realisation
    reason: str
    since: float | None = None
    may_pass: bool = False

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PendingCleanup) and self._stored == other._stored

    def __hash__(self) -> int:
        return hash(self._stored)

    @property
    def _stored(self) -> tuple[object, ...]:
        return astuple(self)[:-1]  # without `may_pass`

    @property
    def name(self) -> str:
        """The strategy of a sharing plan, or `MIG`."""
        match self.of:
            case SharingPlan():
                return self.of.strategy
            case MakeMigDevices() | TurnMigModeOff():
                return MIG
            case _:
                assert_never(self.of)

    @property
    def gpus(self) -> tuple[GpuUuid, ...]:
        """The GPUs that have to be locked for it."""
        return self.of.gpus if isinstance(self.of, SharingPlan) else (self.of.gpu,)

    @property
    def parts(self) -> tuple[GpuPart, ...]:
        """What of these GPUs it is about."""
        return self.of.parts


class ClaimRecord(Struct, frozen=True, kw_only=True):
    """One claim on this node, with the devices that it has, or had.

    What a record of another `boot_id` says of hardware is no longer true. What is to be undone is
    in `realisations` of that its devices exist, in `plans` of how they are shared (one without GPUs
    changes nothing), and in `pending` of an earlier preparation. `pods` and `groups` (PodGroups)
    are those that it was reserved for when it was prepared. `taken_over`: NVIDIA's own driver
    prepared it, and wrote its CDI spec (claims/takeover/take_over.py). `pod_claim_name` is what its
    pod calls it, empty for a claim that is no pod's own; None in records of former versions and of
    what was taken over, where that is not known. `asked_parts`: as in Claim.
    """

    ref: ClaimRef
    boot_id: str
    state: RecordState
    devices: tuple[DeviceRecord, ...]
    realisations: tuple[Realisation, ...] = ()
    plans: tuple[SharingPlan, ...] = ()
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
        return tuple(sorted({gpu for part in self.held_parts for gpu in part.served}))

    @property
    def held_parts(self) -> tuple[GpuPart, ...]:
        """What of GPUs this claim keeps others away from."""
        return tuple(entry.device.part for entry in self.devices if not entry.admin_access)

    @property
    def touched_gpus(self) -> tuple[GpuUuid, ...]:
        """The GPUs it holds or still has to put right, each once, sorted: those to be locked."""
        owed = {uuid for cleanup in self.pending for uuid in cleanup.gpus}
        return tuple(sorted(owed.union(self.held_gpus)))

    @property
    def is_complete(self) -> bool:
        """Whether all its devices exist: none is still to be made."""
        return all(_exists(entry.device) for entry in self.devices)

    @property
    def answer(self) -> tuple[PreparedDevice, ...]:
        """What the kubelet is told."""
        return tuple(
            PreparedDevice(
                request_names=entry.request_names,
                pool_name=entry.pool,
                device_name=entry.name,
                cdi_device_ids=entry.cdi_device_ids,
                share_id=entry.share_id,
            )
            for entry in self.devices
        )


def _exists(device: RecordedDevice) -> bool:
    match device:
        case RecordedGpu() | RecordedMig():
            return True
        case RecordedPartition():
            return False
        case RecordedShare():
            return _exists(device.of)
        case _:
            assert_never(device)


def released(record: ClaimRecord, since: float) -> ClaimRecord:
    """Return the record of a claim that is being taken back since then: all of it is pending."""
    if record.state is RecordState.RELEASED:
        return record
    # As for what it is undone: newest last, and sharing after the devices that are shared.
    todo: tuple[Realisation | SharingPlan, ...] = (*record.realisations, *record.plans)
    broken_off = "the driver was stopped, or its disk was full, while it was undone"
    return replace(
        record,
        state=RecordState.RELEASED,
        realisations=(),
        plans=(),
        pending=(
            *record.pending,
            *(PendingCleanup(of=one, reason=broken_off, since=since) for one in todo),
        ),
    )


def encode(record: ClaimRecord, writer: str = "") -> bytes:
    """Return the bytes of a record; the same record gives the same bytes.

    `writer` is the version of the driver. Older drivers that cannot read a record say which one
    could, so its name stays the same in every version of the format.
    """
    return seal(
        {
            **({_WRITER: writer} if writer else {}),
            "claim": {
                "uid": record.ref.uid,
                "namespace": record.ref.namespace,
                "name": record.ref.name,
            },
            "bootID": record.boot_id,
            "state": record.state,
            "devices": [record_json(entry) for entry in record.devices],
            "realisations": [_realisation_json(one) for one in record.realisations],
            "plans": [_plan_json(plan) for plan in record.plans],
            "pendingCleanups": [_cleanup_json(cleanup) for cleanup in record.pending],
            "pods": [_user_json(pod) for pod in record.pods],
            **({"podGroups": [_user_json(one) for one in record.groups]} if record.groups else {}),
            **({"takenOver": True} if record.taken_over else {}),
            **({} if record.pod_claim_name is None else {"podClaimName": record.pod_claim_name}),
            **({"askedParts": record.asked_parts} if record.asked_parts else {}),
        }
    )


def written_by(data: bytes) -> str | None:
    """Return the version of the driver that wrote a record of whatever version; None: not said."""
    found = _WRITTEN_BY.search(data)
    return found[1].decode() if found else None


def decode(data: bytes) -> ClaimRecord:
    """Return the record that `encode` made these bytes of, by this version or a former one.

    Raises VersionError if a newer version wrote them, StateError if they are damaged.
    """
    payload = unseal(data)
    try:
        record = _record(payload)
        _check_types(record)
    except MALFORMED as error:
        raise StateError(f"its content is not that of a record: {error!r}") from error
    return record


def _check_types(record: ClaimRecord) -> None:
    """Raise TypeError for what JSON carries as well in the place of a text, or of an object."""
    plans = [*record.plans, *(one.of for one in record.pending if isinstance(one.of, SharingPlan))]
    texts: list[object] = [record.ref.uid, record.ref.namespace, record.ref.name, record.boot_id]
    texts += [] if record.pod_claim_name is None else [record.pod_claim_name]
    texts += record.asked_parts
    for entry in record.devices:
        texts += [entry.name, entry.pool, *entry.request_names, *entry.cdi_device_ids]
        texts += [entry.device.gpu, entry.device.device_uuid or "", entry.share_id or ""]
        texts += [] if entry.subrequest is None else [entry.subrequest]
    for realisation in record.realisations:
        texts += [part.gpu for part in realisation.parts]
    for cleanup in record.pending:
        texts += [cleanup.name, cleanup.reason, *cleanup.gpus, *(one.gpu for one in cleanup.parts)]
    for plan in plans:
        texts += [plan.strategy, *plan.gpus, *(part.gpu for part in plan.places)]
    users: list[ConsumerPod | ConsumerGroup] = [*record.pods, *record.groups]
    for user in users:
        texts += [user.name, user.uid]
    for text in texts:
        if not isinstance(text, str):
            raise TypeError(f"{text!r} is not a string")
    if not all(isinstance(plan.changes, Mapping) for plan in plans):
        raise TypeError("the changes of a plan are not an object")


def _user_json(user: ConsumerPod | ConsumerGroup) -> dict[str, object]:
    return {"name": user.name, "uid": user.uid}


def _realisation_json(realisation: Realisation) -> dict[str, object]:
    match realisation:
        case MakeMigDevices():
            places = [partition_json(place) for place in realisation.places]
            return {"gpu": realisation.gpu, "makeMIGDevices": places}
        case TurnMigModeOff():
            return {"gpu": realisation.gpu, "turnMIGModeOff": {"restore": realisation.restore}}
        case _:
            assert_never(realisation)


def _realisation(value: Mapping[str, Any]) -> Realisation:
    gpu = GpuUuid(value["gpu"])
    match value:
        case {"makeMIGDevices": places}:
            return MakeMigDevices(gpu=gpu, places=tuple(partition_of(place) for place in places))
        case {"turnMIGModeOff": settings}:
            return TurnMigModeOff(gpu=gpu, restore=bool(settings["restore"]))
        case _:
            raise VersionError(
                f"it has a realisation that this version does not know: {sorted(value)}"
            )


def _plan_json(plan: SharingPlan) -> dict[str, object]:
    found: dict[str, object] = {
        "strategy": plan.strategy,
        "gpus": plan.gpus,
        "changes": plan.changes,
    }
    return found if not plan.places else found | {"places": [part_json(one) for one in plan.places]}


def _plan(plan: Mapping[str, Any]) -> SharingPlan:
    return SharingPlan(
        strategy=plan["strategy"],
        gpus=tuple(GpuUuid(uuid) for uuid in plan["gpus"]),
        changes=plan["changes"],
        places=tuple(part_of(part) for part in plan.get("places", ())),
    )


def _cleanup_json(cleanup: PendingCleanup) -> dict[str, object]:
    why: dict[str, object] = {"reason": cleanup.reason}
    if cleanup.since is not None:
        why["since"] = cleanup.since
    match cleanup.of:
        case SharingPlan():
            return {"plan": _plan_json(cleanup.of), **why}
        case MakeMigDevices() | TurnMigModeOff():
            return {"realisation": _realisation_json(cleanup.of), **why}
        case _:
            assert_never(cleanup.of)


def _cleanup(value: Mapping[str, Any]) -> PendingCleanup:
    of = _plan(value["plan"]) if "plan" in value else _realisation(value["realisation"])
    since = value.get("since")
    return PendingCleanup(
        of=of, reason=value["reason"], since=None if since is None else float(since)
    )


def _state(value: str) -> RecordState:
    try:
        return RecordState(value)
    except ValueError as error:
        raise VersionError(f"it is in state {value!r}, which this version does not know") from error


def _record(payload: Mapping[str, Any]) -> ClaimRecord:
    claim = payload["claim"]
    return ClaimRecord(
        ref=ClaimRef(uid=ClaimUid(claim["uid"]), namespace=claim["namespace"], name=claim["name"]),
        boot_id=payload["bootID"],
        state=_state(payload["state"]),
        devices=tuple(record_of(entry) for entry in payload["devices"]),
        realisations=tuple(_realisation(one) for one in payload["realisations"]),
        plans=tuple(_plan(plan) for plan in payload["plans"]),
        pending=tuple(_cleanup(cleanup) for cleanup in payload["pendingCleanups"]),
        pods=tuple(ConsumerPod(name=pod["name"], uid=pod["uid"]) for pod in payload["pods"]),
        groups=tuple(
            ConsumerGroup(name=one["name"], uid=one["uid"]) for one in payload.get("podGroups", ())
        ),
        taken_over=bool(payload.get("takenOver", False)),
        pod_claim_name=payload.get("podClaimName"),
        asked_parts=tuple(payload.get("askedParts", ())),
    )
