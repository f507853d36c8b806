"""A run on a card: how the card was before, what tests may use of it, and the way back.

In: what may be changed (ALLOW) and the card. A file that says how the card was, and how processes
and files of the run are recognised, is there before the first test. However a run ends, `put_back`
undoes it; if it was killed, the next run does so from the file, or `make hardware RESTORE=1`.
"""

import fcntl
import os
import shutil
import signal
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
from testbed import mps
from testbed.commands import TestbedError
from testbed.mounts import mounts_below, unmount_all

from dra_driver.devices.control_groups import find_hierarchy
from dra_driver.errors import ConflictError, SetupError, StateError
from dra_driver.host.files import write_whole
from dra_driver.mps.processes import environment_of
from hardware.card import Card, Settings
from hardware.stage import Stage

CHANGES: Mapping[str, str] = {
    "time-slice": "the card's time-slice",
    "compute-mode": "the card's compute mode, and under MPS to EXCLUSIVE_PROCESS",
    "mig-mode": "the card's MIG mode and, where that changes, its other settings; MIG devices",
    "mps": "nothing of the card, but MPS daemons run on it",
    "memory-limit": "the memory limit of a control group that the test makes",
}
"""What may be allowed, and what that means."""

MARK = "DRA_DRIVER_HARDWARE_RUN"
"""The variable that all processes of a run have; its containers' control groups have its value in
their names."""

CGROUPS = Path("/sys/fs/cgroup")
_END_SECONDS = 20.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Before:
    """What the way back has to know of a run, and how its card was.

    Attributes:
        run: the value of MARK.
        root: the driver root, and `gpu` the UUID of the card there.
        folder: has all of its files.
        group: the control group that it may make for memory limits; empty for none.
        allow: what it may have changed.
        place: where it may have made a MIG device: the profile's id, and the start.
    """

    run: str
    root: str
    gpu: str
    folder: str
    group: str
    allow: list[str]
    settings: Settings
    place: tuple[int, int] | None


@dataclass(slots=True)
class Evidence:
    """What a test has seen: answers by question, and seconds by what took them."""

    notes: list[str] = field(default_factory=list)
    answers: dict[str, str] = field(default_factory=dict)
    timings: dict[str, float] = field(default_factory=dict)


class Run:
    """What tests have of a run."""

    def __init__(self, card: Card, before: Before) -> None:
        self.card, self.before = card, before
        self.folder = Path(before.folder)
        self.group = Path(before.group) if before.group else None
        self.mark = {MARK: before.run}
        self.evidence = Evidence()
        self._stage: Stage | None = None

    @property
    def stage(self) -> Stage:
        """Driver, kubelet's socket and API server, started at the first use."""
        if self._stage is None:
            self._stage = Stage(self.folder / "stage", self.card, self.mark)
            self._stage.start()
        return self._stage

    def stop_stage(self) -> None:
        """Stop the driver, which has NVML open."""
        stage, self._stage = self._stage, None
        if stage is not None:
            stage.stop()

    def allows(self, change: str) -> bool:
        """Whether something may be changed."""
        return change in self.before.allow

    def note(self, seen: str) -> None:
        """Keep something that was seen."""
        self.evidence.notes.append(seen)

    def answer(self, question: str, sentence: str) -> None:
        """Keep the answer to a question of docs/hardware.md."""
        self.evidence.answers[question] = sentence

    @contextmanager
    def timed(self, what: str) -> Iterator[None]:
        """Record how long something takes."""
        began = time.monotonic()
        yield
        self.evidence.timings[what] = round(time.monotonic() - began, 3)

    def undo(self, changes: frozenset[str]) -> None:
        """Set back what a test may have changed."""
        with suppress(TestbedError):  # what does not stop is killed
            self.stop_stage()
        end_all(self.before)
        self.card.restore(changes, self.before.settings, self.before.place)


@contextmanager
def locked() -> Iterator[Path]:
    """Keep other runs out; yield the file for Before, which is there if a run did not end."""
    state = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state")
    folder = state / "dra-driver-hardware"
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise ConflictError(f"another run has {folder} locked; wait for its end") from error
        yield folder / "before.json"


