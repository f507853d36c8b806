"""NVML's MIG calls through pynvml, with the arrays and references its wrappers leave to callers."""

import ctypes
from collections.abc import Iterator

import pynvml

Handle = object


def placements(device: Handle, profile_id: int) -> list[tuple[int, int]]:
    """The possible placements of a profile: start and size, in memory slices."""
    count = ctypes.c_uint()
    pynvml.nvmlDeviceGetGpuInstancePossiblePlacements(device, profile_id, None, ctypes.byref(count))
    found = (pynvml.c_nvmlGpuInstancePlacement_t * count.value)()
    pynvml.nvmlDeviceGetGpuInstancePossiblePlacements(
        device, profile_id, found, ctypes.byref(count)
    )
    return [(place.start, place.size) for place in found]


def profiles(device: Handle) -> Iterator[tuple[int, object]]:
    """The profiles of a card: the enumeration each is asked by, and its facts."""
    for index in range(pynvml.NVML_GPU_INSTANCE_PROFILE_COUNT):
        try:
            yield index, pynvml.nvmlDeviceGetGpuInstanceProfileInfo(device, index)
        except pynvml.NVMLError_NotSupported:
            continue


def create(device: Handle, profile_id: int, start: int, size: int) -> Handle:
    """Make a GPU instance at a place."""
    place = pynvml.c_nvmlGpuInstancePlacement_t(start, size)
    # By reference: the wrapper passes on what it is given.
    return pynvml.nvmlDeviceCreateGpuInstanceWithPlacement(device, profile_id, ctypes.byref(place))


def create_both(device: Handle, profile_id: int, start: int, size: int) -> tuple[Handle, Handle]:
    """Make a GPU instance at a place and a compute instance that fills it."""
    instance = create(device, profile_id, start, size)
    for index in range(pynvml.NVML_COMPUTE_INSTANCE_PROFILE_COUNT):
        try:
            info = pynvml.nvmlGpuInstanceGetComputeInstanceProfileInfo(instance, index, 0)
        except pynvml.NVMLError_NotSupported:
            continue
        compute_slices = next(p.sliceCount for _, p in profiles(device) if p.id == profile_id)  # type: ignore[attr-defined]
        if info.sliceCount == compute_slices:
            return instance, pynvml.nvmlGpuInstanceCreateComputeInstance(instance, info.id)
    raise AssertionError("no compute instance profile fills the GPU instance")


def instances(device: Handle) -> list[Handle]:
    """All GPU instances of a card."""
    found = []
    for _, info in profiles(device):
        count = ctypes.c_uint()
        array = (pynvml.c_nvmlGpuInstance_t * info.instanceCount)()  # type: ignore[attr-defined]
        pynvml.nvmlDeviceGetGpuInstances(device, info.id, array, ctypes.byref(count))  # type: ignore[attr-defined]
        found += [array[number] for number in range(count.value)]
    return found


def mig_devices(device: Handle) -> dict[int, Handle]:
    """The MIG devices of a card by index, holes left out."""
    found = {}
    for index in range(pynvml.nvmlDeviceGetMaxMigDeviceCount(device)):
        try:
            found[index] = pynvml.nvmlDeviceGetMigDeviceHandleByIndex(device, index)
        except pynvml.NVMLError_NotFound:
            continue
    return found
