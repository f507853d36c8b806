"""MIG devices of claims: found where others made them, else made for the claim, and destroyed.

In: a claim's devices, as places on GPUs. Out: the same, each with the MIG device that is there; and
plans for those that have to be made, and for the MIG mode where a whole GPU needs it off. A plan is
written down before anything is made, and what is made is noted (claims/made.py), so that after a
crash nobody destroys what another one made. MIG mode that was turned on here is turned off when the
last MIG device made here has gone. Devices with admin access are seen, never made or destroyed.

All but `made`'s lists is called with the GPUs locked.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import structlog

from dra_driver.cdi.model import Edits
from dra_driver.claims.gpus import Allocated, recorded_partition
from dra_driver.claims.made import MadeHere
from dra_driver.claims.model import ClaimUid
from dra_driver.claims.ports import InventorySource, MigDevices
from dra_driver.claims.record import ClaimRecord, DeviceRecord, MigRecord
from dra_driver.devices.model import (
    BareInstance,
    Gpu,
    GpuUuid,
    MigDevice,
    MigMode,
    MigSlot,
    Partition,
)
from dra_driver.devices.partitions import is_whole, partition_named, why_not_partitioned
from dra_driver.errors import (
    ConflictError,
    DeviceError,
    DriverError,
    StateError,
    TransientError,
)
from dra_driver.sharing.base import DeviceUuid, GpuPart, Plan

log = structlog.get_logger()

MIG = "MIG"
"""Name of the plans made here, where sharing strategies have theirs."""


class ClaimedMig:
    """The MIG devices of this node's claims, as an `Effect` (sharing/base.py) and what leads to it.

    Args:
        devices: makes and destroys MIG devices.
        made: notes what was made.
        inventory: the GPUs of this node.
    """

    survives_reboot = False

    def __init__(self, devices: MigDevices, made: MadeHere, inventory: InventorySource) -> None:
        self._devices = devices
        self._made = made
        self._inventory = inventory

    # Before anything is changed

    def resolved(self, record: ClaimRecord, allocated: Mapping[str, Allocated]) -> ClaimRecord:
        """Return a draft with what is at its devices' places now, and plans for what is not.

        Raises:
            DeviceError: a device is not there and cannot be made, or is in the wrong mode.
            TransientError: NVML does not answer now, or something is there that is about to go.
        """
        uid = record.ref.uid
        devices = tuple(
            device if device.mig is None else self._looked_at(device, allocated[device.name], uid)
            for device in record.devices
        )
        record = replace(record, devices=devices)
        return replace(record, plans=(*self._makings(record), *self._modes(record, allocated)))

    def filled(self, record: ClaimRecord) -> ClaimRecord:
        """Return a record with the ids of the MIG devices that its plans have made.

        Raises:
            DeviceError, TransientError: one is not there, or NVML does not answer.
        """
        return replace(record, devices=tuple(self._filled(device) for device in record.devices))

    # Later

    def mended(self, record: ClaimRecord) -> ClaimRecord:
        """Return the record of a prepared claim when its MIG devices are there, making lost ones.

        A MIG device cannot be removed while processes use it, so whoever had one that is gone has
        ended.

        Raises:
            DeviceError: one that others made is gone, or a new one cannot take the old one's place.
            TransientError: NVML does not answer now, or there is no room for it now.
        """
        devices = tuple(self._mended(device, record) for device in record.devices)
        return record if devices == record.devices else replace(record, devices=devices)

    def orphans(self, parts: Sequence[GpuPart]) -> dict[MigSlot, ClaimUid]:
        """Return the MIG devices made here that overlap with some parts, and for which claims."""
        found: dict[MigSlot, ClaimUid] = {}
        for gpu in {part.gpu for part in parts}:
            for slot, uid in self._made.owners(gpu).items():
                place = self._part(slot)
                if any(place.overlaps(part) for part in parts):
                    found[slot] = uid
        return found

    def take_away(self, orphans: Mapping[MigSlot, ClaimUid]) -> None:
        """Destroy MIG devices that were made here for claims that no longer have a record.

        Raises:
            DeviceError, TransientError: one cannot be destroyed.
        """
        for slot, uid in orphans.items():
            log.warning("mig device without a claim taken away", gpu=slot.gpu, claim_uid=uid)
            self._destroy(slot, uid)

    def gpus_to_tidy(self) -> tuple[GpuUuid, ...]:
        """Return the GPUs whose MIG mode was turned on here, whatever is on them."""
        return self._made.gpus_with_mode()

    def tidy(self, gpu: GpuUuid) -> bool:
        """Turn MIG mode off if it was turned on here and nothing made here is left on the GPU.

        What refuses keeps nobody from anything and is tried again; returns whether it is done.
        """
        if not self._made.has_mode(gpu) or self._made.owners(gpu):
            return True
        try:
            self._devices.set_mode(gpu, MigMode.DISABLED)
        except ConflictError:
            log.info("mig mode left on", gpu=gpu, reason="MIG devices of others are on the GPU")
        except DriverError as error:
            log.warning("mig mode not turned off yet", gpu=gpu, reason=str(error))
            return False
        self._made.forget_mode(gpu)
        return True

    # The effect

    def edits(self, plan: Plan) -> Mapping[DeviceUuid, Edits]:  # noqa: ARG002 (an Effect)
        """Return none: what containers get follows from the device."""
        return {}

    def apply(self, plan: Plan, deadline: float) -> None:  # noqa: ARG002 (NVML takes what it takes)
        """Make the plan's MIG devices, or turn MIG mode off for a whole GPU.

        Raises:
            ConflictError: others have MIG devices on a GPU that is to be used as a whole.
            DeviceError: NVML refuses.
            TransientError: other instances or processes are in the way.
        """
        if _is_mode_off(plan):
            (gpu,) = plan.gpus
            self._devices.set_mode(gpu, MigMode.DISABLED)
            self._made.forget_mode(gpu)
        uid = _claim(plan)
        for slot in _slots(plan):
            self._made.add(slot, uid)
            self._make(self._partition(slot))

    def ensure(self, plan: Plan, deadline: float | None) -> None:
        """Do nothing: see `mended`."""

    def undo(self, plan: Plan, deadline: float) -> None:  # noqa: ARG002
        """Destroy the plan's MIG devices, and put MIG mode back to what was found.

        What is at their places but was made by others stays.

        Raises:
            DeviceError: NVML refuses.
            TransientError: processes use one; the others were still destroyed.
        """
        if plan.changes.get("restoreMode"):
            (gpu,) = plan.gpus
            self._devices.set_mode(gpu, MigMode.ENABLED)
        failures: list[DriverError] = []
        for slot in _slots(plan):
            try:
                self._destroy(slot, _claim(plan))
            except DriverError as error:
                failures.append(error)
        if failures:
            raise failures[0]
        for gpu in plan.gpus:
            self.tidy(gpu)

    def leftovers(self) -> Mapping[str, Plan]:
        """Return for each claim the plan to destroy all that was made for it."""
        slots: dict[ClaimUid, list[MigSlot]] = {}
        for slot, uid in self._made.owners().items():
            slots.setdefault(uid, []).append(slot)
        return {
            uid: _plan(uid, found, [self._part(slot) for slot in found])
            for uid, found in slots.items()
        }

    # Steps

    def _looked_at(self, device: DeviceRecord, allocated: Allocated, uid: ClaimUid) -> DeviceRecord:
        slot, mig = device.slot, device.mig
        if slot is None or mig is None:
            return device
        owner = self._made.owner(slot)
        found = self._devices.find(slot)
        if device.admin_access:
            return _with_ids(device, _present(device, found))
        if owner is None and isinstance(found, MigDevice):
            return _with_ids(device, found)
        if owner is None and isinstance(found, BareInstance):
            raise DeviceError(
                f'device "{device.name}": GPU instance {found.gpu_instance} is there, which this '
                "driver did not make, but it is no whole MIG device; give it one compute instance "
                "of its full size, or destroy it (nvidia-smi mig)"
            )
        if owner not in (None, uid):
            raise TransientError(
                f'device "{device.name}" still has a MIG device that was made for claim UID {owner}'
            )
        if reason := why_not_partitioned(allocated.gpu):
            raise DeviceError(
                f'device "{device.name}" is not there any more, and cannot be made: {reason}'
            )
        return replace(device, mig=replace(mig, made_here=True))

    def _makings(self, record: ClaimRecord) -> Iterator[Plan]:
        """Yield a plan for each GPU on which MIG devices have to be made."""
        todo: dict[GpuUuid, list[DeviceRecord]] = {}
        for device in record.devices:
            if device.mig is not None and device.mig.made_here:
                todo.setdefault(device.uuid, []).append(device)
        for devices in todo.values():
            slots = [device.slot for device in devices if device.slot is not None]
            yield _plan(record.ref.uid, slots, [device.part for device in devices])

    def _modes(self, record: ClaimRecord, allocated: Mapping[str, Allocated]) -> Iterator[Plan]:
        """Yield a plan for each whole GPU whose MIG mode is in the way."""
        for device in record.devices:
            gpu = allocated[device.name].gpu
            if device.mig is not None or device.admin_access:
                continue
            if gpu.mig_mode is MigMode.ENABLED and not is_whole(gpu):
                raise _wrong_mode(device, gpu)
            if gpu.mig is None or self._devices.mode(gpu.uuid) is not MigMode.ENABLED:
                continue
            changes = {
                "claim": record.ref.uid,
                "modeOff": True,
                # What we turned on ourselves was off before.
                "restoreMode": not self._made.has_mode(gpu.uuid),
            }
            yield Plan(strategy=MIG, gpus=(gpu.uuid,), changes=changes)

    def _filled(self, device: DeviceRecord) -> DeviceRecord:
        if device.mig is None or device.mig.uuid is not None or device.slot is None:
            return device
        return _with_ids(device, _present(device, self._devices.find(device.slot)))

    def _mended(self, device: DeviceRecord, record: ClaimRecord) -> DeviceRecord:
        slot, mig = device.slot, device.mig
        if slot is None or mig is None or device.admin_access:
            return device
        found = self._devices.find(slot)
        if not isinstance(found, MigDevice) and mig.made_here:
            log.warning("mig device made again", claim=str(record.ref), device=device.name)
            self._made.add(slot, record.ref.uid)
            found = self._make(self._partition(slot))
        if not isinstance(found, MigDevice):
            raise DeviceError(
                f'device "{device.name}" ({mig.uuid}) was removed by others on the node; delete '
                "the pod and its claim so that they are scheduled anew"
            )
        if found.uuid != mig.uuid and (not mig.made_here or _is_shared(device, record)):
            raise DeviceError(
                f'device "{device.name}" was replaced by others on the node: it was {mig.uuid} and '
                f"is {found.uuid} now; delete the pod and its claim so that they start anew"
            )
        return _with_ids(device, found)

    def _make(self, partition: Partition) -> MigDevice:
        gpu = partition.parent
        if self._devices.mode(gpu) is not MigMode.ENABLED:
            self._made.note_mode(gpu)
        return self._devices.make(partition)

    def _destroy(self, slot: MigSlot, uid: ClaimUid) -> None:
        if self._made.owner(slot) == uid:
            self._devices.destroy(slot)
            self._made.remove(slot)

    def _partition(self, slot: MigSlot) -> Partition:
        gpu = self._gpu(slot.gpu)
        place = None if gpu is None else partition_named(gpu, slot.profile_id, slot.start)
        if place is None:
            raise TransientError(
                f"{slot.gpu} does not say at this moment that it has MIG profile "
                f"{slot.profile_id} at {slot.start}"
            )
        return place

    def _part(self, slot: MigSlot) -> GpuPart:
        """Return what of a GPU a place takes; all of it while the GPU does not say."""
        gpu = self._gpu(slot.gpu)
        place = None if gpu is None else partition_named(gpu, slot.profile_id, slot.start)
        return GpuPart(gpu=slot.gpu, placement=None if place is None else place.placement)

    def _gpu(self, uuid: GpuUuid) -> Gpu | None:
        gpus = self._inventory.current().gpus
        return next((gpu for gpu in gpus if gpu.uuid == uuid), None)


def mig_device(device: DeviceRecord, gpu: Gpu) -> MigDevice:
    """Return the MIG device of a record, as it was found or made.

    Raises:
        StateError: the record is of a whole GPU, or of a MIG device that is not there yet.
        TransientError: the GPU does not say at this moment which profiles it has.
    """
    mig = device.mig
    if mig is None or mig.uuid is None or mig.gpu_instance is None or mig.compute_instance is None:
        raise StateError(f'the record of device "{device.name}" has no MIG device')
    partition = recorded_partition(gpu, device)
    return MigDevice(
        parent=gpu.uuid,
        profile=partition.profile,
        placement=partition.placement,
        gpu_instance=mig.gpu_instance,
        compute_instance=mig.compute_instance,
        uuid=mig.uuid,
        made_here=mig.made_here,
    )


def mig_record(partition: Partition | None) -> MigRecord | None:
    """Return the record of a place at which nobody has looked yet; None for a whole GPU."""
    if partition is None:
        return None
    return MigRecord(
        profile=partition.profile.name,
        profile_id=partition.profile.id,
        placement=partition.placement,
    )


def _plan(uid: ClaimUid, slots: Sequence[MigSlot], places: Sequence[GpuPart]) -> Plan:
    made = [{"gpu": slot.gpu, "profileID": slot.profile_id, "start": slot.start} for slot in slots]
    return Plan(
        strategy=MIG,
        gpus=tuple(sorted({slot.gpu for slot in slots})),
        changes={"claim": uid, "make": made},
        places=tuple(places),
    )


def _slots(plan: Plan) -> list[MigSlot]:
    entries = plan.changes.get("make", ())
    try:
        return [
            MigSlot(
                gpu=GpuUuid(entry["gpu"]),
                profile_id=int(entry["profileID"]),
                start=int(entry["start"]),
            )
            for entry in entries  # type: ignore[attr-defined]
        ]
    except (KeyError, TypeError, ValueError) as error:
        raise StateError(f"the record's plan for MIG cannot be read: {error!r}") from error


def _claim(plan: Plan) -> ClaimUid:
    return ClaimUid(str(plan.changes.get("claim", "")))


def _is_mode_off(plan: Plan) -> bool:
    return bool(plan.changes.get("modeOff"))


def _is_shared(device: DeviceRecord, record: ClaimRecord) -> bool:
    """Tell whether a strategy's plan names the device by its UUID."""
    return any(plan.strategy != MIG and device.part in plan.parts for plan in record.plans)


def _with_ids(device: DeviceRecord, found: MigDevice) -> DeviceRecord:
    if device.mig is None:
        return device
    return replace(
        device,
        mig=replace(
            device.mig,
            gpu_instance=found.gpu_instance,
            compute_instance=found.compute_instance,
            uuid=found.uuid,
        ),
    )


def _present(device: DeviceRecord, found: MigDevice | BareInstance | None) -> MigDevice:
    if isinstance(found, MigDevice):
        return found
    if device.admin_access:
        raise TransientError(
            f'device "{device.name}" is not there now, and a claim with admin access does not make '
            "it: it can be seen while another claim has it"
        )
    raise TransientError(f'device "{device.name}" is gone again: others destroyed it on the node')


def _wrong_mode(device: DeviceRecord, gpu: Gpu) -> DriverError:
    return DeviceError(
        f'device "{device.name}" is in MIG mode and cannot be used as a whole: ask for a '
        f"MIG device, or have MIG turned off (nvidia-smi -i {gpu.index} -mig 0)"
    )
