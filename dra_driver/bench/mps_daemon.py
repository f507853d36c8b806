"""An MPS control daemon of one's own, for the processes of one case.

In: a driver root, a GPU, limits. Out: a daemon in a folder of its own, and the environment of its
clients. Nothing of the GPU's settings is changed, its compute mode neither; another MPS of the
machine is neither asked nor touched, since a client finds its daemon by the folder alone. The
daemon runs in the foreground as this process's child. It is asked to quit at the end, and killed if
it does not; killed with this process if that is killed.
"""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from dra_driver.bench.strategies import Strategy
from dra_driver.devices.programs import MPS_CONTROL, MPS_SERVER, SEARCHED, find_program
from dra_driver.errors import DeviceError, SetupError

_START_SECONDS = 20.0
_ASK_SECONDS = 10.0
_QUIT_SECONDS = 5
_POLL_SECONDS = 0.05
_ALL = 100


class MpsDaemon:
    """A running daemon."""

    def __init__(self, control: Path, folder: Path, environment: Mapping[str, str]) -> None:
        """Take the program, the folder with its sockets, and what the program runs with."""
        self._control = control
        self._environment = environment
        self.pipe = folder / "pipe"
        self.log = folder / "log"

    def ask(self, *commands: str) -> list[str]:
        """Give commands to the daemon; return the lines of its reply.

        Raises:
            DeviceError: it does not answer.
        """
        try:
            done = subprocess.run(
                [self._control],
                input="".join(f"{command}\n" for command in commands),
                env=dict(self._environment),
                capture_output=True,
                text=True,
                errors="replace",
                timeout=_ASK_SECONDS,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise DeviceError(
                f"the MPS control daemon did not answer in {_ASK_SECONDS:g} s; try again, and see"
                " dmesg if that does not help"
            ) from error
        if done.returncode != 0:
            said = " ".join((done.stderr or done.stdout).split())
            raise DeviceError(f"the MPS control daemon does not answer: {said}")
        return done.stdout.splitlines()

    def limit(self, strategy: Strategy) -> tuple[str, ...]:
        """Set the limits of a strategy for each client; return what the daemon says of them.

        Raises:
            DeviceError: it does not answer, or has other limits afterwards.
        """
        percentage, memory = strategy.thread_percentage, strategy.memory_mib
        commands = []
        if percentage is not None:
            commands.append(f"set_default_active_thread_percentage {percentage}")
        if memory is not None:
            commands.append(f"set_default_device_pinned_mem_limit 0 {memory}M")
        if commands:
            self.ask(*commands)
        questions = ["get_default_active_thread_percentage"]
        if memory is not None:
            questions.append("get_default_device_pinned_mem_limit 0")
        said = self.ask(*questions)
        wanted = float(percentage or _ALL)
        if len(said) != len(questions) or abs(float(said[0]) - wanted) > 1:
            raise DeviceError(
                f"the MPS control daemon did not take the limits of {strategy.label}: it says"
                f" {', '.join(said) or 'nothing'}"
            )
        return tuple(f"{one}: {answer}" for one, answer in zip(questions, said, strict=True))


@contextmanager
def mps_daemon(driver_root: Path, gpu: str, environment: Mapping[str, str]) -> Iterator[MpsDaemon]:
    """Run a daemon for one GPU; it has ended when this ends, however that is.

    Args:
        driver_root: where NVIDIA's programs are.
        gpu: the GPU's UUID.
        environment: of its programs, such as where the driver's libraries are.

    Raises:
        SetupError: this machine has no MPS.
        DeviceError: the daemon does not start.
    """
    control = control_program(driver_root)
    # A socket's path has 107 bytes at most, so this is no folder of the user's.
    folder = Path(tempfile.mkdtemp(prefix="dra-bench-"))
    try:
        for name in ("pipe", "log"):
            (folder / name).mkdir(mode=0o755)
        own = {
            **environment,
            "CUDA_MPS_PIPE_DIRECTORY": str(folder / "pipe"),
            "CUDA_MPS_LOG_DIRECTORY": str(folder / "log"),
            "CUDA_VISIBLE_DEVICES": gpu,
        }
        daemon = MpsDaemon(control, folder, own)
        child = subprocess.Popen(
            [sys.executable, "-m", "dra_driver.bench.leash", control, "-f"],
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
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def control_program(driver_root: Path) -> Path:
    """Return NVIDIA's program.

    Raises:
        SetupError: it is not there, or what it starts is not.
    """
    for name in (MPS_CONTROL, MPS_SERVER):
        if find_program(driver_root, name) is None:
            raise SetupError(
                f"{name} not found under {driver_root} (looked in {SEARCHED}); install the part of"
                " the NVIDIA driver that holds it (nvidia-compute-utils, nvidia-cuda-mps)"
            )
    found = find_program(driver_root, MPS_CONTROL)
    if found is None:
        raise SetupError(f"{MPS_CONTROL} has gone while it was looked for; try again")
    return found.path


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
                daemon.ask("get_default_active_thread_percentage")
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
            daemon.ask(f"quit -t {_QUIT_SECONDS}")
        with suppress(subprocess.TimeoutExpired):
            child.wait(_QUIT_SECONDS)
    # Servers are of the daemon's session, which it began.
    _kill_group(child.pid)
    child.wait()


def _kill_group(pid: int) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


def clean_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Return an environment without what would make its programs clients of another MPS."""
    return {
        name: value
        for name, value in environment.items()
        if not name.startswith("CUDA_MPS_") and name != "CUDA_VISIBLE_DEVICES"
    }
