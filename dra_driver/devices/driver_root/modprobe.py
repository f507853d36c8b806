"""Runs nvidia-modprobe, which loads the kernel's nvidia-uvm module and makes its device nodes.

In: the driver root. Out: nothing, or the reason for a failure. CUDA needs /dev/nvidia-uvm, which
neither NVML nor the kernel makes: on a desktop CUDA makes it through this setuid program of the
driver, and some servers do at boot. The program is run as on the node itself: chrooted into the
driver root, whose C library it needs and in whose /dev the nodes belong.
"""

import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

from dra_driver.devices.driver_root.programs import SEARCHED, find_program
from dra_driver.devices.versions import running_driver

NVIDIA_MODPROBE = "nvidia-modprobe"
BY_HAND = f"{NVIDIA_MODPROBE} -c 0 -u"
"""The command that does the same on the node."""


def how_to_load(proc: Path) -> str:
    """Return what to do about missing device nodes: whether the driver is loaded makes it."""
    if running_driver(proc) is None:
        return "load the GPU driver (modprobe nvidia); if that fails, see dmesg"
    return (
        f"the kernel module is loaded, so make its device nodes (`{BY_HAND}` on the node), or "
        "mount the node's /dev"
    )


LONGEST_SECONDS = 10.0
PAUSE_SECONDS = 30.0
"""How long the program is not run again after a failure: many claims may ask for it."""

_UVM = ("-c", "0", "-u")
_MOST_WORDS = 200
# In a fresh interpreter, because a fork of a process with threads must not run Python before exec.
_CHROOTED = (
    "import os, sys; os.chroot(sys.argv[1]); os.chdir('/'); os.execv(sys.argv[2], sys.argv[2:])"
)


class NvidiaModprobe:
    """The nvidia-modprobe of one driver root. Calls may come from any thread."""

    def __init__(self, driver_root: Path, clock: Callable[[], float]) -> None:
        """Take the driver root; the clock counts monotonic seconds."""
        self._root = driver_root
        self._clock = clock
        self._lock = threading.Lock()
        self._failed: tuple[float, str] | None = None

    def make_uvm_nodes(self) -> str | None:
        """Have /dev/nvidia-uvm made; return the reason for a failure, or None for success.

        After a failure, the same reason is returned for a while without another try.
        """
        with self._lock:
            if self._failed and self._clock() < self._failed[0]:
                return self._failed[1]
            problem = self._run()
            self._failed = (self._clock() + PAUSE_SECONDS, problem) if problem else None
            return problem

    def _run(self) -> str | None:
        try:
            program = find_program(self._root, NVIDIA_MODPROBE)
        except OSError as error:
            return f"{self._root} cannot be searched: {error.strerror}"
        if program is None:
            return f"{NVIDIA_MODPROBE} is not under {self._root} (looked in {SEARCHED})"
        command = [program.source, *_UVM]
        if self._root != Path("/"):
            command = [sys.executable, "-I", "-S", "-c", _CHROOTED, str(self._root), *command]
        try:
            done = subprocess.run(
                command,
                env={"PATH": f"{os.defpath}:/usr/sbin:/sbin", "LC_ALL": "C"},
                cwd="/",
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                timeout=LONGEST_SECONDS,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return f"{NVIDIA_MODPROBE} did not end in {LONGEST_SECONDS:g} s"
        except OSError as error:
            return f"{program.path} cannot be run: {error.strerror}"
        if done.returncode == 0:
            return None
        said = done.stdout.strip().rpartition("\n")[2][:_MOST_WORDS]
        return f"{NVIDIA_MODPROBE} failed with status {done.returncode}" + (
            f": {said}" if said else ""
        )
