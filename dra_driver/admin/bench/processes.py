"""Runs cases as plain processes of this machine: no Kubernetes, and no setting of a GPU is changed.

Alone and time-slicing are what a GPU does by itself; for MPS a control daemon of one's own is there
as long as the case is. Whatever ends a case ends all of its processes, and the kernel does where
this process is killed.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from dra_driver.admin.bench import commands, lines
from dra_driver.admin.bench.gathering import (
    CommandEnd,
    Gathered,
    case_of,
    case_of_commands,
    failed,
    tenant_of_command,
)
from dra_driver.admin.bench.listening import Listener
from dra_driver.admin.bench.model import Case, Tenant
from dra_driver.admin.bench.mps_daemon import clean_environment, control_program, mps_daemon
from dra_driver.admin.bench.scratch import remove_leftovers, scratch
from dra_driver.admin.bench.stopping import Stop
from dra_driver.admin.bench.strategies import OF_MIG, UNDER_MPS, Sharing, Strategy
from dra_driver.admin.bench.tenant.card import CardDoor, Watch
from dra_driver.admin.bench.tenant.supervised import uptime
from dra_driver.admin.bench.workload import Workload, WorkloadKind
from dra_driver.errors import DeviceError, DriverError, SetupError, StateError

TENANT = (sys.executable, "-m", "dra_driver.admin.bench.tenant.program")
_SUPERVISED = (sys.executable, "-m", "dra_driver.admin.bench.tenant.supervised")
_LEAD_SECONDS = 0.5
_POLL_SECONDS = 0.05
_END_SECONDS = 10.0
_MOST_BYTES = 16 << 20
_PIPE = "CUDA_MPS_PIPE_DIRECTORY"
_LIBRARIES = "LD_LIBRARY_PATH"


class ProcessRunner:
    """Runs cases on one GPU of this machine. For the main thread."""

    where = "processes"

    def __init__(
        self,
        door: CardDoor,
        driver_root: Path,
        *,
        patience: float = 300.0,
        stop: Stop | None = None,
        tenant: Sequence[str] = TENANT,
        environment: Mapping[str, str] = os.environ,
    ) -> None:
        """Take the GPU; folders that killed runs have left are removed.

        `patience` is how many seconds tenants have to be ready, and to end after their time.
        """
        self._door = door
        self._root = driver_root
        self._patience = patience
        self._stop = stop or Stop()
        self._tenant = tenant
        self._environment = clean_environment(environment)
        if driver_root != Path("/"):
            folders = (str(door.library_folder), self._environment.get(_LIBRARIES, ""))
            self._environment[_LIBRARIES] = os.pathsep.join(filter(None, folders))
        remove_leftovers()

    def obstacle(self, strategy: Strategy) -> str:
        """Say why a strategy cannot be run here; nothing if it can."""
        if strategy.sharing in OF_MIG or strategy.sharing is Sharing.SHARES:
            return "only on a cluster: here no setting of a GPU is changed"
        if self._door.is_divided:
            return "the GPU is in MIG mode, and its settings are not changed here"
        mode = self._door.card().compute_mode
        if mode == "Prohibited":
            return "the GPU's compute mode is Prohibited; set it back: nvidia-smi --compute-mode=0"
        if mode == "Exclusive_Process" and strategy.sharing is Sharing.TIME_SLICING:
            return (
                "the GPU's compute mode Exclusive_Process lets one process in; set it back:"
                " nvidia-smi --compute-mode=0"
            )
        if strategy.sharing in UNDER_MPS:
            try:
                control_program(self._root)
            except SetupError as error:
                return str(error)
        return ""

    def run(self, strategy: Strategy, work: Workload) -> Case:
        """Run a case; whatever happens, its processes have ended afterwards."""
        try:
            with ExitStack() as stack:
                folder = stack.enter_context(scratch())
                environment, seen = stack.enter_context(self._shared(strategy, folder))
                return self._run(strategy, work, folder, environment, seen)
        except DriverError as error:
            return failed(strategy, str(error))
        except OSError as error:
            return failed(strategy, f"{error.filename or 'this machine'}: {error.strerror}")

    @contextmanager
    def _shared(
        self, strategy: Strategy, folder: Path
    ) -> Iterator[tuple[Mapping[str, str], tuple[str, ...]]]:
        """Yield the environment of a strategy's tenants, and what was found of the strategy."""
        own = {**self._environment, "CUDA_VISIBLE_DEVICES": self._door.uuid}
        if strategy.sharing not in UNDER_MPS:
            # An empty folder: an MPS that the machine has is not to serve these.
            nobody = folder / "no-mps"
            nobody.mkdir()
            yield {**own, _PIPE: str(nobody)}, ()
            return
        with mps_daemon(self._root, self._door.uuid, self._environment) as daemon:
            seen = daemon.limit(strategy)
            yield {**own, _PIPE: str(daemon.pipe)}, seen

    def _run(
        self,
        strategy: Strategy,
        work: Workload,
        folder: Path,
        environment: Mapping[str, str],
        seen: tuple[str, ...],
    ) -> Case:
        if work.kind is WorkloadKind.COMMAND:
            return self._run_command(strategy, work, folder, environment, seen)
        start = folder / "start"
        tenants_words = [
            (*self._tenant, self._spec(number, work, start).model_dump_json())
            for number in range(strategy.tenants)
        ]
        with _processes(tenants_words, environment) as tenants:
            self._wait(lambda: all(one.is_settled for one in tenants), self._patience)
            _write(start, time.time() + _LEAD_SECONDS)
            self._wait(
                lambda: all(one.is_over for one in tenants),
                _LEAD_SECONDS + work.warm_up + work.seconds + self._patience,
            )
            return case_of(
                strategy,
                [Gathered.of(one) for one in tenants],
                seen=seen,
                is_simulated=self._door.card().is_simulated,
            )

    def _wait(self, is_so: Callable[[], bool], seconds: float) -> None:
        self._stop.wait(is_so, seconds, _POLL_SECONDS)

    def _spec(self, number: int, work: Workload, start: Path) -> lines.Spec:
        return lines.Spec(
            number=number,
            work=work,
            start=str(start),
            patience=2 * self._patience,
            driver_root=str(self._root),
            gpu=self._door.uuid,
            watches=number == 0,
        )

    def _run_command(
        self,
        strategy: Strategy,
        work: Workload,
        folder: Path,
        environment: Mapping[str, str],
        seen: tuple[str, ...],
    ) -> Case:
        """Run a command of the user's own, as often at the same time as there are tenants."""
        watch, start = Watch(self._door.busy), folder / "start"
        files = [folder / f"latencies-{number}" for number in range(strategy.tenants)]
        held = (*_SUPERVISED, "--start", str(start))
        all_words = [(*held, *commands.words(work, str(file))) for file in files]
        kept = _MOST_BYTES if work.latencies and not commands.writes_file(work) else 0
        with _processes(all_words, environment, output_bytes=kept) as tenants:
            self._wait(lambda: all(one.is_settled for one in tenants), self._patience)
            moment = uptime() + _LEAD_SECONDS
            _write(start, moment)
            self._wait(lambda: uptime() >= moment, _LEAD_SECONDS)
            watch.start()
            try:
                self._wait(lambda: all(one.has_ended for one in tenants), work.seconds)
            finally:
                usage = watch.stop()
            found = tuple(
                _of_command(number, work, one, file)
                for number, (one, file) in enumerate(zip(tenants, files, strict=True))
            )
        is_simulated = self._door.card().is_simulated
        return case_of_commands(strategy, found, usage=usage, seen=seen, is_simulated=is_simulated)


