"""Makes the devices of a claim exist, before anybody shares them: found, made, unmade, mended.

In: what a claim was allocated. Out: devices as a record has them, and realisations: what is to be
done to GPUs so that these devices exist. They are written down before they are carried out, and
each has its undo. There is one `Realiser` for each way in which devices come to be: a whole GPU is
there, but may be in the wrong MIG mode; MIG devices are found or made (claims/prepare/mig.py).
Devices with admin access are seen, never made, changed or unmade. Of a share it is the device that
has to exist.

Callers hold the GPUs' locks. Realisations of one claim are about different GPUs, and are carried
out side by side.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Protocol, TypeVar, assert_never

from dra_driver.claims.model.claim import ClaimUid
from dra_driver.claims.model.devices import (
    DeviceRecord,
    RecordedDevice,
    RecordedGpu,
    RecordedMig,
    RecordedPartition,
    RecordedShare,
    recorded,
)
from dra_driver.claims.model.record import (
    ClaimRecord,
    MakeMigDevices,
    Realisation,
    TurnMigModeOff,
)
from dra_driver.claims.prepare import parallel
from dra_driver.claims.prepare.mig import MigDevices, MigHardware
from dra_driver.claims.state.ownership import Ownership
from dra_driver.devices.kinds import NodeDevice
from dra_driver.devices.mig.partitions import is_whole
from dra_driver.devices.model import Gpu, GpuUuid, MigMode
from dra_driver.errors import DeviceError

W = TypeVar("W", bound=Realisation)


class Realiser(Protocol[W]):
    """Makes devices exist in one way, of which `W` is what there is to do."""

    def find(self, entry: DeviceRecord, allocated: NodeDevice, uid: ClaimUid) -> RecordedDevice:
        """Return what is there now of a device, or what is to be made. Changes nothing.

        Raises:
            DeviceError: it is not there and cannot be made, or is not usable as it is.
            TransientError: NVML does not answer now, or something is there that is about to go.
        """
        ...

    def todo(self, found: Sequence[DeviceRecord], gpus: Mapping[GpuUuid, Gpu]) -> Iterator[W]:
        """Yield what is to be done so that these devices exist; nothing for those that do.

        Raises:
            DeviceError: it must not be done.
        """
        ...

    def make(self, todo: W, uid: ClaimUid) -> Mapping[RecordedPartition, RecordedMig]:
        """Carry it out; return what has been made, by what was to be made. May be repeated.

        Raises:
            ConflictError: others have MIG devices on a GPU that is to be used as a whole.
            DeviceError: NVML refuses.
            TransientError: other instances or processes are in the way.
        """
        ...

    def unmake(self, done: W, uid: ClaimUid) -> None:
        """Take back whatever of it has been done. May be repeated.

        Raises:
            DeviceError: NVML refuses.
            TransientError: processes use a device.
        """
        ...

    def mend(self, entry: DeviceRecord, record: ClaimRecord) -> RecordedDevice:
        """Return a device of a prepared claim as it is now, making it again if it was lost.

        Raises:
            DeviceError: it is gone, or a new one cannot take the old one's place.
            TransientError: NVML does not answer now, or there is no room for it now.
        """
        ...


class WholeGpus:
    """Whole GPUs: always there, but MIG mode has to be off.

    With `switches_modes` it is turned off for claims, else only where this driver turned it on.
    """

    def __init__(
        self, hardware: MigHardware, ownership: Ownership, *, switches_modes: bool
    ) -> None:
        self._hardware = hardware
        self._ownership = ownership
        self._switches_modes = switches_modes

    def find(self, entry: DeviceRecord, allocated: NodeDevice, uid: ClaimUid) -> RecordedDevice:  # noqa: ARG002 (a Realiser)
        """Return the GPU.

        Raises:
            DeviceError: it is in MIG mode and stays so.
        """
        gpu = allocated.gpu
        if not entry.admin_access and gpu.mig_mode is MigMode.ENABLED and not is_whole(gpu):
            raise _in_mig_mode(entry, gpu)
        return recorded(gpu)

    def todo(
        self, found: Sequence[DeviceRecord], gpus: Mapping[GpuUuid, Gpu]
    ) -> Iterator[TurnMigModeOff]:
        """Yield the GPUs whose MIG mode is in the way."""
        for uuid, entry in {one.device.gpu: one for one in found if not one.admin_access}.items():
            knows_mig = gpus[uuid].mig is not None
            if knows_mig and self._hardware.mode(uuid) is MigMode.ENABLED:
                # What we turned on ourselves was off before.
                is_ours = self._ownership.turned_on(uuid)
                if not (is_ours or self._switches_modes):
                    raise _in_mig_mode(entry, gpus[uuid])
                yield TurnMigModeOff(gpu=uuid, restore=not is_ours)

    def make(
        self,
        todo: TurnMigModeOff,
        uid: ClaimUid,  # noqa: ARG002 (a Realiser)
    ) -> Mapping[RecordedPartition, RecordedMig]:
        """Turn MIG mode off."""
        self._hardware.set_mode(todo.gpu, MigMode.DISABLED)
        self._ownership.forget_mode(todo.gpu)
        return {}

    def unmake(self, done: TurnMigModeOff, uid: ClaimUid) -> None:  # noqa: ARG002 (a Realiser)
        """Turn MIG mode on again, where others had turned it on."""
        if done.restore:
            self._hardware.set_mode(done.gpu, MigMode.ENABLED)

    def mend(self, entry: DeviceRecord, record: ClaimRecord) -> RecordedDevice:  # noqa: ARG002 (a Realiser)
        """Return the device as it is recorded: a GPU is there, or the inventory lacks it."""
        return entry.device


def _in_mig_mode(entry: DeviceRecord, gpu: Gpu) -> DeviceError:
    return DeviceError(
        f'device "{entry.name}" is in MIG mode and cannot be used as a whole: delete the pod and '
        "its claim so that they are scheduled again, ask for a MIG device, or have MIG turned off "
        f"(nvidia-smi -i {gpu.index} -mig 0)"
    )


class Realisers:
    """Every way in which devices of this node come to be."""

    def __init__(self, whole: WholeGpus, mig: MigDevices) -> None:
        self._whole: Realiser[TurnMigModeOff] = whole
        self._mig: Realiser[MakeMigDevices] = mig

    def find(self, record: ClaimRecord, allocated: Mapping[str, NodeDevice]) -> ClaimRecord:
        """Return a draft with what is there of its devices, and what is to be done for the rest.

        Raises:
            DeviceError, TransientError: as `Realiser.find`, for one of the devices.
        """
        uid = record.ref.uid
        devices = tuple(
            replace(entry, device=self._find(entry, allocated[entry.allocation_id], uid))
            for entry in record.devices
        )
        gpus = {one.gpu.uuid: one.gpu for one in allocated.values()}
        return replace(record, devices=devices, realisations=tuple(self._todo(devices, gpus)))

    def make(self, record: ClaimRecord) -> ClaimRecord:
        """Carry out a record's realisations; return it with the devices that are there then.

        Raises:
            ConflictError, DeviceError, TransientError: one could not be; others may have been.
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

    def unmake(self, done: Realisation, uid: ClaimUid) -> None:
        """Take back whatever of a claim's realisation has been done.

        Raises:
            DeviceError: NVML refuses.
            TransientError: processes use a device.
        """
        match done:
            case TurnMigModeOff():
                self._whole.unmake(done, uid)
            case MakeMigDevices():
                self._mig.unmake(done, uid)
            case _:
                assert_never(done)

    def mend(self, record: ClaimRecord) -> ClaimRecord:
        """Return the record of a prepared claim whose devices are there; lost ones are made.

        Raises:
            DeviceError, TransientError: one cannot be.
        """
        devices = tuple(
            entry if entry.admin_access else replace(entry, device=self._mend(entry, record))
            for entry in record.devices
        )
        return record if devices == record.devices else replace(record, devices=devices)

    def _find(self, entry: DeviceRecord, allocated: NodeDevice, uid: ClaimUid) -> RecordedDevice:
        device = entry.device
        if not isinstance(device, RecordedShare):
            return self._of(device).find(entry, allocated, uid)
        if isinstance(device.of, RecordedGpu) and allocated.gpu.was_put_in_mig_mode:
            raise DeviceError(
                f'device "{entry.name}" is in MIG mode, so that it has no shares: have MIG turned '
                f"off (nvidia-smi -i {allocated.gpu.index} -mig 0)"
            )
        found = self._of(device.of).find(replace(entry, device=device.of), allocated, uid)
        if isinstance(found, RecordedPartition | RecordedShare):
            raise DeviceError(
                f'device "{entry.name}": the MIG device that it is a share of is not there any '
                "more; delete the pod and its claim so that they are scheduled again"
            )
        return replace(device, of=found)

    def _mend(self, entry: DeviceRecord, record: ClaimRecord) -> RecordedDevice:
        device = entry.device
        if not isinstance(device, RecordedShare):
            return self._of(device).mend(entry, record)
        of = self._of(device.of).mend(replace(entry, device=device.of), record)
        return device if isinstance(of, RecordedShare) else replace(device, of=of)

    def _of(self, device: RecordedDevice) -> Realiser[TurnMigModeOff] | Realiser[MakeMigDevices]:
        match device:
            case RecordedGpu():
                return self._whole
            case RecordedMig() | RecordedPartition():
                return self._mig
            case RecordedShare():
                return self._of(device.of)
            case _:
                assert_never(device)

    def _todo(
        self, devices: Iterable[DeviceRecord], gpus: Mapping[GpuUuid, Gpu]
    ) -> Iterator[Realisation]:
        for realiser in (self._mig, self._whole):
            mine = [_undivided(entry) for entry in devices if self._of(entry.device) is realiser]
            yield from realiser.todo(mine, gpus)

    def _make(self, todo: Realisation, uid: ClaimUid) -> Mapping[RecordedPartition, RecordedMig]:
        match todo:
            case TurnMigModeOff():
                return self._whole.make(todo, uid)
            case MakeMigDevices():
                return self._mig.make(todo, uid)
            case _:
                assert_never(todo)


def _undivided(entry: DeviceRecord) -> DeviceRecord:
    """Return the entry with the device itself in place of a share of it."""
    device = entry.device
    return replace(entry, device=device.of) if isinstance(device, RecordedShare) else entry
