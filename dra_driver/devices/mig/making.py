"""Makes and destroys MIG devices: each step has its undo, and a device is made fully or not at all.

In: a place on a GPU (devices/mig/partitions.py). Out: the MIG device there. NVML's rules: MIG mode
comes first, then the GPU instance, then the compute instance; undoing goes in the reverse order. A
mode that changes without a reset (Hopper and newer) can change only while nothing is on the GPU.
What processes use cannot be destroyed. An obstacle that may pass is a TransientError: call again.
Every call may be repeated, also by another process after a crash in the middle of it. If the mode
cannot change because others have the GPU open, the error names them as far as they can be seen.

Callers hold a lock on the GPU and know for whom the device is; this module does neither.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack

import structlog
from msgspec.structs import replace

from dra_driver.devices.device import Mig, MigIds, mig_of
from dra_driver.devices.holders import Holder
from dra_driver.devices.model import BareInstance, GpuUuid, Instance, MigDevice, MigMode, MigSlot
from dra_driver.devices.nvml.mig import MigCalls
from dra_driver.errors import ConflictError, DeviceError, DriverError, HeldError, TransientError
from dra_driver.host.words import named

log = structlog.get_logger()


class MigInstances:
    """Makes, finds and destroys the MIG devices of this node. Calls may come from any thread.

    All methods raise DeviceError (no such GPU, or NVML refuses) and TransientError (NVML is not
    open at this moment, or others are in the way).
    """

    def __init__(
        self,
        calls: Callable[[], AbstractContextManager[MigCalls]],
        holders: Callable[[int], Sequence[Holder]] = lambda _: (),
    ) -> None:
        """Take the lender of NVML's calls, and the function that returns a GPU's holders."""
        self._calls = calls
        self._holders = holders

    def mode(self, gpu: GpuUuid) -> MigMode:
        """Return the MIG mode that a GPU is in now."""
        with self._calls() as calls:
            return calls.mode(gpu)

    def set_mode(self, gpu: GpuUuid, mode: MigMode) -> None:
        """Turn MIG mode on or off; a GPU that is already in that mode is left alone.

        Raises ConflictError if it is to be turned off while MIG instances are on the GPU, HeldError
        if others have the GPU open, and DeviceError if NVML refuses or the card would need a reset.
        """
        with self._calls() as calls:
            if calls.mode(gpu) is mode:
                return
            if mode is MigMode.DISABLED and (left := calls.instances(gpu)):
                raise ConflictError(
                    f"MIG mode of {gpu} cannot be turned off while the GPU has {_listed(left)}; "
                    "this is possible once they are gone"
                )
            try:
                calls.set_mode(gpu, mode)
            except HeldError as error:
                by = self._holders(error.minor)
                raise HeldError(_held(gpu, mode, error.minor, by), minor=error.minor) from error
        log.info("mig mode changed", gpu=gpu, mode=str(mode))

    def find(self, slot: MigSlot) -> Instance | None:
        """Return what is at a slot now: a MIG device, a bare GPU instance, or nothing."""
        with self._calls() as calls:
            return _at(calls, slot)

    def make(self, place: Mig) -> Mig:
        """Make the MIG device at a place of a GPU in MIG mode.

        A device that exists already is returned as it is, and a GPU instance without a compute
        instance is completed. If anything fails, everything that this call did is undone. Raises
        TransientError if other instances or processes are in the way, and DeviceError if NVML
        refuses.
        """
        with self._calls() as calls:
            instance = _at(calls, place.slot)
            if isinstance(instance, MigDevice):
                return mig_of(replace(instance, made_here=True))
            if instance is None:
                _check_room(calls, place)
            with ExitStack() as undo:
                ids = _make(calls, place, instance, undo)
                undo.pop_all()
        log.info(
            "mig device made",
            gpu=place.gpu,
            profile=place.profile,
            start=place.placement.start,
            uuid=ids.uuid,
        )
        return replace(place, instance=ids)

    def destroy(self, slot: MigSlot) -> None:
        """Destroy what is at a slot, if there is anything. MIG mode stays as it is.

        Raises TransientError while processes use it.
        """
        with self._calls() as calls:
            there = _at(calls, slot)
            match there:
                case None:
                    return
                case MigDevice():
                    inside: tuple[int, ...] = (there.compute_instance,)
                case BareInstance():
                    inside = there.compute_instances
            for compute_instance in inside:
                calls.destroy_compute_instance(slot.gpu, there.gpu_instance, compute_instance)
            calls.destroy_gpu_instance(slot.gpu, there.gpu_instance)
        log.info("mig device destroyed", gpu=slot.gpu, profile=there.profile.name, start=slot.start)


def _held(gpu: GpuUuid, mode: MigMode, minor: int, holders: Sequence[Holder]) -> str:
    """Return who keeps a mode from being changed, and what to do."""
    node = f"/dev/nvidia{minor}"
    if mode is MigMode.ENABLED:
        cause = f"{gpu} ({node}) cannot be switched to MIG mode while others have it open"
    else:
        cause = f"MIG mode of {gpu} ({node}) cannot be turned off while others have it open"
    if holders:
        advice = f": {named(holders)}; end these processes"
    else:
        advice = (
            f", which are not visible from here; find them (fuser -v {node} on the node;"
            " often DCGM, a display server, or nvidia-smi in a loop) and end these processes"
        )
    if mode is MigMode.ENABLED:
        advice += ", or have no MIG devices made on this node (--mig existing)"
    return f"{cause}{advice}"


def _make(calls: MigCalls, place: Mig, instance: BareInstance | None, undo: ExitStack) -> MigIds:
    """Take the steps that are left, and register the undo of each once it is done."""
    gpu = place.gpu
    if instance is None:
        number = calls.create_gpu_instance(gpu, place.profile_id, place.placement)
        undo.callback(_try, calls.destroy_gpu_instance, gpu, number)
    elif instance.compute_instances:
        raise DeviceError(
            f"{_listed((instance,))} of {gpu} is divided among several compute instances; destroy"
            " them on the node (nvidia-smi mig -dci)"
        )
    else:
        number = instance.gpu_instance
    compute_instance, uuid = calls.create_compute_instance(gpu, number)
    return MigIds(gpu_instance=number, compute_instance=compute_instance, uuid=uuid, made_here=True)


def _try(step: Callable[..., object], *args: object) -> None:
    """Undo a step; a failure is left to the caller, who has recorded what was intended."""
    try:
        step(*args)
    except DriverError as error:
        log.warning("mig step not undone", step=getattr(step, "__name__", ""), error=str(error))


def _at(calls: MigCalls, slot: MigSlot) -> Instance | None:
    return next((entry for entry in calls.instances(slot.gpu) if entry.slot == slot), None)


def _check_room(calls: MigCalls, place: Mig) -> None:
    in_the_way = tuple(
        entry for entry in calls.instances(place.gpu) if entry.placement.overlaps(place.placement)
    )
    if in_the_way:
        raise TransientError(
            f"there is no room for {place.profile} at {place.placement.start} of"
            f" {place.gpu}: it has {_listed(in_the_way)}; this is retried until that is"
            " gone"
        )


def _listed(instances: tuple[Instance, ...]) -> str:
    return ", ".join(
        f"GPU instance {entry.gpu_instance} ({entry.profile.name} at {entry.placement.start})"
        for entry in instances
    )
