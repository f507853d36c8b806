"""MIG on a simulated machine from outside: instances made by hand, and processes on them.

In: an open state and, where instances come or go, the machine's own NVML library, whose tools do
the same as `nvidia-smi mig`, under the same lock and by the same rules as NVML's calls, but without
injected faults. Out: the existing MIG devices.
"""

import ctypes
import os
from collections.abc import Iterator
from pathlib import Path

from msgspec import Struct

from dra_driver.errors import SetupError
from dra_driver.simulator import layout
from dra_driver.simulator.layout import NOT_A_MIG_INSTANCE, ProcessKind
from dra_driver.simulator.profile import Card, MigProfile
from dra_driver.simulator.state import State

_SUCCESS, _RESET_REQUIRED, _IN_USE = 0, 16, 19
_REASONS = {
    2: "the profile cannot be placed there",
    3: "its MIG mode is off, or it has none",
    4: "the state file cannot be written",
    18: "the machine was made by another version of the simulator",
    _IN_USE: "a process holds the instance",
    23: "the place or the engines it needs are taken",
}


class SimulatedMig(Struct, frozen=True, kw_only=True):
    """One MIG device. `start` and `size` are in the GPU's memory slices, `index` is NVML's."""

    uuid: str
    index: int
    gpu_instance: int
    compute_instance: int
    profile: str
    profile_id: int
    start: int
    size: int


class Holder(Struct, frozen=True, kw_only=True):
    """A process on a GPU, or on a MIG device (else both instances are None). Memory in bytes.

    `graphics`: it draws, as a display server does; the others compute.
    """

    pid: int
    slot: int
    gpu_instance: int | None
    compute_instance: int | None
    memory: int
    graphics: bool = False


class _Made(ctypes.Structure):
    """The result of nvmlSimulatorCreateMig."""

    _fields_ = (
        ("slot", ctypes.c_uint),
        ("gpu_instance", ctypes.c_uint),
        ("compute_instance", ctypes.c_uint),
    )
    gpu_instance: int
    compute_instance: int


def devices(state: State, slot: int) -> list[SimulatedMig]:
    """Return a GPU's MIG devices by index."""
    with state.locked() as record:
        return sorted(_devices(record.gpus[slot]), key=lambda device: device.index)


def _devices(gpu: layout.GpuRecord) -> Iterator[SimulatedMig]:
    for number, instance in enumerate(gpu.instances):
        if not instance.present:
            continue
        profile = gpu.mig_profiles[instance.profile]
        for compute_number, compute in enumerate(instance.compute):
            if compute.present:
                yield SimulatedMig(
                    uuid=bytes(compute.uuid).decode(),
                    index=compute.mig_index,
                    gpu_instance=number,
                    compute_instance=compute_number,
                    profile=bytes(profile.name).decode(),
                    profile_id=profile.id,
                    start=instance.start,
                    size=instance.size,
                )


def find(state: State, uuid: str) -> tuple[int, SimulatedMig]:
    """Return the slot of the GPU that has a MIG device, and the device.

    Raises SetupError if there is no such MIG device.
    """
    known = []
    for slot in state.slots:
        for device in devices(state, slot):
            if device.uuid.lower() == uuid.lower():
                return slot, device
            known.append(device.uuid)
    raise SetupError(f"no MIG device is {uuid!r}; there are {', '.join(known) or 'none'}")


def profile_of(card: Card, wanted: str | int) -> MigProfile:
    """Return a card's profile by name (1g.10gb) or id (19).

    Raises SetupError if the card has no such profile.
    """
    profiles = card.mig.profiles if card.mig else []
    for profile in profiles:
        if str(wanted) in {profile.name, str(profile.id)}:
            return profile
    known = ", ".join(f"{profile.name} ({profile.id})" for profile in profiles)
    raise SetupError(f"{card.name} has no MIG profile {wanted!r}; it has {known or 'none'}")


def create(library: Path, state: State, slot: int, profile: MigProfile, start: int | None) -> str:
    """Make a GPU instance with a compute instance that fills it; return the MIG device's UUID.

    Raises SetupError with the reason if it cannot be made.
    """
    made = _Made()
    place = ctypes.c_int(-1 if start is None else start)
    code = _tools(library).nvmlSimulatorCreateMig(
        _path(state), ctypes.c_uint(slot), ctypes.c_uint(profile.id), place, ctypes.byref(made)
    )
    where = "" if start is None else f" at {start}"
    _check(code, f"cannot make {profile.name}{where}")
    for device in devices(state, slot):
        if (device.gpu_instance, device.compute_instance) == (
            made.gpu_instance,
            made.compute_instance,
        ):
            return device.uuid
    raise SetupError(f"{profile.name}{where} was made and destroyed again by another process")


