"""Runs cases as plain processes of this machine: no Kubernetes, and no setting of a GPU is changed.

In: a GPU, a strategy, a work. Out: a `Case`. Alone and time-slicing are what a GPU does by itself;
for MPS a control daemon of one's own is there as long as the case is. Whatever ends a case ends all
of its processes, and the kernel does where this process is killed.
"""

import os
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from dra_driver.bench import lines
from dra_driver.bench.card import CardDoor, Watch
from dra_driver.bench.gathering import Gathered, case_of, failed
from dra_driver.bench.listening import Listener
from dra_driver.bench.model import Case, Result, Tenant, Usage
from dra_driver.bench.mps_daemon import clean_environment, control_program, mps_daemon
from dra_driver.bench.strategies import OF_MIG, UNDER_MPS, Sharing, Strategy
from dra_driver.bench.works import Work, WorkKind
from dra_driver.errors import DriverError, SetupError

TENANT = (sys.executable, "-m", "dra_driver.bench.tenant")
_LEASH = (sys.executable, "-m", "dra_driver.bench.leash")
_LEAD_SECONDS = 0.5
_POLL_SECONDS = 0.05
_END_SECONDS = 10.0
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
        tenant: Sequence[str] = TENANT,
        environment: Mapping[str, str] = os.environ,
    ) -> None:
        """Take the GPU.

        Args:
            door: the GPU, by NVML.
            driver_root: where the NVIDIA driver's libraries and programs are.
            patience: seconds for all tenants to be ready, and for them to end after their time.
            tenant: the program of a tenant.
            environment: what tenants inherit; what names another MPS is left out.
        """
        self._door = door
        self._root = driver_root
        self._patience = patience
        self._tenant = tenant
        self._environment = clean_environment(environment)
        if driver_root != Path("/"):
            folders = (str(door.library_folder), self._environment.get(_LIBRARIES, ""))
            self._environment[_LIBRARIES] = os.pathsep.join(filter(None, folders))

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

    def run(self, strategy: Strategy, work: Work) -> Case:
        """Run a case; whatever happens, its processes have ended afterwards."""
        try:
            with ExitStack() as stack:
                folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="dra-bench-")))
                environment, seen = stack.enter_context(self._shared(strategy, folder))
                return self._run(strategy, work, folder, environment, seen)
        except DriverError as error:
            return failed(strategy, str(error))

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
        work: Work,
        folder: Path,
        environment: Mapping[str, str],
        seen: tuple[str, ...],
    ) -> Case:
        if work.kind is WorkKind.COMMAND:
            return self._run_command(strategy, work, environment, seen)
        start = folder / "start"
        commands = [
            (*self._tenant, self._spec(number, work, start).model_dump_json())
            for number in range(strategy.tenants)
        ]
        with _processes(commands, environment) as tenants:
            _wait(lambda: all(one.is_settled for one in tenants), self._patience)
            _write(start, time.time() + _LEAD_SECONDS)
            _wait(
                lambda: all(one.is_over for one in tenants),
                _LEAD_SECONDS + work.seconds + self._patience,
            )
            return case_of(
                strategy,
                [Gathered.of(one) for one in tenants],
                seen=seen,
                is_simulated=self._door.card().is_simulated,
            )

    def _spec(self, number: int, work: Work, start: Path) -> lines.Spec:
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
        work: Work,
        environment: Mapping[str, str],
        seen: tuple[str, ...],
    ) -> Case:
        """Run a command of the user's own, as often at the same time as there are tenants."""
        watch = Watch(self._door.busy)
        commands = [(*_LEASH, *work.command)] * strategy.tenants
        with _processes(commands, environment, quiet=True) as tenants:
            watch.start()
            try:
                end = time.monotonic() + work.seconds
                while time.monotonic() < end and not all(one.has_ended for one in tenants):
                    time.sleep(_POLL_SECONDS)
            finally:
                usage = watch.stop()
            found = tuple(_of_command(number, one) for number, one in enumerate(tenants))
        if self._door.card().is_simulated:
            return Case(strategy=strategy, state="passed", seen=seen)
        return _case_of_commands(strategy, work, found, usage, seen)


def _of_command(number: int, one: Listener) -> Tenant:
    if not one.has_ended:
        return Tenant(number=number, failure="it had not ended in time: give it more by --seconds")
    if one.exit_status != 0:
        return Tenant(number=number, failure=f"its exit status was {one.exit_status}")
    took = max(one.lived_seconds, 1e-6)
    return Tenant(
        number=number,
        result=Result(throughput=1 / took, unit="runs", seconds=took, exit_status=0),
    )


def _case_of_commands(
    strategy: Strategy, work: Work, found: tuple[Tenant, ...], usage: Usage, seen: tuple[str, ...]
) -> Case:
    if any(one.result for one in found):
        return Case(strategy=strategy, state="measured", tenants=found, usage=usage, seen=seen)
    reason = f"no run of `{shlex.join(work.command)}` ended well: {found[0].failure}"
    return Case(strategy=strategy, state="failed", reason=reason, tenants=found, seen=seen)


@contextmanager
def _processes(
    commands: Sequence[Sequence[str]], environment: Mapping[str, str], *, quiet: bool = False
) -> Iterator[tuple[Listener, ...]]:
    """Run programs, each in a session of its own; all have ended when this ends."""
    started: list[Listener] = []
    try:
        for command in commands:
            started.append(Listener(_start(command, environment, quiet=quiet)))  # noqa: PERF401 (each is to be ended if the next fails)
        yield tuple(started)
    finally:
        for one in started:
            _signal(one.process, signal.SIGTERM)
        end = time.monotonic() + _END_SECONDS
        for one in started:
            with suppress(subprocess.TimeoutExpired):
                one.process.wait(max(0.0, end - time.monotonic()))
            _signal(one.process, signal.SIGKILL)
            one.process.wait()
            one.close()


def _start(
    command: Sequence[str], environment: Mapping[str, str], *, quiet: bool
) -> subprocess.Popen[str]:
    try:
        return subprocess.Popen(
            command,
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL if quiet else subprocess.PIPE,
            stderr=subprocess.DEVNULL if quiet else subprocess.PIPE,
            text=True,
            errors="replace",
            start_new_session=True,  # Ctrl-C reaches this process alone, which then ends them
        )
    except OSError as error:
        raise SetupError(f"cannot run {command[0]}: {error.strerror}") from error


def _signal(process: subprocess.Popen[str], number: signal.Signals) -> None:
    """Tell all processes of its session, which is there as long as one of them is."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)


def _write(start: Path, moment: float) -> None:
    new = start.with_name("start.new")
    new.write_text(f"{moment:.3f}", encoding="ascii")
    new.replace(start)


def _wait(is_so: Callable[[], bool], seconds: float) -> None:
    """Wait until it is so, or for so long."""
    end = time.monotonic() + seconds
    while not is_so() and time.monotonic() < end:
        time.sleep(_POLL_SECONDS)
