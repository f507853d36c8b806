"""Runs cases as plain processes of this machine, without Kubernetes or changes of a GPU's settings.

Alone and time-slicing are what a GPU does by itself; for MPS a separate control daemon runs as long
as the case; MIG devices are used if they exist already. However a case ends, all of its
processes end, even if this process is killed.
"""

import itertools
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final, Self

from dra_driver.bench import commands, lines
from dra_driver.bench.gathering import (
    CommandEnd,
    Gathered,
    case_of,
    failed,
    tenant_of_command,
)
from dra_driver.bench.listening import Listener
from dra_driver.bench.model import Case, Tenant
from dra_driver.bench.mps_daemon import clean_environment, control_program, mps_daemon
from dra_driver.bench.pods.offer import Offer
from dra_driver.bench.scratch import remove_leftovers, scratch
from dra_driver.bench.stopping import Stop
from dra_driver.bench.strategies import (
    UNDER_MPS,
    Part,
    Sharing,
    Strategy,
    beginnings,
    longest,
    watcher,
)
from dra_driver.bench.tenant.card import CardNvml, Watch
from dra_driver.bench.tenant.supervised import uptime
from dra_driver.bench.workload import Workload
from dra_driver.errors import DeviceError, DriverError, SetupError, StateError

TENANT = (sys.executable, "-m", "dra_driver.bench.tenant.program")
_SUPERVISED = (sys.executable, "-m", "dra_driver.bench.tenant.supervised")
_LEAD_SECONDS = 0.5
_POLL_SECONDS = 0.05
_END_SECONDS = 10.0
_MOST_BYTES = 16 << 20
_PIPE = "CUDA_MPS_PIPE_DIRECTORY"
_LIBRARIES = "LD_LIBRARY_PATH"


