"""NVML's MIG calls: one method for each effect and each question; part of the adapter to pynvml.

NVML's pitfalls are dealt with here: profiles are read by enumeration but created by id, placements
are passed by reference, MIG indices have gaps, and an instance may disappear between two calls. The
order of calls and their undo are in devices/mig/making.py. Source: nvml.h, "Multi Instance GPU
Management".

Several threads may make calls about different GPUs, which NVML supports. Calls that name a GPU only
by UUID are given up on when it hangs (calls.py); calls with a handle are parts of another call.
"""

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from ctypes import byref, c_uint
from itertools import chain
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

import pynvml

from dra_driver.devices.model import (
    BareInstance,
    GpuUuid,
    Instance,
    MigDevice,
    MigMode,
    MigProfile,
    MigUuid,
    Placement,
)
from dra_driver.devices.nvml.errors import ABSENT_FACT, nvml_errors, optional
from dra_driver.devices.shares import MIB
from dra_driver.errors import BarredError, DeviceError, HeldError, TransientError

T = TypeVar("T")
P = ParamSpec("P")

# Asks about profiles: None for one that the card does not have.
_on_this_card = functools.partial(
    optional, absent=ABSENT_FACT | {pynvml.NVML_ERROR_INVALID_ARGUMENT}
)
_GONE = frozenset({pynvml.NVML_ERROR_NOT_FOUND, pynvml.NVML_ERROR_INVALID_ARGUMENT})

_MOST_TRIES = 3
"""How often instances are listed at most, because others may change them meanwhile."""


class Gpus(Protocol):
    """The GPUs of the open library (devices/nvml/library.py)."""

    def handle(self, uuid: str) -> object:
        """Return a GPU's handle without asking any other GPU."""
        ...

    def in_time(self, uuid: str, call: Callable[[], T]) -> T:
        """Return what a call about a GPU returns. Raises SilenceError if it hangs."""
        ...


