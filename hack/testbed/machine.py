"""Simulated GPUs in a folder of the host, changed through the command `dra-driver simulate`.

Their settings are read here, because tests need them before and after each test, and a command
takes longer to start than many tests.
"""

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from dra_driver.errors import DriverError
from dra_driver.simulator.layout import ProcessKind
from dra_driver.simulator.machine import Machine
from dra_driver.simulator.processes import Activity
from dra_driver.simulator.state import FILE_PREFIX
from testbed.commands import TestbedError, run
from testbed.mounts import unmount_all

DRIVER = Path(sys.executable).with_name("dra-driver")

Words = Mapping[int | None, str]

COMPUTE_MODES: Words = {0: "Default", 2: "Prohibited", 3: "Exclusive_Process"}
MIG_MODES: Words = {0: "Disabled", 1: "Enabled"}
TIME_SLICES: Words = {0: "Default", 1: "Short", 2: "Medium", 3: "Long"}


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuSettings:
    """A GPU's settings, in nvidia-smi's terms; `-` for one that the card lacks."""

    compute_mode: str
    time_slice: str
    mig_mode: str = "Disabled"


class SimulatedMachine:
    """A driver root with the GPUs of a profile, such as `h100x8`, made with more options if any."""

    def __init__(self, root: Path, profile: str, options: Sequence[str] = ()) -> None:
        self.root = root
        self.profile = profile
        self._options = options

    def up(self) -> None:
        """Make the driver root; NVIDIA's user-space files are fetched the first time."""
        self._do("up", "--profile", self.profile, *self._options, timeout=300)

    def mount(self) -> None:
        """Mount the root, so that pods get it read-only and hardware can still be changed.

        A driver in a container also mounts its root, and in it the machine's /dev, /proc and /sys.
        Mounts in a read-only volume stay writable.
        """
        run(("mount", "--bind", self.root, self.root))
        run(("mount", "--make-private", self.root))
        (state,) = (file for file in self.root.rglob(f"{FILE_PREFIX}*") if not file.is_symlink())
        for path in (*(self.root / name for name in ("dev", "proc", "sys")), state):
            run(("mount", "--bind", path, path))
        run(("mount", "--make-rshared", self.root))

    def down(self) -> None:
        """Remove the driver root, mounted or not."""
        unmount_all(self.root)
        self._do("down")

    def fault(self, kind: str, gpu: str) -> None:
        """Call `dra-driver simulate fault` for a GPU: lose, restore, remove, add."""
        run((DRIVER, "simulate", "fault", kind, "--gpu", gpu, "--root", self.root))

    def xid(self, gpu: str, number: int) -> None:
        """Let a GPU report an XID."""
        self._do("set", "--gpu", gpu, "--xid", str(number))

    def settings(self) -> dict[str, GpuSettings]:
        """The settings of each GPU, by UUID."""
        with self._read() as machine:
            return {
                gpu.gpu.uuid: GpuSettings(
                    compute_mode=COMPUTE_MODES.get(gpu.compute_mode, "-"),
                    time_slice=TIME_SLICES.get(gpu.time_slice, "-"),
                    mig_mode=MIG_MODES.get(gpu.mig_mode, "-"),
                )
                for gpu in sorted(machine.status(), key=lambda gpu: gpu.gpu.nvml_bus_id)
            }

    def mig_devices(self) -> tuple[str, ...]:
        """The existing MIG devices, a line for each: UUID, GPU, profile, place."""
        with self._read() as machine:
            return tuple(
                f"{each.uuid}  minor:{gpu.minor}  {each.profile} at {each.start}"
                for gpu in machine.gpus
                for each in machine.mig_devices(gpu.uuid)
            )

    def mig_parents(self) -> tuple[str, ...]:
        """The UUIDs of the GPUs with MIG devices, once for each of those."""
        with self._read() as machine:
            gpus = sorted(machine.gpus, key=lambda gpu: gpu.nvml_bus_id)
            return tuple(gpu.uuid for gpu in gpus for _ in machine.mig_devices(gpu.uuid))

    def mig(self, verb: str, *words: str) -> str:
        """Call `dra-driver simulate mig`; return its output."""
        return run((DRIVER, "simulate", "mig", verb, "--root", self.root, *words)).strip()

    def take_memory(self, gpu: str, mib: int, *, pid: int) -> bool:
        """Let a process of this host take some MiB of a GPU; return False if a limit forbids it.

        Raises TestbedError if there is no such process, or the GPU itself has less left.
        """
        with self._read() as machine:
            uuid, group = machine.find(gpu).uuid, machine.group_of(pid)
            return machine.take_memory(uuid, mib << 20, pid=pid, group=group)

    def compute(self, gpu: str, mib: int, *, pid: int, by_mps: bool = False) -> None:
        """Let a process of this host compute with some MiB of a GPU, regardless of limits.

        Raises TestbedError if the GPU is lost, or has less left.
        """
        kind = ProcessKind.BY_MPS if by_mps else ProcessKind.COMPUTES
        with self._read() as machine:
            machine.take_memory(gpu, mib << 20, pid=pid)
            machine.let_do(pid, Activity(kind=kind, sm=1))

    def release_memory(self, gpu: str, *, pid: int) -> None:
        """End a process on a GPU, which frees its memory."""
        with self._read() as machine:
            machine.release_memory(machine.find(gpu).uuid, pid=pid)

    def reset(self, gpu: str) -> None:
        """Reset a GPU, which applies a pending MIG mode.

        Raises TestbedError if a process is on it, or has NVML open.
        """
        self._do("reset", "--gpu", gpu)

    @contextmanager
    def _read(self) -> Iterator[Machine]:
        try:
            yield Machine(self.root)
        except DriverError as error:
            raise TestbedError(str(error)) from error

    def _do(self, verb: str, *words: str, timeout: float = 60) -> str:
        return run((DRIVER, "simulate", verb, "--root", self.root, *words), timeout=timeout)
