"""A separate MPS control daemon for the processes of one case.

No setting of the GPU is changed, not even its compute mode. No other MPS daemon of the machine is
affected, because a client finds its daemon only by the pipe folder. The daemon runs in the
foreground as this process's child. It is asked to quit at the end, and killed if it does not; it is
killed with this process.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from dra_driver.bench.scratch import scratch
from dra_driver.bench.strategies import Strategy
from dra_driver.devices.driver_root.programs import MPS_CONTROL, MPS_SERVER, SEARCHED, find_program
from dra_driver.errors import DeviceError, SetupError
from dra_driver.mps.daemon.control import ask_daemon
from dra_driver.mps.daemon.limits import read_limits, set_limits
from dra_driver.mps.domain import Domain, DomainDevice, DomainId

_START_SECONDS = 20.0
_QUIT_SECONDS = 5
_POLL_SECONDS = 0.05


class MpsDaemon:
    """A running daemon."""

    def __init__(
        self, control: Path, gpu: str, folder: Path, environment: Mapping[str, str]
    ) -> None:
        """Take the program, its GPU's UUID, its folder, and its environment."""
        self._control = control
        self._gpu = gpu
        self._environment = environment
        self.pipe = folder / "pipe"
        self.log = folder / "log"

    def ask(self, commands: Sequence[str]) -> list[str]:
        """Send commands to the daemon; return its reply's lines. Raises DeviceError without one."""
        return ask_daemon(self._control, commands, environment=self._environment, log=self.log)

    def limit(self, strategy: Strategy) -> tuple[str, ...]:
        """Set the limits of a strategy for each client; return what the daemon reports."""
        gpu = DomainDevice(uuid=self._gpu, pinned_memory_mib=strategy.memory_mib)
        wanted = Domain(
            id=DomainId("bench"),
            devices=(gpu,),
            active_thread_percentage=strategy.thread_percentage,
        )
        set_limits(self.ask, wanted)
        limits = read_limits(self.ask, wanted)
        memory = [f"pinned memory: {mib} MiB" for _, mib in limits.pinned_memory_mib]
        return (f"active threads: {limits.active_thread_percentage:g} %", *memory)


@contextmanager
def mps_daemon(driver_root: Path, gpu: str, environment: Mapping[str, str]) -> Iterator[MpsDaemon]:
    """Run a daemon for one GPU; it ends with this context, however that is left."""
    control = control_program(driver_root)
    # A socket's path has at most 107 bytes, so the folder is a temporary one.
    with scratch() as folder:
        for name in ("pipe", "log"):
            (folder / name).mkdir(mode=0o755)
        own = {
            **environment,
            "CUDA_MPS_PIPE_DIRECTORY": str(folder / "pipe"),
            "CUDA_MPS_LOG_DIRECTORY": str(folder / "log"),
            "CUDA_VISIBLE_DEVICES": gpu,
        }
        daemon = MpsDaemon(control, gpu, folder, own)
        child = subprocess.Popen(
            [sys.executable, "-m", "dra_driver.bench.tenant.supervised", control, "-f"],
            env=own,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C reaches this process alone, which then ends the daemon
        )
        try:
            _wait_until_it_answers(daemon, child)
            yield daemon
        finally:
            _end(daemon, child)


def control_program(driver_root: Path) -> Path:
    """Return the path of NVIDIA's control program; it needs the server, too."""
    _program(driver_root, MPS_SERVER)
    return _program(driver_root, MPS_CONTROL)


def _program(driver_root: Path, name: str) -> Path:
    program = find_program(driver_root, name)
    if program is None:
        raise SetupError(
            f"{name} not found under {driver_root} (looked in {SEARCHED}); install the part of the"
            " GPU driver that contains it (nvidia-compute-utils, nvidia-cuda-mps)"
        )
    return program.path


def _wait_until_it_answers(daemon: MpsDaemon, child: subprocess.Popen[bytes]) -> None:
    end = time.monotonic() + _START_SECONDS
    said = "it did not listen"
    while time.monotonic() < end:
        if (status := child.poll()) is not None:
            raise DeviceError(
                f"{MPS_CONTROL} does not start (status {status}): {_last_words(daemon.log)}"
            )
        if (daemon.pipe / "control").exists():
            try:
                daemon.ask(["get_default_active_thread_percentage"])
            except DeviceError as error:
                said = str(error)
            else:
                return
        time.sleep(_POLL_SECONDS)
    raise DeviceError(f"{MPS_CONTROL} did not start in {_START_SECONDS:g} s: {said}")


def _last_words(log: Path) -> str:
    try:
        lines = (log / "control.log").read_text(errors="replace").splitlines()
    except OSError:
        return "it left no log"
    return lines[-1] if lines else "its log is empty"


def _end(daemon: MpsDaemon, child: subprocess.Popen[bytes]) -> None:
    if child.poll() is None:
        with suppress(DeviceError, OSError):
            daemon.ask([f"quit -t {_QUIT_SECONDS}"])
        with suppress(subprocess.TimeoutExpired):
            child.wait(_QUIT_SECONDS)
    # The daemon's servers belong to its session.
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()


def clean_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Return an environment without variables that choose another MPS daemon, or GPUs."""
    return {
        name: value
        for name, value in environment.items()
        if not name.startswith("CUDA_MPS_") and name != "CUDA_VISIBLE_DEVICES"
    }