def _in_time(
    method: Callable[Concatenate["MigCalls", GpuUuid, P], T],
) -> Callable[Concatenate["MigCalls", GpuUuid, P], T]:
    """Let a method of MigCalls raise SilenceError when the GPU does not answer."""

    @functools.wraps(method)
    def call(self: "MigCalls", gpu: GpuUuid, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self.gpus.in_time(gpu, lambda: method(self, gpu, *args, **kwargs))

    return call


class MigCalls:
    """MIG functions of the open library. A card's profiles are asked for only once.

    All raise DeviceError if there is no such GPU or NVML refuses, TransientError if that may pass.
    """

    def __init__(self, gpus: Gpus) -> None:
        self.gpus = gpus
        self._profiles: dict[str, tuple[MigProfile, ...]] = {}

    def forget(self) -> None:
        """Forget the profiles, because the library is opened again and may be another one."""
        self._profiles.clear()

    def profiles(self, handle: object, gpu: GpuUuid) -> tuple[MigProfile, ...]:
        """Return what a card can be divided into; empty if it does not say."""
        profiles = self._profiles.get(gpu)
        if profiles is None:
            profiles = self._profiles[gpu] = _profiles(handle)
        return profiles

    def look(self, handle: object, gpu: GpuUuid) -> tuple[tuple[Instance, ...], str | None]:
        """Return the GPU instances of a GPU in MIG mode, or none and why they cannot be read.

        If an instance seems to have no device, the list is read again: devices get new numbers
        when others make one, so one may have been missed.
        """
        profiles = self.profiles(handle, gpu)
        before: tuple[Instance, ...] | None = None
        for _ in range(_MOST_TRIES):
            try:
                now = _instances(handle, gpu, profiles)
            except pynvml.NVMLError as error:
                if error.value == pynvml.NVML_ERROR_NO_PERMISSION:
                    return (), "this process may not list MIG devices; run it as root"
                if error.value not in _GONE:
                    raise
            else:
                if now == before or not any(isinstance(each, BareInstance) for each in now):
                    return now, None
                before = now
        return (), "its MIG devices keep changing"

    @_in_time
    def instances(self, gpu: GpuUuid) -> tuple[Instance, ...]:
        """Return the GPU instances of a GPU as they are now."""
        with nvml_errors(f"listing MIG devices of {gpu}"):
            handle = self.gpus.handle(gpu)
            if mig_mode(handle) is not MigMode.ENABLED:
                return ()
            instances, problem = self.look(handle, gpu)
        if problem is not None:
            raise TransientError(f"MIG devices of {gpu} cannot be listed: {problem}")
        return instances

    @_in_time
    def mode(self, gpu: GpuUuid) -> MigMode:
        """Return the MIG mode that a GPU is in."""
        with nvml_errors(f"reading the MIG mode of {gpu}"):
            return mig_mode(self.gpus.handle(gpu))

    @_in_time
    def set_mode(self, gpu: GpuUuid, mode: MigMode) -> None:
        """Turn MIG mode on or off, at once or not at all.

        A change that would wait for a reset is undone and raises DeviceError. Raises HeldError if
        other processes use the GPU or have it open.
        """
        doing = f"turning MIG mode {'on' if mode is MigMode.ENABLED else 'off'} on {gpu}"
        wanted = int(mode is MigMode.ENABLED)
        with nvml_errors(doing):
            handle = self.gpus.handle(gpu)
            current, pending = pynvml.nvmlDeviceGetMigMode(handle)
            if current == pending == wanted:
                return
            try:
                status = pynvml.nvmlDeviceSetMigMode(handle, wanted)
            except pynvml.NVMLError_InUse:
                status = pynvml.NVML_ERROR_IN_USE
            current, pending = pynvml.nvmlDeviceGetMigMode(handle)
            if current == wanted:
                return
            if pending != current:
                pynvml.nvmlDeviceSetMigMode(handle, current)
            if status == pynvml.NVML_ERROR_IN_USE:
                raise HeldError(
                    f"{doing}: others have the GPU open (NVML: {pynvml.NVMLError(status)})",
                    minor=pynvml.nvmlDeviceGetMinorNumber(handle),
                )
            if status not in (pynvml.NVML_SUCCESS, pynvml.NVML_ERROR_RESET_REQUIRED):
                raise pynvml.NVMLError(status)
        raise DeviceError(
            f"{doing}: this card changes it only by a reset; drain the node, set the mode with"
            " nvidia-smi -mig and reset the GPU"
        )

    @_in_time
    def create_gpu_instance(self, gpu: GpuUuid, profile_id: int, placement: Placement) -> int:
        """Make a GPU instance; return its id."""
        with nvml_errors(f"making a GPU instance at {placement.start} of {gpu}"):
            handle = self.gpus.handle(gpu)
            # By reference: pynvml passes a plain structure by value, and NVML would crash.
            where = pynvml.c_nvmlGpuInstancePlacement_t(placement.start, placement.size)
            with _barred(gpu):
                made = pynvml.nvmlDeviceCreateGpuInstanceWithPlacement(
                    handle, profile_id, byref(where)
                )
            with _undone_by(pynvml.nvmlGpuInstanceDestroy, made):
                return int(pynvml.nvmlGpuInstanceGetInfo(made).id)

    @_in_time
    def create_compute_instance(self, gpu: GpuUuid, gpu_instance: int) -> tuple[int, MigUuid]:
        """Make a compute instance over all of a GPU instance; return its id and the MIG UUID.

        Also raises DeviceError if the card has no compute profile of that size.
        """
        with nvml_errors(f"making a compute instance in GPU instance {gpu_instance} of {gpu}"):
            handle = self.gpus.handle(gpu)
            parent = pynvml.nvmlDeviceGetGpuInstanceById(handle, gpu_instance)
            shape = pynvml.nvmlGpuInstanceGetInfo(parent).profileId
            profile = next(each for each in self.profiles(handle, gpu) if each.id == shape)
            shape = _compute_profile(parent, profile.compute_slices)
            with _barred(gpu):
                made = pynvml.nvmlGpuInstanceCreateComputeInstance(parent, shape)
            with _undone_by(pynvml.nvmlComputeInstanceDestroy, made):
                number = int(pynvml.nvmlComputeInstanceGetInfo(made).id)
                return number, _mig_uuid(handle, gpu_instance, number)

    @_in_time
    def destroy_compute_instance(
        self, gpu: GpuUuid, gpu_instance: int, compute_instance: int
    ) -> None:
        """Destroy a compute instance, if it still exists."""
        doing = f"destroying compute instance {compute_instance} of GPU instance {gpu_instance}"
        with nvml_errors(f"{doing} of {gpu}"), _gone_is_fine():
            handle = self.gpus.handle(gpu)
            parent = pynvml.nvmlDeviceGetGpuInstanceById(handle, gpu_instance)
            instance = pynvml.nvmlGpuInstanceGetComputeInstanceById(parent, compute_instance)
            pynvml.nvmlComputeInstanceDestroy(instance)

    @_in_time
    def destroy_gpu_instance(self, gpu: GpuUuid, gpu_instance: int) -> None:
        """Destroy a GPU instance that has no compute instance, if it still exists."""
        with nvml_errors(f"destroying GPU instance {gpu_instance} of {gpu}"), _gone_is_fine():
            handle = self.gpus.handle(gpu)
            instance = pynvml.nvmlDeviceGetGpuInstanceById(handle, gpu_instance)
            pynvml.nvmlGpuInstanceDestroy(instance)


def mig_mode(handle: object) -> MigMode:
    """Return the MIG mode that a GPU is in."""
    modes = optional(pynvml.nvmlDeviceGetMigMode, handle)
    if modes is None:
        return MigMode.UNSUPPORTED
    return MigMode.ENABLED if modes[0] == pynvml.NVML_DEVICE_MIG_ENABLE else MigMode.DISABLED


@contextmanager
def _gone_is_fine() -> Iterator[None]:
    """Ignore that an instance is gone, or that MIG mode is off and all of them are gone."""
    try:
        yield
    except (pynvml.NVMLError_NotFound, pynvml.NVMLError_NotSupported):
        return


@contextmanager
def _barred(gpu: GpuUuid) -> Iterator[None]:
    """Raise BarredError for refusals that do not pass: a guest's GPU, missing permissions."""
    try:
        yield
    except pynvml.NVMLError as error:
        if error.value not in (pynvml.NVML_ERROR_NOT_SUPPORTED, pynvml.NVML_ERROR_NO_PERMISSION):
            raise
        raise BarredError(
            f"no MIG device can be made on {gpu} by this driver (NVML: {error}), as on a vGPU of a "
            "virtual machine, or without the rights of a privileged container: the driver offers "
            "none there for now; delete the pod so that it is scheduled elsewhere, and run the "
            "driver with --mig existing on such nodes"
        ) from error


@contextmanager
def _undone_by(destroy: Callable[[Any], object], made: object) -> Iterator[None]:
    """Destroy what was made if its facts cannot be read: nothing else would know about it."""
    try:
        yield
    except pynvml.NVMLError:
        with suppress(pynvml.NVMLError):
            destroy(made)
        raise


def _profiles(handle: object) -> tuple[MigProfile, ...]:
    profiles: dict[int, MigProfile] = {}
    for number in range(pynvml.NVML_GPU_INSTANCE_PROFILE_COUNT):
        info = _on_this_card(pynvml.nvmlDeviceGetGpuInstanceProfileInfo, handle, number)
        if info is None or info.id in profiles:
            continue
        placements = _placements(handle, info.id)
        if placements:
            profiles[info.id] = _profile(info, placements)
    return tuple(profiles.values())


def _placements(handle: object, profile_id: int) -> tuple[Placement, ...]:
    count = c_uint()
    ask = pynvml.nvmlDeviceGetGpuInstancePossiblePlacements
    if _on_this_card(ask, handle, profile_id, None, byref(count)) is None or not count.value:
        return ()
    array = (pynvml.c_nvmlGpuInstancePlacement_t * count.value)()
    ask(handle, profile_id, byref(array), byref(count))
    places = {Placement(start=place.start, size=place.size) for place in array[: count.value]}
    return tuple(sorted(places))


def _profile(info: Any, placements: tuple[Placement, ...]) -> MigProfile:
    return MigProfile(
        id=int(info.id),
        name=str(info.name).removeprefix("MIG "),
        compute_slices=int(info.sliceCount),
        instances=int(info.instanceCount),
        memory_bytes=int(info.memorySizeMB) * MIB,
        multiprocessors=int(info.multiprocessorCount),
        copy_engines=int(info.copyEngineCount),
        decoders=int(info.decoderCount),
        encoders=int(info.encoderCount),
        jpeg_engines=int(info.jpegCount),
        ofa_engines=int(info.ofaCount),
        placements=placements,
    )


def _instances(
    handle: object, gpu: GpuUuid, profiles: tuple[MigProfile, ...]
) -> tuple[Instance, ...]:
    devices: dict[int, set[tuple[int, MigUuid, bool]]] = {}
    for device in _mig_handles(handle):
        parent = int(pynvml.nvmlDeviceGetGpuInstanceId(device))
        compute = int(pynvml.nvmlDeviceGetComputeInstanceId(device))
        uuid = MigUuid(pynvml.nvmlDeviceGetUUID(device))
        devices.setdefault(parent, set()).add((compute, uuid, _is_undivided(device)))
    instances: list[Instance] = []
    for profile in profiles:
        for info in gpu_instances(handle, profile.id, profile.instances):
            place = Placement(start=int(info.placement.start), size=int(info.placement.size))
            inside = sorted(devices.get(int(info.id), ()))
            instances.append(_instance(gpu, profile, place, int(info.id), inside))
    return tuple(sorted(instances, key=lambda each: (each.placement, each.gpu_instance)))


def _instance(
    gpu: GpuUuid,
    profile: MigProfile,
    placement: Placement,
    number: int,
    inside: list[tuple[int, MigUuid, bool]],
) -> Instance:
    if len(inside) == 1 and inside[0][2]:
        (compute, uuid, _) = inside[0]
        return MigDevice(
            parent=gpu,
            profile=profile,
            placement=placement,
            gpu_instance=number,
            compute_instance=compute,
            uuid=uuid,
        )
    return BareInstance(
        parent=gpu,
        profile=profile,
        placement=placement,
        gpu_instance=number,
        compute_instances=tuple(compute for compute, _, _ in inside),
    )


def gpu_instances(handle: object, profile_id: int, most: int) -> Iterator[Any]:
    """Yield what NVML says about each GPU instance of a profile, at most `most` of them."""
    count = c_uint(most)
    array = (pynvml.c_nvmlGpuInstance_t * most)()
    pynvml.nvmlDeviceGetGpuInstances(handle, profile_id, byref(array), byref(count))
    for entry in array[: count.value]:
        yield pynvml.nvmlGpuInstanceGetInfo(entry)


def _mig_handles(handle: object) -> Iterator[object]:
    """Yield the handles of a GPU's MIG devices; indices have gaps where some were destroyed.

    While another process makes a device, one may come twice or not at all.
    """
    for index in range(pynvml.nvmlDeviceGetMaxMigDeviceCount(handle)):
        try:
            yield pynvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, index)
        except pynvml.NVMLError as error:
            if error.value not in _GONE:
                raise


