"""Finds MIG devices of claims where they exist, else makes them for the claim, and destroys them.

A device is noted (claims/state/ownership.py) before it is made, so that after a crash no device of
others is destroyed. MIG mode that was turned on here is turned off after the last device made here
is gone.

Callers hold the GPUs' locks, except to list.
"""

from collections.abc import Mapping
from functools import partial
from typing import assert_never

import structlog
from msgspec.structs import replace

from dra_driver.claims.model.claim import ClaimUid
from dra_driver.claims.model.record import (
    ClaimRecord,
    DeviceRecord,
    MakeMigDevices,
    MigStep,
    TurnMigModeOff,
)
from dra_driver.claims.state.holdings import Holdings
from dra_driver.devices.device import Device, Mig, Whole, mig_of, overlap
from dra_driver.devices.mig.making import MigInstances
from dra_driver.devices.mig.partitions import partition_named, why_not_partitioned
from dra_driver.devices.mig.refusals import Refusals
from dra_driver.devices.model import (
    BareInstance,
    Gpu,
    GpuUuid,
    Instance,
    InventorySource,
    MigDevice,
    MigMode,
    MigSlot,
)
from dra_driver.errors import (
    BarredError,
    ConflictError,
    DeviceError,
    DriverError,
    HeldError,
    StateError,
    TransientError,
    try_all,
)

log = structlog.get_logger()


