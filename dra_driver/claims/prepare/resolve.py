"""Finds the devices of a claim, and plans the steps that make those that do not exist yet.

In: what a claim was allocated, or its record. Out: its devices with the instances that exist, and
the steps that make the others. Whole GPUs exist, but may be in the wrong MIG mode; MIG devices are
found or made (claims/prepare/mig.py); for a share, the device it is part of has to exist. Devices
with admin access are never made, changed or destroyed. Callers hold the GPUs' locks.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import assert_never

from msgspec.structs import replace

from dra_driver.claims.model.claim import ClaimUid
from dra_driver.claims.model.record import (
    ClaimRecord,
    DeviceRecord,
    MakeMigDevices,
    TurnMigModeOff,
    TurnMigModeOn,
)
from dra_driver.claims.prepare.mig import MigDevices
from dra_driver.devices.device import Base, Device, Mig, Vfio, Whole, place_of
from dra_driver.devices.mig.partitions import is_whole
from dra_driver.devices.model import Gpu, GpuUuid, MigMode
from dra_driver.errors import DeviceError


def resolve(mig: MigDevices, draft: ClaimRecord, gpus: Mapping[GpuUuid, Gpu]) -> ClaimRecord:
    """Return a draft with the devices that exist, and the steps that make the rest.

    Changes nothing. Raises DeviceError if a device is missing and cannot be made, or cannot be used
    as it is; TransientError if NVML does not answer now, or what is there is about to go.
    """
    uid = draft.ref.uid
    devices = tuple(
        _with_base(entry, _found(mig, entry, gpus[entry.device.gpu], uid))
        for entry in draft.devices
    )
    steps = (*_to_make(mig, devices, gpus, uid), *_to_turn_off(mig, devices, gpus))
    return replace(draft, devices=devices, steps=steps)


def remake(mig: MigDevices, record: ClaimRecord) -> ClaimRecord:
    """Return the record of a prepared claim with its present devices; lost ones are made again.

    Raises DeviceError if a device is gone, or a new one cannot replace it; TransientError if NVML
    does not answer now, or there is no room for the device now.
    """
    devices = tuple(
        entry if entry.admin_access else _with_base(entry, _remade(mig, entry, record))
        for entry in record.devices
    )
    return record if devices == record.devices else replace(record, devices=devices)


def _found(mig: MigDevices, entry: DeviceRecord, gpu: Gpu, uid: ClaimUid) -> Base:
    """Return the device that exists now, or the place where one is to be made."""
    device = entry.device
    match device.base:
        case Whole():
            if device.share is not None and gpu.was_put_in_mig_mode:
                raise DeviceError(
                    f'device "{entry.name}" is in MIG mode, so it has no shares: turn MIG mode '
                    f"off (nvidia-smi -i {gpu.index} -mig 0)"
                )
            is_in_mig_mode = gpu.mig_mode is MigMode.ENABLED and not is_whole(gpu)
            if is_in_mig_mode and not entry.admin_access:
                raise _in_mig_mode(entry, gpu)
            return device.base
        case Mig():
            mig_device = mig.find(entry, device.base, gpu, uid)
            if device.share is not None and mig_device.instance is None:
                raise DeviceError(
                    f'device "{entry.name}": the MIG device that it is a share of is not there '
                    "any more; delete the pod and its claim so that they are scheduled again"
                )
            return mig_device
        case Vfio():
            if entry.admin_access:
                raise DeviceError(
                    f'device "{entry.name}" is for virtual machines, and there is nothing that a '
                    "claim with admin access could see of it; ask for the GPU itself"
                )
            return device.base
        case _:
            assert_never(device.base)


def _to_turn_off(
    mig: MigDevices, entries: Iterable[DeviceRecord], gpus: Mapping[GpuUuid, Gpu]
) -> Iterator[TurnMigModeOff]:
    """Yield a step for each GPU that is to be used as a whole and is in MIG mode."""
    whole = {
        entry.device.base: entry
        for entry in entries
        if isinstance(entry.device.base, Whole) and not entry.admin_access
    }
    for base, entry in whole.items():
        gpu = gpus[base.gpu]
        if gpu.mig is not None and mig.is_on(gpu.uuid):
            # If this driver turned the mode on, it was off before, and undo leaves it off.
            is_ours = mig.turned_on(gpu.uuid)
            if not (is_ours or mig.switches_modes):
                raise _in_mig_mode(entry, gpu)
            yield TurnMigModeOff(devices=(Device(base=base),), restore=not is_ours)


def _remade(mig: MigDevices, entry: DeviceRecord, record: ClaimRecord) -> Base:
    base = entry.device.base
    match base:
        case Whole() | Vfio():
            return base  # otherwise the inventory would not have it
        case Mig():
            return mig.remake(entry, base, record)
        case _:
            assert_never(base)


def _with_base(entry: DeviceRecord, base: Base) -> DeviceRecord:
    if base is entry.device.base:
        return entry
    return replace(entry, device=replace(entry.device, base=base))


def _to_make(
    mig: MigDevices, entries: Sequence[DeviceRecord], gpus: Iterable[GpuUuid], uid: ClaimUid
) -> Iterator[TurnMigModeOn | MakeMigDevices]:
    """Yield the steps for each GPU on which MIG devices have to be made."""
    for gpu in gpus:
        places = {
            place_of(entry.device.base): None
            for entry in entries
            if not entry.device.exists and entry.device.gpu == gpu
        }
        if places:
            devices = tuple(Device(base=place) for place in places)
            if mig.needs_mode(gpu):
                yield TurnMigModeOn(devices=devices, claim=uid)
            yield MakeMigDevices(devices=devices, claim=uid)


def _in_mig_mode(entry: DeviceRecord, gpu: Gpu) -> DeviceError:
    return DeviceError(
        f'device "{entry.name}" is in MIG mode and cannot be used as a whole: delete the pod and '
        "its claim so that they are scheduled again, ask for a MIG device, or turn MIG mode off "
        f"(nvidia-smi -i {gpu.index} -mig 0)"
    )