def _of_command(number: int, work: Workload, one: Listener, file: Path) -> Tenant:
    text = one.output
    if commands.writes_file(work) and one.exit_status == 0:
        try:
            with file.open("rb") as content:
                text = content.read(_MOST_BYTES).decode(errors="replace")
        except OSError as error:
            why = f"it has not written its latencies to {commands.FILE}: {error.strerror}"
            return Tenant(number=number, failure=why)
    end = CommandEnd(
        status=one.exit_status,
        text=text,
        ended=one.ended,
        seconds=one.lived_seconds,
        last_words=one.last_words,
    )
    return tenant_of_command(number, work, end)


@contextmanager
def _processes(
    programs: Sequence[Sequence[str]], environment: Mapping[str, str], *, output_bytes: int = 0
) -> Iterator[tuple[Listener, ...]]:
    """Run programs, each in a session of its own; all have ended when this ends.

    Raises SetupError if one of them cannot be run, DeviceError if one cannot be ended.
    """
    started: list[Listener] = []
    try:
        for program in programs:
            process = _start(program, environment)
            # Not all at once: each is to be ended if the next fails.
            started.append(Listener(process, output_bytes=output_bytes))
        yield tuple(started)
    finally:
        _end(started)


def _end(started: Sequence[Listener]) -> None:
    """End processes, by force in the end. No signal stops this."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        for one in started:
            one.signal(number)
        Stop().wait(lambda: all(one.has_ended for one in started), _END_SECONDS, _POLL_SECONDS)
    for one in started:
        one.close()
    if left := [str(one.process.pid) for one in started if not one.has_ended]:
        raise DeviceError(
            f"tenants cannot be ended, not even by SIGKILL (process {', '.join(left)}): they hang"
            " in the GPU driver; look for Xid lines in dmesg, and reboot if they stay"
        )


def _start(command: Sequence[str], environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
    try:
        return subprocess.Popen(
            command,
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,  # Ctrl-C reaches this process alone, which then ends them
        )
    except OSError as error:
        raise SetupError(f"cannot run {command[0]}: {error.strerror}") from error


def _write(start: Path, moment: float) -> None:
    new = start.with_name("start.new")
    try:
        new.write_text(f"{moment:.3f}", encoding="ascii")
        new.replace(start)
    except OSError as error:
        raise StateError(f"{new} cannot be written: {error.strerror}") from error
