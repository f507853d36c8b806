"""The card that is tried: what NVML and nvidia-smi report, its settings, and their restoration.

NVML is open only during questions, because a GPU that is open cannot change its MIG mode. A setting
that the card lacks is None, and is not restored.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path

import pynvml

from dra_driver.cdi.roots import Roots, find_roots
from dra_driver.devices.device import Mig
from dra_driver.devices.driver_root.programs import NVIDIA_SMI, find_program
from dra_driver.devices.load import GpuLoad
from dra_driver.devices.mig.making import MigInstances
from dra_driver.devices.mig.partitions import partitions
from dra_driver.devices.model import Gpu, GpuUuid, Inventory, MigMode
from dra_driver.devices.nvml.library import NvmlLibrary, find_library
from dra_driver.devices.nvml.mig import MigCalls
from dra_driver.devices.session import DriverSession
from dra_driver.devices.versions import running_driver
from dra_driver.errors import DeviceError, TransientError
from dra_driver.sharing.nvidia_smi import LONGEST_SECONDS, NvidiaSmi
from dra_driver.simulator.driver_root import MARKER

PATIENCE = 30.0
"""Seconds for processes to close the GPU, such as one that was just killed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How a card is set, by NVML's numbers.

    `power_limit` is in milliwatts; `mig` are its GPU instances: profile id and start.
    """

    compute_mode: int | None
    time_slice: int | None
    power_limit: int | None
    mig_mode: str
    mig: tuple[tuple[int, int], ...]

    def differences(self, now: "Settings") -> list[str]:
        """Return what is not as it was."""
        changed = [
            f"{name.replace('_', ' ')} was {before} and is {after}"
            for name, before in asdict(self).items()
            if name != "mig" and (after := getattr(now, name)) != before
        ]
        if self.mig != now.mig:
            changed.append(f"MIG devices were {_listed(self.mig)} and are {_listed(now.mig)}")
        return changed


def _power_limit(handle: object) -> int | None:
    try:
        return int(pynvml.nvmlDeviceGetPowerManagementLimit(handle))
    except pynvml.NVMLError:  # a card without one
        return None


def _listed(mig: Sequence[tuple[int, int]]) -> str:
    return ", ".join(f"profile {profile} at {start}" for profile, start in mig) or "none"


class Card:
    """One GPU below a driver root, which may be a simulated machine's."""

    def __init__(self, root: Path, which: str) -> None:
        """Take the driver root, and the GPU's index or UUID. Raises DeviceError without it."""
        self.root = root
        self.is_simulated = (root / MARKER).exists()
        inside = root if self.is_simulated else Path("/")
        self.proc, self.sys = inside / "proc", inside / "sys"
        self.smi = NvidiaSmi(root, self.proc, time.monotonic)
        self.inventory = self.look()
        gpus = [gpu for gpu in self.inventory.gpus if which in (str(gpu.index), gpu.uuid)]
        if not gpus:
            known = ", ".join(f"{gpu.index} ({gpu.product_name})" for gpu in self.inventory.gpus)
            raise DeviceError(f"there is no GPU {which}; there are {known or 'none'}")
        self.gpu: Gpu = gpus[0]

    @property
    def uuid(self) -> GpuUuid:
        """The GPU's UUID."""
        return self.gpu.uuid

    @property
    def library(self) -> Path:
        """NVML's library."""
        return find_library(self.root, running_driver(self.proc))

    @cached_property
    def roots(self) -> Roots:
        """Where the driver finds things on this machine."""
        return find_roots(driver_root=self.root, proc_root=self.proc, sys_root=self.sys)

    @property
    def nvidia_smi(self) -> Path:
        """The program. Raises DeviceError where there is none."""
        program = find_program(self.root, NVIDIA_SMI)
        if program is None:
            raise DeviceError(f"{NVIDIA_SMI} is not below {self.root}")
        return program.path

    def look(self) -> Inventory:
        """Look at the machine as the driver does."""
        dev = find_roots(driver_root=self.root, proc_root=self.proc, sys_root=self.sys).dev
        session = DriverSession(
            driver_root=self.root, dev=dev, proc_root=self.proc, sys_root=self.sys
        )
        try:
            return session.look()
        finally:
            session.close()

    def facts(self) -> Gpu:
        """Return what the driver knows about the GPU now."""
        return next(gpu for gpu in self.look().gpus if gpu.uuid == self.uuid)

    @contextmanager
    def nvml(self) -> Iterator[NvmlLibrary]:
        """Have NVML open, only once at a time in this process."""
        library = NvmlLibrary(self.library)
        library.open()
        try:
            yield library
        finally:
            library.close()

    @contextmanager
    def _mig_calls(self) -> Iterator[MigCalls]:
        with self.nvml() as library:
            yield library.mig

    @property
    def mig(self) -> MigInstances:
        """What makes and destroys MIG devices; NVML is only open during each call."""
        return MigInstances(self._mig_calls)

    def load(self) -> GpuLoad:
        """Return who uses the GPU."""
        with self.nvml() as library:
            return library.gpu_load(self.gpu.index)

    def time_slice(self) -> int | None:
        """Return the GPU's time-slice as nvidia-smi reads it; None if it prints none."""
        return self.smi.time_slice(self.uuid, time.monotonic() + LONGEST_SECONDS)

    def set_time_slice(self, number: int) -> bool:
        """Set the GPU's time-slice; False if it has none."""
        return self.smi.set_time_slice(self.uuid, number, time.monotonic() + LONGEST_SECONDS)

    def settings(self) -> Settings:
        """Return how the card is set now."""
        with self.nvml() as library:
            mode = library.compute_mode(self.uuid)
            power = _power_limit(library.handle(self.uuid))
        gpu = self.facts()
        return Settings(
            compute_mode=mode,
            time_slice=self.time_slice(),
            power_limit=power,
            mig_mode=str(gpu.mig_mode),
            mig=tuple(
                (instance.profile.id, instance.placement.start) for instance in gpu.mig_instances
            ),
        )

    def free_place(self) -> Mig | None:
        """Return the first partition of one slice that can be made now; None if none can."""
        gpu = self.facts()
        if gpu.mig is None or (gpu.mig.needs_reset and gpu.mig_mode is not MigMode.ENABLED):
            return None
        # The places that a larger one leaves are not computed here.
        if any(instance.placement.size != 1 for instance in gpu.mig_instances):
            return None
        taken = {instance.placement.start for instance in gpu.mig_instances}
        small = (part for part in partitions(gpu) if part.profile.startswith("1g."))
        return next((part for part in small if part.placement.start not in taken), None)

    def restore(
        self, changes: frozenset[str], before: Settings, place: tuple[int, int] | None
    ) -> None:
        """Undo changes. Repeating it changes nothing.

        `place` is where the run may have made a MIG device. Others are left, and the MIG mode with
        them. Processes and control groups are the run's (run.py). Raises DeviceError or
        TransientError while something cannot be undone.
        """
        if "time-slice" in changes:
            self._patiently(lambda: self._restore_time_slice(before))
        if "compute-mode" in changes:
            self._patiently(lambda: self._restore_compute_mode(before))
        if "mig-mode" in changes:
            self._patiently(lambda: self._restore_mig(before, place))

    def _restore_time_slice(self, before: Settings) -> None:
        if before.time_slice is None:
            self.set_time_slice(0)  # not readable: the default, which a driver starts with
        elif self.time_slice() != before.time_slice:
            self.set_time_slice(before.time_slice)

    def _restore_compute_mode(self, before: Settings) -> None:
        with self.nvml() as library:
            mode = before.compute_mode
            if mode is not None and library.compute_mode(self.uuid) != mode:
                library.set_compute_mode(self.uuid, mode)

    def _restore_power_limit(self, before: Settings) -> None:
        limit = before.power_limit
        with self.nvml() as library:
            handle = library.handle(self.uuid)
            if limit is not None and _power_limit(handle) != limit:
                try:
                    pynvml.nvmlDeviceSetPowerManagementLimit(handle, limit)
                except pynvml.NVMLError as error:
                    raise DeviceError(f"the power limit cannot be set back: {error}") from error

    def _restore_mig(self, before: Settings, place: tuple[int, int] | None) -> None:
        if before.mig_mode == MigMode.UNSUPPORTED:
            return
        are_left = False
        for instance in self.facts().mig_instances:
            found = instance.profile.id, instance.placement.start
            if found == place:
                self.mig.destroy(instance.slot)
            elif found not in before.mig:
                are_left = True
        if not are_left:
            self.mig.set_mode(self.uuid, MigMode(before.mig_mode))
        # A change of the mode may reset the card, and all of these to their defaults.
        self._restore_power_limit(before)
        self._restore_compute_mode(before)
        if before.time_slice is not None:
            self._restore_time_slice(before)

    def _patiently(self, call: Callable[[], None]) -> None:
        end = time.monotonic() + PATIENCE
        while True:
            try:
                return call()
            except (DeviceError, TransientError):
                if time.monotonic() > end:
                    raise
            time.sleep(0.5)