def _mig_uuid(handle: object, gpu_instance: int, compute_instance: int) -> MigUuid:
    """Return the UUID of the MIG device that a compute instance is.

    All devices are searched, because an instance's facts name only its GPU ("Parent device").
    """
    for device in chain.from_iterable(_mig_handles(handle) for _ in range(_MOST_TRIES)):
        try:
            parent = pynvml.nvmlDeviceGetGpuInstanceId(device)
            if (parent, pynvml.nvmlDeviceGetComputeInstanceId(device)) == (
                gpu_instance,
                compute_instance,
            ):
                return MigUuid(pynvml.nvmlDeviceGetUUID(device))
        except pynvml.NVMLError as error:
            if error.value not in _GONE:  # another device, destroyed meanwhile
                raise
    raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_FOUND)


def _is_undivided(device: object) -> bool:
    attributes = pynvml.nvmlDeviceGetAttributes(device)
    return bool(attributes.computeInstanceSliceCount == attributes.gpuInstanceSliceCount)


def _compute_profile(gpu_instance: object, compute_slices: int) -> int:
    """Return the id of the compute profile that takes all compute slices of a GPU instance.

    The card is asked, because NVML's enumeration has two for 7 slices, and a card knows only one.
    """
    for number in range(pynvml.NVML_COMPUTE_INSTANCE_PROFILE_COUNT):
        if number == pynvml.NVML_COMPUTE_INSTANCE_PROFILE_1_SLICE_REV1:
            continue
        info = _on_this_card(
            pynvml.nvmlGpuInstanceGetComputeInstanceProfileInfo,
            gpu_instance,
            number,
            pynvml.NVML_COMPUTE_INSTANCE_ENGINE_PROFILE_SHARED,
        )
        if info is not None and info.sliceCount == compute_slices:
            return int(info.id)
    raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
