"""nvidia-modprobe: has the kernel's nvidia-uvm module loaded, and its device nodes made.

In: the driver root. Out: nothing, or why not. CUDA cannot do without /dev/nvidia-uvm, and neither
NVML nor the kernel makes it: a desktop's CUDA does, through this setuid program of the driver, and
so do servers whose boot asks for it. The program is run as if it stood on the node: chrooted into
the driver root, whose C library it needs and in whose /dev the nodes belong.
"""

import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

from dra_driver.devices.driver_root.programs import SEARCHED, find_program

NVIDIA_MODPROBE = "nvidia-modprobe"
BY_HAND = f"{NVIDIA_MODPROBE} -c 0 -u"
"""What somebody on the node types for the same."""

LONGEST_SECONDS = 10.0
PAUSE_SECONDS = 30.0
"""How long one that has failed is not run again: who asks is a claim, and there may be many."""

_UVM = ("-c", "0", "-u")
_MOST_WORDS = 200
# A fresh interpreter: what forks from a process with threads must not run Python before its exec.
_CHROOTED = (
    "import os, sys; os.chroot(sys.argv[1]); os.chdir('/'); os.execv(sys.argv[2], sys.argv[2:])"
)


class NvidiaModprobe:
    """The nvidia-modprobe of one driver root. Calls may come from any thread."""

    def __init__(self, driver_root: Path, clock: Callable[[], float]) -> None:
        """Take where the driver is; the clock counts monotonic seconds."""
        self._root = driver_root
        self._clock = clock
        self._lock = threading.Lock()
        self._failed: tuple[float, str] | None = None

    def make_uvm_nodes(self) -> str | None:
        """Have /dev/nvidia-uvm made; return why it could not be, None when the program is content.

        After a failure the same is returned for a while, without another try.
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
