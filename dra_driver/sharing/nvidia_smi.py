"""Runs nvidia-smi to read and set time-slices, for which NVML has no public calls.

In: a driver root and a GPU. Out: its time-slice, set or read, or the reason why not. The program is
found where GPU drivers install it, and runs with the driver's NVML library loaded by path, so
neither has to be installed in this process's root. Nothing else of the driver root is loaded,
because a host's C library is not that of this container. Exit codes are those of the program's
manual page.
"""

import os
import re
import select
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from types import MappingProxyType

import structlog
from msgspec import Struct

from dra_driver.devices.driver_root.modprobe import how_to_load
from dra_driver.devices.driver_root.programs import NVIDIA_SMI, SEARCHED, find_program
from dra_driver.devices.nvml.library import find_library
from dra_driver.devices.versions import running_driver
from dra_driver.errors import DeviceError
from dra_driver.host.turns import waiting

LONGEST_SECONDS = 30.0
"""How long a run may take: without persistence mode, each GPU is initialised first."""

RECENT_SECONDS = 30.0
"""How long a time-slice that was read or set is trusted, because others may change it."""

_REAP_SECONDS = 1.0
_MOST_WORDS = 300

_SLICES = ("default", "short", "medium", "long")
"""The names of time-slices, by number, in the program's table of compute policies."""

_ROW = re.compile(r"\|\s*\d+\s+Timeslice\s+(\w+)", re.IGNORECASE)

_NOT_AVAILABLE, _NOT_LOADED = 3, 9
_ADVICE = MappingProxyType(
    {
        4: "run the driver's container privileged",
        8: "check the power cables of the GPU",
        10: "see dmesg; the firmware settings of the server may have to change",
        12: "install the part of the GPU driver that holds libnvidia-ml.so.1",
        13: "nvidia-smi and libnvidia-ml.so.1 are of different versions: complete the driver's "
        "upgrade, or reboot the node",
        14: "have the GPU replaced",
        15: "see dmesg for NVRM and Xid lines; the node has to be rebooted",
    }
)
_OTHER_ADVICE = "see dmesg for NVRM lines, and whether nvidia-smi works on the node"


log = structlog.get_logger()


class _Outcome(Struct, frozen=True, kw_only=True):
    status: int
    said: str

    @property
    def is_not_supported(self) -> bool:
        return self.status == _NOT_AVAILABLE or "Not Supported" in self.said

    def __str__(self) -> str:
        return f"status {self.status}: {self.said[:_MOST_WORDS]}"


class NvidiaSmi:
    """The nvidia-smi of one driver root. Calls may come from any thread, and run in parallel."""

    def __init__(self, driver_root: Path, proc_root: Path, clock: Callable[[], float]) -> None:
        """Take the paths of the GPU driver and procfs; the clock counts monotonic seconds."""
        self._root = driver_root
        self._proc = proc_root
        self._clock = clock
        self._unread: set[str] = set()
        self._found: tuple[str | None, tuple[Path, ...]] = (None, ())
        self._recent: dict[str, tuple[int, float]] = {}

    def set_time_slice(self, uuid: str, number: int, deadline: float) -> bool:
        """Set a GPU's time-slice: 0 default, 1 short, 2 medium, 3 long; False if it has none.

        Raises DeviceError if the program is missing, does not answer in time, or reports an error.
        """
        self._recent.pop(uuid, None)
        done = self._run(["compute-policy", "-i", uuid, f"--set-timeslice={number}"], deadline)
        if done.status == 0:
            self._recent[uuid] = number, self._clock()
            return True
        if done.is_not_supported:
            return False
        advice = _ADVICE.get(done.status, _OTHER_ADVICE)
        if done.status == _NOT_LOADED:
            advice = how_to_load(self._proc)
        raise DeviceError(f"{NVIDIA_SMI} cannot set the time-slice of {uuid} ({done}); {advice}")

    def time_slice(self, uuid: str, deadline: float) -> int | None:
        """Return a GPU's time-slice by the same numbers; None if it has none or does not report it.

        Raises DeviceError if the program is missing, or does not answer in time.
        """
        self._recent.pop(uuid, None)
        done = self._run(["compute-policy", "-i", uuid, "-l"], deadline)
        row = _ROW.search(done.said) if done.status == 0 else None
        if row is not None and row[1].lower() in _SLICES:
            number = _SLICES.index(row[1].lower())
            self._recent[uuid] = number, self._clock()
            return number
        if not done.is_not_supported and uuid not in self._unread:
            self._unread.add(uuid)
            log.warning("time-slice not read, taken for the default", gpu=uuid, reason=str(done))
        return None

    def recent(self, uuid: str) -> int | None:
        """Return a GPU's recent time-slice, without running nvidia-smi; None if unknown."""
        number, at = self._recent.get(uuid, (None, 0.0))
        return number if self._clock() - at < RECENT_SECONDS else None

    def _find(self) -> tuple[Path, ...]:
        """Return the program, and NVML's library if it has to be loaded by path.

        They are searched for again if one is gone, or another kernel driver is loaded.
        """
        running = running_driver(self._proc)
        found_for, files = self._found
        if files and found_for == running and all(path.exists() for path in files):
            return files
        program = find_program(self._root, NVIDIA_SMI)
        if program is None:
            raise DeviceError(
                f"{NVIDIA_SMI} not found under {self._root} (looked in {SEARCHED}), and "
                "time-slices cannot be set without it; install the part of the GPU driver that "
                "holds it, or point --nvidia-driver-root at where it is"
            )
        library = () if self._root == Path("/") else (find_library(self._root, running),)
        files = (program.path, *library)
        self._found = running, files
        return files

    def _run(self, words: Sequence[str], deadline: float) -> _Outcome:
        program, *library = self._find()
        environment = {"PATH": os.defpath, "LC_ALL": "C"}
        if library:
            environment["LD_PRELOAD"] = str(library[0])
        seconds = min(LONGEST_SECONDS, max(0.1, deadline - self._clock()))
        with os.fdopen(os.memfd_create(NVIDIA_SMI), "w+", errors="replace") as said:
            try:
                process = subprocess.Popen(
                    [str(program), *words],
                    env=environment,
                    cwd="/",
                    stdin=subprocess.DEVNULL,
                    stdout=said,
                    stderr=subprocess.STDOUT,
                )
            except OSError as error:
                raise DeviceError(
                    f"cannot run {program}: {error.strerror}; check that it is for this machine's "
                    "architecture"
                ) from error
            if not _ends_within(process, seconds):
                process.kill()
                # A process that hangs in the kernel is left alone until the GPU driver releases it.
                _ends_within(process, _REAP_SECONDS)
                process.poll()
                raise DeviceError(
                    f"{program} did not answer in {seconds:.0f} s; see dmesg for NVRM and Xid "
                    "lines, and turn persistence mode on if the GPUs are slow to initialise"
                )
            said.seek(0)
            return _Outcome(status=process.wait(), said=" ".join(said.read().split()))


def _ends_within(process: "subprocess.Popen[bytes]", seconds: float) -> bool:
    """Wait for the end of a process by its descriptor; Popen would poll, less and less often."""
    descriptor = os.pidfd_open(process.pid)
    try:
        poll = select.poll()
        poll.register(descriptor, select.POLLIN)
        with waiting():
            return bool(poll.poll(max(0.0, seconds) * 1000))
    finally:
        os.close(descriptor)