class ProcessRunner:
    """Runs cases on one GPU of this machine, or several. For the main thread."""

    where: Final = "processes"

    def __init__(  # noqa: PLR0913 (what a machine has, and how a run goes)
        self,
        nvml: CardNvml,
        driver_root: Path,
        *,
        patience: float = 300.0,
        stop: Stop | None = None,
        tenant: Sequence[str] = TENANT,
        environment: Mapping[str, str] = os.environ,
        others: Sequence[CardNvml] = (),
    ) -> None:
        """Take the GPU, and remove folders that killed runs have left.

        `patience` is how many seconds to wait for tenants to be ready, and to end once their time
        is over; `others` are further GPUs, for tenants that use whole ones.
        """
        self._nvml = nvml
        self._others = tuple(others)
        self._root = driver_root
        self._patience = patience
        self._stop = stop or Stop()
        self._tenant = tenant
        self._environment = clean_environment(environment)
        if driver_root != Path("/"):
            folders = (str(nvml.library_folder), self._environment.get(_LIBRARIES, ""))
            self._environment[_LIBRARIES] = os.pathsep.join(filter(None, folders))
        remove_leftovers()

    @property
    def offer(self) -> Offer:
        """What the GPU offers."""
        profiles = {name: len(uuids) for name, uuids in self._nvml.mig_devices.items()}
        return Offer(gpus=0 if self._nvml.is_divided else 1, profiles=profiles)

    def obstacle(self, strategy: Strategy) -> str:
        """Return why a strategy cannot be run here; empty if it can."""
        if strategy.sharing is Sharing.SHARES:
            return "only on a cluster, where a driver offers shares"
        if strategy.sharing is Sharing.MIG:
            if missing := self.offer.lack(strategy):
                if self._nvml.mig_problem:
                    return self._nvml.mig_problem
                return f"{missing}; bench changes no settings of a GPU: make them, or use a cluster"
        elif self._nvml.is_divided:
            return "the GPU is in MIG mode, and its settings are not changed here"
        if strategy.gpus > 1 + len(self._others):
            return f"it needs {strategy.gpus} GPUs: name that many, such as --gpu 0,1"
        return self._mode_obstacle(strategy)

    def _mode_obstacle(self, strategy: Strategy) -> str:
        mode = self._nvml.card().compute_mode
        if mode == "Prohibited":
            return "the GPU's compute mode is Prohibited; set it back: nvidia-smi --compute-mode=0"
        if mode == "Exclusive_Process" and strategy.sharing is Sharing.TIME_SLICING:
            return (
                "the GPU's compute mode Exclusive_Process allows only one process; set it back:"
                " nvidia-smi --compute-mode=0"
            )
        if strategy.sharing in UNDER_MPS:
            try:
                control_program(self._root)
            except SetupError as error:
                return str(error)
        return ""

    def _devices(self, strategy: Strategy) -> list[str]:
        """Return the devices of each tenant, as CUDA_VISIBLE_DEVICES names them."""
        if strategy.sharing is Sharing.WHOLE_GPUS:
            gpus = iter([self._nvml.uuid, *(card.uuid for card in self._others)])
            return [",".join(itertools.islice(gpus, part.gpus)) for part in strategy.parts]
        if strategy.sharing is not Sharing.MIG:
            return [self._nvml.uuid] * strategy.tenants
        there = {name: iter(uuids) for name, uuids in self._nvml.mig_devices.items()}
        return [next(there[profile]) for profile in strategy.profiles]

    def run(self, strategy: Strategy, seed: int) -> Case:
        """Run a case; its processes have ended afterwards, whatever happens."""
        try:
            with ExitStack() as stack:
                folder = stack.enter_context(scratch())
                environment, seen = stack.enter_context(self._shared(strategy, folder))
                return self._run(strategy, seed, folder, environment, seen)
        except DriverError as error:
            return failed(strategy, str(error))
        except OSError as error:
            return failed(strategy, f"{error.filename or 'this machine'}: {error.strerror}")

    @contextmanager
    def _shared(
        self, strategy: Strategy, folder: Path
    ) -> Iterator[tuple[Mapping[str, str], tuple[str, ...]]]:
        """Yield the environment of a strategy's tenants, and what was found out about it."""
        if strategy.sharing not in UNDER_MPS:
            # An empty folder, so that no MPS daemon of the machine serves the tenants.
            empty = folder / "no-mps"
            empty.mkdir()
            yield {**self._environment, _PIPE: str(empty)}, ()
            return
        (device,) = set(self._devices(strategy))
        with mps_daemon(self._root, device, self._environment) as daemon:
            seen = daemon.limit(strategy)
            yield {**self._environment, _PIPE: str(daemon.pipe)}, seen

    def _run(
        self,
        strategy: Strategy,
        seed: int,
        folder: Path,
        environment: Mapping[str, str],
        seen: tuple[str, ...],
    ) -> Case:
        seats = strategy.seats(seed)
        environments = [
            {**environment, "CUDA_VISIBLE_DEVICES": device, **seat.environment()}
            for seat, device in zip(seats, self._devices(strategy), strict=True)
        ]
        seen = (*seen, *_settings_of(seats))
        starts = [folder / f"start-{number}" for number in range(len(seats))]
        with _Processes() as processes:
            for launch in sorted({seat.launch for seat in seats}):
                for number, seat in enumerate(seats):
                    if seat.launch == launch:
                        words = self._words(number, seats, starts[number], strategy)
                        is_read = seat.work.latencies and not commands.writes_file(seat.work)
                        kept = _MOST_BYTES if is_read else 0
                        processes.start(number, words, environments[number], output_bytes=kept)
                self._wait(processes.are_settled, self._patience)
            begin = uptime() + _LEAD_SECONDS
            for start, after in zip(starts, beginnings(seats), strict=True):
                _write(start, begin + after)
            self._wait(lambda: uptime() >= begin or processes.are_over(), _LEAD_SECONDS)
            with self._watched(seats) as watch:
                self._wait(processes.are_over, longest(seats))
            commands_ended = {
                number: _of_command(number, seats[number].work, process, starts[number])
                for number, process in enumerate(processes.all)
                if seats[number].is_command
            }
            if len(commands_ended) < len(seats):  # bench's own tenants may be a little late
                self._wait(lambda: processes.are_over(commands_ended), self._patience)
            return case_of(
                strategy,
                [
                    commands_ended.get(number) or Gathered.of(process)
                    for number, process in enumerate(processes.all)
                ],
                usage=None if watch is None else watch.stop(),
                seen=seen,
                is_simulated=self._nvml.card().is_simulated,
            )

    @contextmanager
    def _watched(self, seats: Sequence[Part]) -> Iterator[Watch | None]:
        """Sample how busy the card is, unless a tenant does that."""
        if watcher(seats) is not None:
            yield None
            return
        watch = Watch(self._nvml.busy)
        watch.start()
        try:
            yield watch
        finally:
            watch.stop()

    def _wait(self, is_so: Callable[[], bool], seconds: float) -> None:
        self._stop.wait(is_so, seconds, _POLL_SECONDS)

    def _spec(
        self, number: int, seats: Sequence[Part], start: Path, strategy: Strategy
    ) -> lines.Spec:
        gpu, launches = self._nvml.uuid, len({part.launch for part in strategy.parts})
        if strategy.sharing is Sharing.WHOLE_GPUS:
            gpu = self._devices(strategy)[number].partition(",")[0]
        return lines.Spec(
            number=number,
            work=seats[number].work,
            start=str(start),
            patience=(1 + launches) * self._patience,
            driver_root=str(self._root),
            gpu=gpu,
            watches=number == watcher(seats),
        )

    def _words(
        self, number: int, seats: Sequence[Part], start: Path, strategy: Strategy
    ) -> Sequence[str]:
        """Return the program of a tenant, with its arguments."""
        if seats[number].is_command:
            own = commands.words(seats[number].work, str(_latencies(start)))
            return (*_SUPERVISED, "--start", str(start), *own)
        return (*self._tenant, self._spec(number, seats, start, strategy).model_dump_json())


