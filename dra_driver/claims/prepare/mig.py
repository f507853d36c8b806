"""Finds MIG devices of claims where they exist, else makes them for the claim, and destroys them.

What a device or a MIG mode was made for is in the steps of records, which are written before. So
what was half made is undone (dra-driver-nvidia-gpu#1452), after a crash, too; no device of others
is destroyed; a mode turned on here is turned off when the last device made here is gone.

Callers hold the GPUs' locks.
"""

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
    TurnMigModeOn,
)
from dra_driver.claims.state.ledger import Ledger
from dra_driver.devices.device import Device, Mig, mig_of
from dra_driver.devices.mig.making import MigInstances
from dra_driver.devices.mig.partitions import why_not_partitioned
from dra_driver.devices.mig.refusals import Refusals
from dra_driver.devices.model import (
    BareInstance,
    Gpu,
    GpuUuid,
    Instance,
    MigDevice,
    MigMode,
)
from dra_driver.errors import (
    BarredError,
    ConflictError,
    DeviceError,
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
        ledger: Ledger,
        switches: Refusals,
        *,
        switches_modes: bool,
    ) -> None:
        self._hardware = hardware
        self._ledger = ledger
        self._switches = switches
        self.switches_modes = switches_modes

    def is_on(self, gpu: GpuUuid) -> bool:
        """Tell whether a GPU is in MIG mode now."""
        return self._hardware.mode(gpu) is MigMode.ENABLED

    def turned_on(self, gpu: GpuUuid) -> bool:
        """Tell whether this driver turned its MIG mode on."""
        return bool(self._ledger.turned_on(gpu))

    def find(self, entry: DeviceRecord, place: Mig, gpu: Gpu, uid: ClaimUid) -> Mig:
        """Return the MIG device that exists, or the place where one is to be made."""
        owners = self._ledger.made(gpu.uuid).get(place.slot)
        instance = self._hardware.find(place.slot)
        if entry.admin_access:
            return mig_of(_present(entry, instance))
        if not owners and isinstance(instance, MigDevice):
            return mig_of(instance)
        if not owners and isinstance(instance, BareInstance):
            raise DeviceError(
                f'device "{entry.name}": GPU instance {instance.gpu_instance} is there, which this '
                "driver did not make, but it is not a whole MIG device; give it one compute "
                "instance of its full size, or destroy it (nvidia-smi mig)"
            )
        if owners and uid not in owners:
            raise TransientError(
                f'device "{entry.name}" still has a MIG device that was made for claim UID '
                f"{min(owners)}; it is destroyed once that claim is unprepared"
            )
        if reason := why_not_partitioned(gpu):
            raise DeviceError(
                f'device "{entry.name}" is not there any more, and cannot be made: {reason}'
            )
        self._check_mode(gpu.uuid)
        return place

    def needs_mode(self, gpu: GpuUuid) -> bool:
        """Tell whether making a device on a GPU takes a step that turns its MIG mode on.

        It does if the mode is off, and if this driver turned it on, and so will turn it off.
        """
        return self.turned_on(gpu) or not self.is_on(gpu)

    def do(self, step: MigStep) -> tuple[Mig, ...]:
        """Make MIG devices and return them, or turn MIG mode on or off.

        May be repeated. Raises ConflictError if others have MIG devices on a GPU that is to be used
        as a whole, DeviceError if NVML refuses, TransientError if other instances or processes are
        in the way. Some of the devices may have been made then.
        """
        try:
            match step:
                case TurnMigModeOn():
                    self._hardware.set_mode(step.gpu, MigMode.ENABLED)
                case MakeMigDevices():
                    made = tuple(self._hardware.make(place) for place in step.places)
                    self._switches.switched(step.gpu)
                    return made
                case TurnMigModeOff():
                    self._hardware.set_mode(step.gpu, MigMode.DISABLED)
                case _:
                    assert_never(step)
        except (HeldError, BarredError) as error:
            if not isinstance(step, TurnMigModeOff):
                for place in step.places:
                    self._switches.refused(place.slot, step.claim, error)
            raise
        return ()

    def undo(self, step: MigStep) -> None:
        """Destroy MIG devices that were made for the claim, and restore MIG mode.

        A device that was made for several claims stays until the last of them ends, and so does the
        mode that is on for them. If one device cannot be destroyed, the others still are.
        """
        match step:
            case MakeMigDevices():
                owners = self._ledger.made(step.gpu)
                slots = [place.slot for place in step.places]
                last = [slot for slot in slots if not owners.get(slot, set()) - {step.claim}]
                try_all(partial(self._hardware.destroy, slot) for slot in last)
            case TurnMigModeOn():
                if self._ledger.turned_on(step.gpu).get(step.gpu, set()) - {step.claim}:
                    return
                if any(map(self._hardware.find, self._ledger.made(step.gpu))):
                    raise TransientError("MIG devices that were made for claims are still there")
                try:
                    self._hardware.set_mode(step.gpu, MigMode.DISABLED)
                except ConflictError as error:
                    log.info("mig mode left on", gpu=step.gpu, reason=str(error))
            case TurnMigModeOff():
                if step.restore:
                    self._hardware.set_mode(step.gpu, MigMode.ENABLED)
            case _:
                assert_never(step)

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
            if not self._check_mode(mig.gpu):
                self._hardware.set_mode(mig.gpu, MigMode.ENABLED)
            now: Mig | None = self._hardware.make(mig)
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

    def _check_mode(self, gpu: GpuUuid) -> bool:
        """Tell whether a GPU is in MIG mode. Raises DeviceError if it is off and stays off."""
        if self.is_on(gpu):
            return True
        if not self.switches_modes:
            raise DeviceError(
                f"{gpu} is not in MIG mode, so no MIG device can be made on it: MIG mode"
                " was turned off after the claim was allocated, and this driver turns it on only"
                f" with --mig on-demand. Turn it on again (nvidia-smi -i {gpu} -mig 1), or"
                " delete the pod and its claim so that they are scheduled again"
            )
        return False


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
