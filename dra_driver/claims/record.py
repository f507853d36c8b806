"""The record of one claim: what was prepared for it, as bytes on disk and back. Pure.

A record is a JSON envelope on one line: `{"version":1,"sha256":"…","payload":{…}}`. The checksum is
over the payload's bytes as they are stored, not over a model of them, so a new field never makes an
old record wrong; readers skip payload fields that they do not know. A record holds everything that
Unprepare needs, because the claim object may be gone from the API server by then.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from dra_driver.claims.model import ClaimRef, ClaimUid, ConsumerPod, PreparedDevice
from dra_driver.devices.model import GpuUuid, MigSlot, MigUuid, Placement
from dra_driver.envelope import seal, unseal
from dra_driver.errors import StateError
from dra_driver.sharing.base import DeviceUuid, GpuPart, Plan


class RecordState(StrEnum):
    """How far a claim has come."""

    PREPARING = "preparing"
    """Hardware may have been changed: the record was written before."""

    PREPARED = "prepared"
    """The kubelet has, or will get, its answer."""

    RELEASED = "released"
    """Unprepared, but some plans could not be undone yet: it has cleanups, and holds no device."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MigRecord:
    """That a prepared device is a MIG device: where it is, and which one.

    `profile` is the profile's name. `made_here` says that it is made for this claim and destroyed
    with it. The ids, NVML's, and the UUID are None until it is there.
    """

    profile: str
    profile_id: int
    placement: Placement
    made_here: bool = False
    gpu_instance: int | None = None
    compute_instance: int | None = None
    uuid: MigUuid | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceRecord:
    """One prepared device. The name can come to mean another card; the UUID cannot.

    `uuid` is the physical GPU's, whether the device is all of it or a MIG device on it.
    """

    name: str
    uuid: GpuUuid
    pool: str
    request_names: tuple[str, ...]
    cdi_device_ids: tuple[str, ...]
    admin_access: bool = False
    share_id: str | None = None
    mig: MigRecord | None = None

    @property
    def part(self) -> GpuPart:
        """What of the GPU it is."""
        return GpuPart(gpu=self.uuid, placement=self.mig.placement if self.mig else None)

    @property
    def slot(self) -> MigSlot | None:
        """The place of a MIG device; None for a whole GPU."""
        if self.mig is None:
            return None
        return MigSlot(
            gpu=self.uuid, profile_id=self.mig.profile_id, start=self.mig.placement.start
        )

    @property
    def device_uuid(self) -> DeviceUuid | None:
        """What a process names the device by; None for a MIG device that is not there yet."""
        return self.uuid if self.mig is None else self.mig.uuid


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingCleanup:
    """A plan that could not be undone, and why not at the latest attempt, for people.

    `may_pass` says that the attempt may succeed in a moment; it is not stored.
    """

    plan: Plan
    reason: str
    may_pass: bool = field(default=False, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimRecord:
    """One claim on this node.

    Attributes:
        ref: the claim.
        boot_id: the kernel's: what a record of another boot says of hardware is no longer true.
        state: how far the claim has come.
        devices: what it has, or had.
        plans: what is to be undone when it goes; what changes nothing has no plan.
        pending: what could not be undone of an earlier preparation.
        pods: the pods it was reserved for when it was prepared.
    """

    ref: ClaimRef
    boot_id: str
    state: RecordState
    devices: tuple[DeviceRecord, ...]
    plans: tuple[Plan, ...] = ()
    pending: tuple[PendingCleanup, ...] = ()
    pods: tuple[ConsumerPod, ...] = ()

    @property
    def held_gpus(self) -> tuple[GpuUuid, ...]:
        """The GPUs this claim has devices of, but for admin access, each once, sorted."""
        return tuple(sorted({device.uuid for device in self.devices if not device.admin_access}))

    @property
    def held_parts(self) -> tuple[GpuPart, ...]:
        """What of GPUs this claim keeps others away from."""
        return tuple(device.part for device in self.devices if not device.admin_access)

    @property
    def touched_gpus(self) -> tuple[GpuUuid, ...]:
        """The GPUs it holds or still has to put right, each once, sorted: those to be locked."""
        owed = {uuid for cleanup in self.pending for uuid in cleanup.plan.gpus}
        return tuple(sorted(owed.union(self.held_gpus)))

    @property
    def is_to_be_made(self) -> bool:
        """Whether MIG devices of it are still to be made."""
        migs = [device.mig for device in self.devices if device.mig is not None]
        return any(mig.made_here and mig.uuid is None for mig in migs)

    @property
    def answer(self) -> tuple[PreparedDevice, ...]:
        """What the kubelet is told."""
        return tuple(
            PreparedDevice(
                request_names=device.request_names,
                pool_name=device.pool,
                device_name=device.name,
                cdi_device_ids=device.cdi_device_ids,
                share_id=device.share_id,
            )
            for device in self.devices
        )


def encode(record: ClaimRecord) -> bytes:
    """Return the bytes of a record; the same record gives the same bytes."""
    return seal(
        {
            "claim": {
                "uid": record.ref.uid,
                "namespace": record.ref.namespace,
                "name": record.ref.name,
            },
            "bootID": record.boot_id,
            "state": record.state,
            "devices": [_device_json(device) for device in record.devices],
            "plans": [_plan_json(plan) for plan in record.plans],
            "pendingCleanups": [
                {"plan": _plan_json(cleanup.plan), "reason": cleanup.reason}
                for cleanup in record.pending
            ],
            "pods": [{"name": pod.name, "uid": pod.uid} for pod in record.pods],
        }
    )


def decode(data: bytes) -> ClaimRecord:
    """Return the record that `encode` made these bytes of, by this version or a former one.

    Raises:
        StateError: the bytes are damaged, or of a version that is not known here.
    """
    payload = unseal(data)
    try:
        return _record(payload)
    except (KeyError, TypeError, ValueError) as error:
        raise StateError(f"its content is not that of a record: {error!r}") from error


def _device_json(device: DeviceRecord) -> dict[str, object]:
    found: dict[str, object] = {
        "name": device.name,
        "uuid": device.uuid,
        "pool": device.pool,
        "requests": device.request_names,
        "cdiDeviceIDs": device.cdi_device_ids,
        "adminAccess": device.admin_access,
        "shareID": device.share_id,
    }
    return found if device.mig is None else found | {"mig": _mig_json(device.mig)}


def _mig_json(mig: MigRecord) -> dict[str, object]:
    return {
        "profile": mig.profile,
        "profileID": mig.profile_id,
        "start": mig.placement.start,
        "size": mig.placement.size,
        "madeHere": mig.made_here,
        "gpuInstance": mig.gpu_instance,
        "computeInstance": mig.compute_instance,
        "uuid": mig.uuid,
    }


def _plan_json(plan: Plan) -> dict[str, object]:
    found: dict[str, object] = {
        "strategy": plan.strategy,
        "gpus": plan.gpus,
        "changes": plan.changes,
    }
    return found if not plan.places else found | {"places": [_place_json(p) for p in plan.places]}


def _place_json(place: GpuPart) -> dict[str, object]:
    whole = {"gpu": place.gpu}
    if place.placement is None:
        return {**whole}
    return {**whole, "start": place.placement.start, "size": place.placement.size}


def _plan(plan: Mapping[str, Any]) -> Plan:
    return Plan(
        strategy=plan["strategy"],
        gpus=tuple(GpuUuid(uuid) for uuid in plan["gpus"]),
        changes=plan["changes"],
        places=tuple(
            GpuPart(
                gpu=GpuUuid(place["gpu"]),
                placement=Placement(start=int(place["start"]), size=int(place["size"]))
                if "start" in place
                else None,
            )
            for place in plan.get("places", ())
        ),
    )


def _device(device: Mapping[str, Any]) -> DeviceRecord:
    mig = device.get("mig")
    return DeviceRecord(
        name=device["name"],
        uuid=GpuUuid(device["uuid"]),
        pool=device["pool"],
        request_names=tuple(device["requests"]),
        cdi_device_ids=tuple(device["cdiDeviceIDs"]),
        admin_access=device["adminAccess"],
        share_id=device["shareID"],
        mig=None if mig is None else _mig(mig),
    )


def _mig(mig: Mapping[str, Any]) -> MigRecord:
    return MigRecord(
        profile=mig["profile"],
        profile_id=int(mig["profileID"]),
        placement=Placement(start=int(mig["start"]), size=int(mig["size"])),
        made_here=mig["madeHere"],
        gpu_instance=mig["gpuInstance"],
        compute_instance=mig["computeInstance"],
        uuid=mig["uuid"],
    )


def _record(payload: Mapping[str, Any]) -> ClaimRecord:
    claim = payload["claim"]
    return ClaimRecord(
        ref=ClaimRef(uid=ClaimUid(claim["uid"]), namespace=claim["namespace"], name=claim["name"]),
        boot_id=payload["bootID"],
        state=RecordState(payload["state"]),
        devices=tuple(_device(device) for device in payload["devices"]),
        plans=tuple(_plan(plan) for plan in payload["plans"]),
        # Records of the first drivers have neither.
        pending=tuple(
            PendingCleanup(plan=_plan(cleanup["plan"]), reason=cleanup["reason"])
            for cleanup in payload.get("pendingCleanups", ())
        ),
        pods=tuple(
            ConsumerPod(name=pod["name"], uid=pod["uid"]) for pod in payload.get("pods", ())
        ),
    )