def begin(file: Path, root: Path, which: str, allow: frozenset[str]) -> Run:
    """Look at a card, and write down how it is.

    Raises ConflictError if others use it, or it waits for a reset; SetupError without the rights.
    """
    card = Card(root, which)
    _check(card, allow)
    name, group = uuid.uuid4().hex[:8], None
    if "memory-limit" in allow:
        mounted = os.environ.get("CGROUP_ROOT")
        hierarchy = find_hierarchy(Path(mounted) if mounted else None)
        group = hierarchy and hierarchy / f"dra-hardware-{name}"
    place = card.free_place() if "mig-mode" in allow else None
    before = Before(
        run=name,
        root=str(root),
        gpu=card.uuid,
        folder=f"/tmp/dra-hw-{name}",  # short: sockets are below it
        group=str(group or ""),
        allow=sorted(allow),
        settings=card.settings(),
        place=place and (place.profile_id, place.placement.start),
    )
    write_whole(file, msgspec.json.encode(before), mode=0o600, durable=True)
    Path(before.folder).mkdir(mode=0o755)
    os.environ[MARK] = name
    return Run(card, before)


def _check(card: Card, allow: frozenset[str]) -> None:
    if allow - {"mps"} and os.geteuid() != 0 and not card.is_simulated:
        raise SetupError("only root may change settings: run this as root, or allow less")
    users = card.load().processes
    if users and not os.environ.get("IN_USE"):
        pids = ", ".join(str(user.pid) for user in users)
        raise ConflictError(
            f"others use the card (processes {pids}); end them, or say IN_USE=1: they keep running,"
            " and may be disturbed by whatever is changed"
        )
    mig = card.gpu.mig
    if "mig-mode" in allow and mig is not None and mig.pending_mode is not card.gpu.mig_mode:
        raise ConflictError(
            "a change of the card's MIG mode waits for a reset, and would be lost; reset the card"
            " first, or do not allow mig-mode"
        )


def restore(file: Path) -> list[str] | None:
    """Undo a run that did not end; return what is not as before, or None if there is no such run.

    Raises DriverError while something cannot be undone; then the file stays.
    """
    if not file.exists():
        return None
    before = msgspec.json.decode(file.read_bytes(), type=Before)
    if not Path(before.root).exists():
        raise StateError(
            f"{before.root} is gone, by which the GPU was set; have the GPU driver there again, or"
            f" remove {file} if the machine was a simulated one"
        )
    return put_back(file, before, Card(Path(before.root), before.gpu))


def put_back(file: Path, before: Before, card: Card) -> list[str]:
    """Undo everything of a run; return what is not as it was. Removes the file."""
    os.environ.pop(MARK, None)
    end_all(before)
    for group in groups(before):
        with suppress(OSError):  # gone meanwhile
            group.rmdir()
    _remove_group(before, card)
    card.restore(frozenset(before.allow), before.settings, before.place)
    differences = before.settings.differences(card.settings())
    folder = Path(before.folder)
    if mounts_below(folder, itself=True):
        unmount_all(folder)
    if left := mounts_below(folder, itself=True):
        raise StateError(f"{left[0]} cannot be unmounted; unmount it, and restore again")
    shutil.rmtree(folder, ignore_errors=True)
    file.unlink()
    return differences


def _remove_group(before: Before, card: Card) -> None:
    group = Path(before.group)
    if not before.group or not group.exists():
        return
    with card.nvml() as library:
        if library.knows_memory_limits():
            library.set_memory_limit(card.uuid, group, None)
    for inner in (*filter(Path.is_dir, group.iterdir()), group):
        inner.rmdir()


def groups(before: Before) -> list[Path]:
    """Return the control groups of a run's containers; of cgroup v1 one in each hierarchy."""
    return [*CGROUPS.glob(f"dra-{before.run}-*"), *CGROUPS.glob(f"*/dra-{before.run}-*")]


def processes(before: Before) -> set[int]:
    """Return the PIDs of a run's processes, except this one.

    They have its mark; MPS daemons a folder below its own, and those of a container, also while it
    is being made, its control group.
    """
    ours = set(mps.processes(Path(before.folder)))
    for group in groups(before):
        with suppress(OSError):  # gone meanwhile
            ours |= {int(pid) for pid in (group / "cgroup.procs").read_text().split()}
    pids = {int(entry.name) for entry in Path("/proc").glob("[0-9]*")}
    ours |= {pid for pid in pids if environment_of(pid).get(MARK) == before.run}
    return ours - {0, os.getpid()}  # 0 is a process outside this PID namespace


def end_all(before: Before) -> None:
    """Kill the processes of a run. Raises StateError if one of them does not end."""
    end = time.monotonic() + _END_SECONDS
    while left := processes(before):
        if time.monotonic() > end:
            raise StateError(f"processes {sorted(left)} do not end; see dmesg, end them, and retry")
        for pid in left:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.05)