class MigDevices:
    """The MIG devices of this node's claims.

    `switches` records which GPUs were switched to MIG mode, or could not be, and for which claim.
    `switches_modes` says whether MIG mode may be turned on for a claim, and turned off even if
    others turned it on.
    """

    def __init__(
        self,
        hardware: MigInstances,
        holdings: Holdings,
        inventory: InventorySource,
        switches: Refusals,
        *,
        switches_modes: bool,
    ) -> None:
        self._hardware = hardware
        self._holdings = holdings
        self._ownership = holdings.ownership
        self._inventory = inventory
        self._switches = switches
        self.switches_modes = switches_modes
        self._left_on: dict[GpuUuid, str] = {}
        """The last logged reason why each GPU's mode could not be turned off."""

    def is_on(self, gpu: GpuUuid) -> bool:
        """Tell whether a GPU is in MIG mode now."""
        return self._hardware.mode(gpu) is MigMode.ENABLED

    def turned_on(self, gpu: GpuUuid) -> bool:
        """Tell whether this driver turned its MIG mode on."""
        return self._ownership.turned_on(gpu)

    def find(self, entry: DeviceRecord, place: Mig, gpu: Gpu, uid: ClaimUid) -> Mig:
        """Return the MIG device that exists, or the place where one is to be made."""
        owner = self._ownership.maker(place.slot)
        instance = self._hardware.find(place.slot)
        if entry.admin_access:
            return mig_of(_present(entry, instance))
        if owner is None and isinstance(instance, MigDevice):
            return mig_of(instance)
        if owner is None and isinstance(instance, BareInstance):
            raise DeviceError(
                f'device "{entry.name}": GPU instance {instance.gpu_instance} is there, which this '
                "driver did not make, but it is not a whole MIG device; give it one compute "
                "instance of its full size, or destroy it (nvidia-smi mig)"
            )
        if owner not in (None, uid):
            raise TransientError(
                f'device "{entry.name}" still has a MIG device that was made for claim UID {owner}'
            )
        if reason := why_not_partitioned(gpu):
            raise DeviceError(
                f'device "{entry.name}" is not there any more, and cannot be made: {reason}'
            )
        self._check_mode(place.slot)
        return place

    def do(self, step: MigStep) -> tuple[Mig, ...]:
        """Make MIG devices and return them, with MIG mode on; or turn MIG mode off.

        May be repeated. Raises ConflictError if others have MIG devices on a GPU that is to be used
        as a whole, DeviceError if NVML refuses, TransientError if other instances or processes are
        in the way. Some of the devices may have been made then.
        """
        match step:
            case MakeMigDevices():
                return tuple(self._make(place.slot, step.claim) for place in step.places)
            case TurnMigModeOff():
                self._hardware.set_mode(step.gpu, MigMode.DISABLED)
                self._ownership.forget_mode(step.gpu)
                return ()
            case _:
                assert_never(step)

    def undo(self, step: MigStep) -> None:
        """Destroy MIG devices that were made for the claim, and restore MIG mode.

        Devices at their places that others made stay. A device of which another claim has a share
        stays until that claim ends. If one cannot be destroyed, the others still are.
        """
        match step:
            case MakeMigDevices():
                try_all(partial(self._unmake, place.slot, step.claim) for place in step.places)
                self.tidy(step.gpu)
            case TurnMigModeOff():
                if step.restore:
                    self._hardware.set_mode(step.gpu, MigMode.ENABLED)
            case _:
                assert_never(step)

    def _unmake(self, slot: MigSlot, uid: ClaimUid) -> None:
        heir = self._holdings.heir(slot, uid)
        if heir is None:
            self._destroy(slot, uid)
        elif self._ownership.maker(slot) == uid:
            self._ownership.note(slot, heir)

    def remake(self, entry: DeviceRecord, mig: Mig, record: ClaimRecord) -> Mig:
        """Return the MIG device as it is now, made again if this driver made it and it is lost.

        A MIG device cannot be removed while processes use it, so a claim whose device is gone has
        ended.
        """
        if mig.instance is None:
            raise StateError(f'the record of device "{entry.name}" has no MIG device')
        former, instance = mig.instance, self._hardware.find(mig.slot)
        if not isinstance(instance, MigDevice) and former.made_here:
            log.warning("mig device made again", claim=str(record.ref), device=entry.name)
            now: Mig | None = self._make(mig.slot, record.ref.uid)
        elif isinstance(instance, MigDevice):
            now = mig_of(replace(instance, made_here=former.made_here))
        else:
            now = None
        if now is None or now.instance is None:
            raise DeviceError(
                f'device "{entry.name}" ({former.uuid}) was removed by others on the node; delete '
                "the pod and its claim so that they are scheduled again"
            )
        if now.instance.uuid != former.uuid and (
            not former.made_here or _is_shared(entry.device, record)
        ):
            raise DeviceError(
                f'device "{entry.name}" was replaced by others on the node: it was {former.uuid} '
                f"and is {now.instance.uuid} now; delete the pod and its claim so that they start "
                "again"
            )
        return now

    def given_up(self, uid: ClaimUid) -> None:
        """Forget that the claim waits for MIG devices, because its pods have ended."""
        self._switches.given_up(uid)

    # What claims have left behind

    def make_room(self, wanted: ClaimRecord) -> None:
        """Destroy what was made for claims without a record at places that a record wants.

        Raises as `take_away` does.
        """
        orphans = {
            slot: uid
            for gpu in {device.gpu for device in wanted.held}
            for slot, uid in self._ownership.made(gpu).items()
            if uid != wanted.ref.uid
            and overlap([self._there(slot)], wanted.held)
            and self._holdings.records.peek(uid) is None
        }
        if orphans:
            self.take_away(orphans)

    def take_away(self, orphans: Mapping[MigSlot, ClaimUid]) -> None:
        """Destroy MIG devices that were made here for claims that no longer have a record.

        All are tried before the first DeviceError or TransientError is raised.
        """
        for slot, uid in orphans.items():
            log.warning("mig device without a claim removed", gpu=slot.gpu, claim_uid=uid)
        try_all(partial(self._destroy, slot, uid) for slot, uid in orphans.items())

    def tidy(self, gpu: GpuUuid) -> bool:
        """Turn MIG mode off if it was turned on here and nothing made here is left on the GPU.

        A failure blocks nothing and is tried again later. Returns whether nothing is left to do.
        """
        if not self._ownership.turned_on(gpu) or self._ownership.made(gpu):
            return True
        try:
            self._hardware.set_mode(gpu, MigMode.DISABLED)
        except ConflictError:
            log.info("mig mode left on", gpu=gpu, reason="MIG devices of others are on the GPU")
        except DriverError as error:
            # The processes that have it open change from try to try.
            kind = type(error).__name__ if isinstance(error, HeldError) else str(error)
            if self._left_on.get(gpu) != kind:
                log.warning("mig mode not turned off yet", gpu=gpu, reason=str(error))
            self._left_on[gpu] = kind
            return False
        self._left_on.pop(gpu, None)
        self._ownership.forget_mode(gpu)
        return True

    # Steps

    def _make(self, slot: MigSlot, uid: ClaimUid) -> Mig:
        self._ownership.note(slot, uid)
        place = self._place(slot)
        if place is None:
            raise TransientError(
                f"{slot.gpu} does not report now that it has MIG profile "
                f"{slot.profile_id} at {slot.start}"
            )
        if not self._check_mode(slot):
            self._ownership.note_mode(slot.gpu)
        try:
            made = self._hardware.make(place)
        except (HeldError, BarredError) as error:
            self._switches.refused(slot, uid, error)
            raise
        self._switches.switched(slot.gpu)
        return made

    def _check_mode(self, slot: MigSlot) -> bool:
        """Tell whether a GPU is in MIG mode. Raises DeviceError if it is off and stays off."""
        if self.is_on(slot.gpu):
            return True
        if not self.switches_modes:
            raise DeviceError(
                f"{slot.gpu} is not in MIG mode, so no MIG device can be made on it: MIG mode"
                " was turned off after the claim was allocated, and this driver turns it on only"
                f" with --mig on-demand. Turn it on again (nvidia-smi -i {slot.gpu} -mig 1), or"
                " delete the pod and its claim so that they are scheduled again"
            )
        return False

    def _destroy(self, slot: MigSlot, uid: ClaimUid) -> None:
        if self._ownership.maker(slot) == uid:
            self._hardware.destroy(slot)
            self._ownership.forget(slot)

    def _there(self, slot: MigSlot) -> Device:
        """Return the part of a GPU that a place takes; all of it if the GPU does not say."""
        return Device(base=self._place(slot) or Whole(gpu=slot.gpu))

    def _place(self, slot: MigSlot) -> Mig | None:
        gpus = self._inventory.current().gpus
        gpu = next((known for known in gpus if known.uuid == slot.gpu), None)
        return None if gpu is None else partition_named(gpu, slot.profile_id, slot.start)


def _present(entry: DeviceRecord, instance: Instance | None) -> MigDevice:
    if isinstance(instance, MigDevice):
        return instance
    raise TransientError(
        f'device "{entry.name}" is not there now, and a claim with admin access does not make '
        "it: it can be seen while another claim has it"
    )


def _is_shared(device: Device, record: ClaimRecord) -> bool:
    """Tell whether a sharing step names the device by its UUID."""
    steps = (step for step in record.steps if not isinstance(step, MigStep))
    return any(step.is_about(device) for step in steps)
