"""Makes the devices of a claim exist, before anybody shares them: found, made, unmade, made again.

In: what a claim was allocated. Out: devices as a record has them, and realisations: what is to be
done to GPUs so that these devices exist. They are written down before they are carried out, and
each has its undo. Whole GPUs are there, but may be in the wrong MIG mode; MIG devices are found or
made (claims/prepare/mig.py); of a share it is the device that has to exist. Devices with admin
access are seen, never made, changed or unmade.

Callers hold the GPUs' locks. Realisations of one claim are about different GPUs, and are carried
out side by side.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import assert_never

from msgspec.structs import replace

from dra_driver.claims.model.claim import ClaimUid
from dra_driver.claims.model.devices import (
    DeviceRecord,
    RecordedDevice,
    RecordedGpu,
    RecordedMig,
    RecordedPartition,
    RecordedShare,
    recorded,
    undivided,
)
from dra_driver.claims.model.record import (
    ClaimRecord,
    MakeMigDevices,
    Realisation,
    TurnMigModeOff,
)
from dra_driver.claims.prepare import parallel
from dra_driver.claims.prepare.mig import MigDevices
from dra_driver.claims.state.ownership import Ownership
from dra_driver.devices.kinds import NodeDevice
from dra_driver.devices.mig.making import MigInstances
from dra_driver.devices.mig.partitions import is_whole
from dra_driver.devices.model import Gpu, GpuUuid, MigMode
from dra_driver.errors import DeviceError, DriverError, StateError


class Realiser:
    """Makes devices of this node exist.

    With `switches_modes` MIG mode is turned off for claims of whole GPUs, else only where this
    driver turned it on.
    """

    def __init__(
        self,
        mig: MigDevices,
        hardware: MigInstances,
        ownership: Ownership,
        *,
        switches_modes: bool,
    ) -> None:
        self._mig = mig
        self._hardware = hardware
        self._ownership = ownership
        self._switches_modes = switches_modes

    def find(self, record: ClaimRecord, allocated: Mapping[str, NodeDevice]) -> ClaimRecord:
        """Return a draft with what is there of its devices, and what is to be done for the rest.

        Changes nothing. Raises DeviceError if one is not there and cannot be made, or is not usable
        as it is; TransientError if NVML does not answer now, or what is there is about to go.
        """
        uid = record.ref.uid
        devices = tuple(
            replace(entry, device=self._find(entry, entry.device, allocated, uid))
            for entry in record.devices
        )
        gpus = {one.gpu.uuid: one.gpu for one in allocated.values()}
        todo: list[Realisation] = [*_to_make(devices, gpus), *self._to_turn_off(devices, gpus)]
        return replace(record, devices=devices, realisations=tuple(todo))

    def make(self, record: ClaimRecord) -> ClaimRecord:
        """Carry out a record's realisations; return it with the devices that are there then.

        May be repeated. Raises ConflictError if others have MIG devices on a GPU that is to be used
        as a whole, DeviceError if NVML refuses, TransientError if other instances or processes are
        in the way. Others may have been made.
        """
        uid = record.ref.uid
        done = parallel.all_or_error(record.realisations, lambda todo: self._make(todo, uid))
        made: dict[RecordedDevice, RecordedMig] = {
            place: device for one in done for place, device in one.items()
        }
        devices = tuple(
            replace(entry, device=made.get(entry.device, entry.device)) for entry in record.devices
        )
        return replace(record, devices=devices)

    def unmake(
        self, done: Sequence[Realisation], uid: ClaimUid
    ) -> list[tuple[Realisation, DriverError]]:
        """Take back what was done of a claim's realisations; return what could not be."""
        return parallel.failures(done, lambda one: self._unmake(one, uid))

    def remake(self, record: ClaimRecord) -> ClaimRecord:
        """Return the record of a prepared claim with its devices as they are; lost ones are made.

        Raises DeviceError if one is gone, or a new one cannot take the old one's place;
        TransientError if NVML does not answer now, or there is no room for it now.
        """
        devices = tuple(
            entry
            if entry.admin_access
            else replace(entry, device=self._remake(entry, entry.device, record))
            for entry in record.devices
        )
        return record if devices == record.devices else replace(record, devices=devices)

    def _find(
        self,
        entry: DeviceRecord,
        device: RecordedDevice,
        allocated: Mapping[str, NodeDevice],
        uid: ClaimUid,
    ) -> RecordedDevice:
        """Return what is there now of a device, or what is to be made."""
        gpu = allocated[entry.allocation_id].gpu
        match device:
            case RecordedGpu():
                is_in_mig_mode = gpu.mig_mode is MigMode.ENABLED and not is_whole(gpu)
                if is_in_mig_mode and not entry.admin_access:
                    raise _in_mig_mode(entry, gpu)
                return recorded(gpu)
            case RecordedPartition():
                return self._mig.find(entry, device, gpu, uid)
            case RecordedMig():
                return self._mig.find(entry, device.place, gpu, uid)
            case RecordedShare():
                if isinstance(device.of, RecordedGpu) and gpu.was_put_in_mig_mode:
                    raise DeviceError(
                        f'device "{entry.name}" is in MIG mode, so it has no shares: turn MIG mode '
                        f"off (nvidia-smi -i {gpu.index} -mig 0)"
                    )
                found = self._find(entry, device.of, allocated, uid)
                if isinstance(found, RecordedPartition | RecordedShare):
                    raise DeviceError(
                        f'device "{entry.name}": the MIG device that it is a share of is not there '
                        "any more; delete the pod and its claim so that they are scheduled again"
                    )
                return replace(device, of=found)
            case _:
                assert_never(device)

    def _to_turn_off(
        self, found: Iterable[DeviceRecord], gpus: Mapping[GpuUuid, Gpu]
    ) -> Iterator[TurnMigModeOff]:
        """Yield the GPUs whose MIG mode is in the way of their use as a whole."""
        whole = {
            entry.device.gpu: entry
            for entry in found
            if isinstance(undivided(entry.device), RecordedGpu) and not entry.admin_access
        }
        for uuid, entry in whole.items():
            knows_mig = gpus[uuid].mig is not None
            if knows_mig and self._hardware.mode(uuid) is MigMode.ENABLED:
                # What we turned on ourselves was off before.
                is_ours = self._ownership.turned_on(uuid)
                if not (is_ours or self._switches_modes):
                    raise _in_mig_mode(entry, gpus[uuid])
                yield TurnMigModeOff(gpu=uuid, restore=not is_ours)

    def _make(self, todo: Realisation, uid: ClaimUid) -> Mapping[RecordedPartition, RecordedMig]:
        """Carry one out; return what has been made, by what was to be made."""
        match todo:
            case TurnMigModeOff():
                self._hardware.set_mode(todo.gpu, MigMode.DISABLED)
                self._ownership.forget_mode(todo.gpu)
                return {}
            case MakeMigDevices():
                return self._mig.make(todo, uid)
            case _:
                assert_never(todo)

    def _unmake(self, done: Realisation, uid: ClaimUid) -> None:
        match done:
            case TurnMigModeOff():
                if done.restore:
                    self._hardware.set_mode(done.gpu, MigMode.ENABLED)
            case MakeMigDevices():
                self._mig.unmake(done, uid)
            case _:
                assert_never(done)

    def _remake(
        self, entry: DeviceRecord, device: RecordedDevice, record: ClaimRecord
    ) -> RecordedDevice:
        match device:
            case RecordedGpu():
                return device  # it is there, or the inventory lacks it
            case RecordedPartition():
                raise StateError(f'the record of device "{entry.name}" has no MIG device')
            case RecordedMig():
                return self._mig.remake(entry, device, record)
            case RecordedShare():
                of = self._remake(entry, device.of, record)
                return device if isinstance(of, RecordedShare) else replace(device, of=of)
            case _:
                assert_never(device)


def _to_make(found: Sequence[DeviceRecord], gpus: Iterable[GpuUuid]) -> Iterator[MakeMigDevices]:
    """Yield for each GPU the MIG devices that have to be made on it."""
    for gpu in gpus:
        places = {
            entry.device: None
            for entry in found
            if isinstance(entry.device, RecordedPartition) and entry.device.gpu == gpu
        }
        if places:
            yield MakeMigDevices(gpu=gpu, places=tuple(places))


def _in_mig_mode(entry: DeviceRecord, gpu: Gpu) -> DeviceError:
    return DeviceError(
        f'device "{entry.name}" is in MIG mode and cannot be used as a whole: delete the pod and '
        "its claim so that they are scheduled again, ask for a MIG device, or turn MIG mode off "
        f"(nvidia-smi -i {gpu.index} -mig 0)"
    )