def _latencies(start: Path) -> Path:
    """Return the file to which a command writes its latencies."""
    return start.with_name(f"{start.name}.latencies")


def _settings_of(seats: Sequence[Part]) -> tuple[str, ...]:
    """Return the settings that single tenants were given."""
    return tuple(
        f"tenant {number}: {name}={value}"
        for number, seat in enumerate(seats)
        for name, value in seat.environment().items()
    )


def _of_command(number: int, work: Workload, process: Listener, start: Path) -> Tenant:
    text = process.output
    if commands.writes_file(work) and process.exit_status == 0:
        try:
            with _latencies(start).open("rb") as content:
                text = content.read(_MOST_BYTES).decode(errors="replace")
        except OSError as error:
            why = f"it has not written its latencies to {commands.FILE}: {error.strerror}"
            return Tenant(number=number, failure=why)
    end = CommandEnd(
        status=process.exit_status,
        text=text,
        ended=process.ended,
        seconds=process.lived_seconds,
        last_words=process.last_words,
    )
    return tenant_of_command(number, work, end)


class _Processes:
    """Programs of a case, each in its own session; all have ended when this is left."""

    def __init__(self) -> None:
        self._started: dict[int, Listener] = {}

    @property
    def all(self) -> tuple[Listener, ...]:
        """Those that were started, in the order of their numbers."""
        return tuple(process for _, process in sorted(self._started.items()))

    def start(
        self,
        number: int,
        command: Sequence[str],
        environment: Mapping[str, str],
        *,
        output_bytes: int = 0,
    ) -> None:
        """Run a program, and keep the end of its output. Raises SetupError if it cannot start."""
        process = _start(command, environment)
        self._started[number] = Listener(process, output_bytes=output_bytes)

    def are_settled(self) -> bool:
        """Whether each is ready, or never will be."""
        return all(each.is_settled for each in self.all)

    def are_over(self, but: Container[int] = ()) -> bool:
        """Whether each has reported a result, except those with these numbers."""
        return all(each.is_over for number, each in self._started.items() if number not in but)

    def have_ended(self) -> bool:
        """Whether none runs any more."""
        return all(each.has_ended for each in self.all)

    def __enter__(self) -> Self:
        """Begin with none."""
        return self

    def __exit__(self, *_: object) -> None:
        """End them, finally by force. No signal stops this. Raises DeviceError if one remains."""
        for number in (signal.SIGTERM, signal.SIGKILL):
            for process in self.all:
                process.signal(number)
            Stop().wait(self.have_ended, _END_SECONDS, _POLL_SECONDS)
        for process in self.all:
            process.close()
        if left := [str(each.process.pid) for each in self.all if not each.has_ended]:
            raise DeviceError(
                f"tenants cannot be ended, not even by SIGKILL (process {', '.join(left)}): they"
                " hang in the GPU driver; look for Xid lines in dmesg, and reboot if they stay"
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
    new = start.with_name(f"{start.name}.new")
    try:
        new.write_text(f"{moment:.3f}", encoding="ascii")
        new.replace(start)
    except OSError as error:
        raise StateError(f"{new} cannot be written: {error.strerror}") from error