def destroy(library: Path, state: State, slot: int, device: SimulatedMig) -> None:
    """Destroy a MIG device with its GPU instance. Raises SetupError if a process holds it."""
    code = _tools(library).nvmlSimulatorDestroyMig(
        _path(state), ctypes.c_uint(slot), ctypes.c_uint(device.gpu_instance)
    )
    _check(code, f"cannot destroy {device.uuid}")


def set_mode(library: Path, state: State, slot: int, *, enabled: bool) -> bool:
    """Switch a GPU's MIG mode; return False if that is pending until a reset.

    Raises SetupError if the card has no MIG, or something is on it.
    """
    status = ctypes.c_uint()
    code = _tools(library).nvmlSimulatorSetMigMode(
        _path(state), ctypes.c_uint(slot), ctypes.c_uint(int(enabled)), ctypes.byref(status)
    )
    what = f"cannot switch MIG {'on' if enabled else 'off'}"
    _check(code, what)
    if status.value == _IN_USE:
        raise SetupError(
            f"{what}: instances or processes are on the GPU, or another process has NVML open"
        )
    return status.value != _RESET_REQUIRED


def check_unused(library: Path, state: State, slot: int) -> None:
    """Check that no other process has NVML open with this GPU. Raises SetupError if one has."""
    if _tools(library).nvmlSimulatorCheckUnused(_path(state), ctypes.c_uint(slot)) != _SUCCESS:
        raise SetupError("another process has NVML open")


def settle(library: Path, state: State) -> None:
    """Make the files of instances that are due, after the process that created them ended.

    Raises SetupError if the state file cannot be written.
    """
    _check(_tools(library).nvmlSimulatorSettle(_path(state)), "cannot make files of instances")


def hold(state: State, slot: int, device: SimulatedMig | None, pid: int, memory: int) -> None:
    """Put a process on a MIG device, or on a whole GPU.

    Raises SetupError if all places for processes are taken.
    """
    with state.locked() as record:
        for place in record.processes:
            if not place.active:
                layout.clear(place)
                place.slot = slot
                place.gpu_instance = device.gpu_instance if device else NOT_A_MIG_INSTANCE
                place.compute_instance = device.compute_instance if device else NOT_A_MIG_INSTANCE
                place.pid = pid
                place.kind = ProcessKind.COMPUTES
                place.memory = memory
                place.active = 1
                return
    raise SetupError(f"all {layout.MAX_PROCESSES} places for processes are taken; release some")


def release(state: State, slot: int, device: SimulatedMig | None, pid: int | None) -> None:
    """Remove processes from a MIG device or a whole GPU: one by its id, or all."""
    wanted = (
        device.gpu_instance if device else NOT_A_MIG_INSTANCE,
        device.compute_instance if device else NOT_A_MIG_INSTANCE,
    )
    with state.locked() as record:
        for place in record.processes:
            if (
                place.slot == slot
                and (place.gpu_instance, place.compute_instance) == wanted
                and pid in {None, place.pid}
            ):
                place.active = 0


def holders(state: State) -> list[Holder]:
    """Return the processes on all GPUs."""
    with state.locked() as record:
        return [
            Holder(
                pid=place.pid,
                slot=place.slot,
                gpu_instance=_or_none(place.gpu_instance),
                compute_instance=_or_none(place.compute_instance),
                memory=place.memory,
                graphics=place.kind == ProcessKind.DRAWS,
            )
            for place in record.processes
            if place.active
        ]


def _or_none(instance: int) -> int | None:
    return None if instance == NOT_A_MIG_INSTANCE else instance


def _tools(library: Path) -> ctypes.CDLL:
    return ctypes.CDLL(str(library))


def _path(state: State) -> bytes:
    return os.fsencode(state.path)


def _check(code: int, what: str) -> None:
    if code != _SUCCESS:
        raise SetupError(f"{what}: {_REASONS.get(code, f'NVML return code {code}')}")
