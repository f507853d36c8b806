"""One run: the card's state is recorded, steps are taken, and everything is undone.

Steps get the run: the card, the stage with driver and API server, and a place for evidence,
durations and answers. However a run ends, `_put_back` undoes it; if the process is killed, the next
run does so from the journal.
"""

import os
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from testbed.commands import TestbedError

from dra_driver.devices.control_groups import find_hierarchy
from dra_driver.devices.device import Mig
from dra_driver.errors import ConflictError, DriverError, SetupError, StateError
from hardware import processes
from hardware.card import PATIENCE, Card
from hardware.journal import Entry, Journal
from hardware.processes import MARK
from hardware.stage import Stage
from hardware.steps import Change, LeftOut, Made, Outcome, Verdict

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Wishes:
    """The options of a run.

    Attributes:
        root: the driver root.
        gpu: index or UUID of the card.
        allow: what may be changed.
        state: folder of the undo journal.
        in_use: continue although others use the card.
        groups: root of the control groups; None to look for it.
    """

    state: Path
    root: Path = Path("/")
    gpu: str = "0"
    allow: frozenset[Change] = frozenset()
    in_use: bool = False
    groups: Path | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One thing to try.

    Each setting has its undo (card.py), so that no step has an undo of its own that could be
    forgotten.

    Attributes:
        name: as `--only` takes it.
        does: what it does, as the end of a sentence that begins with its name.
        do: does it; raises LeftOut, Unexpected, or an error of the driver's or the testbed's.
        changes: the settings that it changes; unless all of them are allowed it is left out.
        also: what it also changes if that is allowed.
        asks: ids of the questions that it answers.
    """

    name: str
    does: str
    do: "Callable[[Run], None]"
    changes: frozenset[Change] = frozenset()
    also: frozenset[Change] = frozenset()
    asks: tuple[str, ...] = ()

    def changed(self, allowed: frozenset[Change]) -> frozenset[Change]:
        """Return all that it changes, given what is allowed; nothing if it is left out."""
        return self.changes | (self.also & allowed) if self.changes <= allowed else frozenset()


def step(
    name: str, does: str, *, changes: str = "", also: str = "", asks: str = ""
) -> "Callable[[Callable[[Run], None]], Step]":
    """Make a step of the function that does it; several changes and questions are words."""

    def made(do: "Callable[[Run], None]") -> Step:
        return Step(
            name=name,
            does=does,
            do=do,
            changes=frozenset(map(Change, changes.split())),
            also=frozenset(map(Change, also.split())),
            asks=tuple(asks.split()),
        )

    return made


def no_point(name: str) -> None:
    """Pass every point."""


@dataclass(kw_only=True)
class Run:
    """Use as a context manager. `at` is called at each point where a run can be interrupted."""

    wishes: Wishes
    say: Say = print
    at: Callable[[str], None] = no_point
    outcomes: list[Outcome] = field(default_factory=list)
    differences: list[str] = field(default_factory=list)

    def __enter__(self) -> Self:
        """Undo an earlier run, look at the card, and record its state.

        Raises ConflictError if others use the card, or another run is at work.
        """
        with ExitStack() as stack:
            self._journal = Journal(self.wishes.state)
            stack.enter_context(self._journal.locked())
            restore_leftovers(self._journal, self.say)
            self.card = Card(self.wishes.root, self.wishes.gpu)
            self._check_rights()
            self._check_unused()
            self._check_settled()
            self._begin()
            self._stage: Stage | None = None
            self._outcome = Outcome(step="")
            self._left = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        """Undo everything, and compare. What cannot be undone stays in the journal."""
        with self._left:
            os.environ.pop(MARK, None)
            with suppress(TestbedError):  # what does not stop is killed
                self.stop_stage()
            self.differences = _put_back(self._entry, self._journal, self.card)

    def _check_rights(self) -> None:
        by_root = sorted(self.wishes.allow - {Change.MPS})
        if by_root and os.geteuid() != 0 and not self.card.is_simulated:
            raise SetupError(f"only root may change {', '.join(by_root)}: run this as root, or"
                             " allow less")  # fmt: skip

    def _check_unused(self) -> None:
        users = self.card.load().processes
        if users and not self.wishes.in_use:
            pids = ", ".join(str(user.pid) for user in users)
            raise ConflictError(
                f"others use the card (processes {pids}); end them, or say --in-use: they keep"
                " running, and may be disturbed by whatever is changed"
            )

    def _check_settled(self) -> None:
        gpu = self.card.gpu
        is_changing = gpu.mig is not None and gpu.mig.pending_mode is not gpu.mig_mode
        if is_changing and Change.MIG_MODE in self.wishes.allow:
            raise ConflictError(
                "a change of the card's MIG mode waits for a reset, and would be lost; reset the"
                f" card first, or do not allow {Change.MIG_MODE}"
            )

    def _begin(self) -> None:
        name = uuid.uuid4().hex[:8]
        group = None
        if Change.MEMORY_LIMIT in self.wishes.allow:
            hierarchy = find_hierarchy(self.wishes.groups)
            group = hierarchy and hierarchy / f"dra-hardware-{name}"
        self._entry = Entry(
            run=name,
            root=self.wishes.root,
            gpu=self.card.uuid,
            folder=Path(f"/tmp/dra-hw-{name}"),  # noqa: S108  # short: sockets are below it
            group=group,
            before=self.card.settings(),
        )
        self._journal.write(self._entry)
        self.at("begun")
        self._entry.folder.mkdir(mode=0o755)
        os.environ[MARK] = name

    # For steps

    @property
    def folder(self) -> Path:
        """A folder for the step's files, gone after the run."""
        return self._entry.folder

    @property
    def name(self) -> str:
        """The run's name in the environment of its processes, and in names."""
        return self._entry.run

    @property
    def mark(self) -> dict[str, str]:
        """The variable that each process of the run has to have."""
        return {MARK: self.name}

    @property
    def group(self) -> Path | None:
        """Where the step may make a control group; None without cgroup v2."""
        return self._entry.group

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

    def allows(self, change: Change) -> bool:
        """Whether something may be changed."""
        return change in self.wishes.allow

    def note(self, evidence: str) -> None:
        """Keep something that was seen."""
        self._outcome.evidence.append(evidence)

    def answer(self, question: str, sentence: str) -> None:
        """Keep the answer to a question, by its id."""
        self._outcome.answers[question] = sentence

    def reached(self, what: str) -> None:
        """Pass a point inside a step, at which something is changed."""
        self.at(f"{what} in {self._outcome.step}")

    def makes(self, place: Mig, uuid: str = "") -> None:
        """Note that a MIG device will be made, or, with its UUID, that it was."""
        made = Made(profile_id=place.profile_id, start=place.placement.start, uuid=uuid)
        self._entry = self._journal.make(self._entry, made)

    def destroyed(self, place: Mig) -> None:
        """Note that a MIG device of the run is gone."""
        made = Made(profile_id=place.profile_id, start=place.placement.start)
        self._entry = self._journal.unmake(self._entry, made)

    @contextmanager
    def timed(self, what: str) -> Iterator[None]:
        """Record how long something takes."""
        before = time.monotonic()
        yield
        self._outcome.timings[what] = time.monotonic() - before

    # Steps

    def take(self, step: Step) -> Outcome:
        """Take a step and undo what it changed; whatever it raises becomes its outcome."""
        self._outcome = outcome = Outcome(step=step.name)
        self.outcomes.append(outcome)
        before = time.monotonic()
        if missing := sorted(step.changes - self.wishes.allow):
            outcome.verdict = Verdict.LEFT_OUT
            outcome.reason = f"it needs ALLOW={','.join(missing)}"
        else:
            changed = step.changed(self.wishes.allow)
            self._entry = self._journal.touch(self._entry, changed)
            self.at(f"before {step.name}")
            outcome.verdict, outcome.reason = Verdict.FAILED, "it was interrupted"
            try:
                step.do(self)
                outcome.verdict, outcome.reason = Verdict.PASSED, ""
            except LeftOut as reason:
                outcome.verdict, outcome.reason = Verdict.LEFT_OUT, str(reason)
            except Exception as error:  # noqa: BLE001  # of whatever kind, it is the outcome
                outcome.reason = str(error) or repr(error)
            self.at(f"did {step.name}")
            self._undo(changed, outcome)
            self.at(f"undid {step.name}")
        outcome.seconds = time.monotonic() - before
        return outcome

    def _undo(self, changed: frozenset[Change], outcome: Outcome) -> None:
        if not changed:
            return
        try:
            with self.timed("putting back"):
                with suppress(TestbedError):  # what does not stop is killed
                    self.stop_stage()
                processes.end_all(self._entry.run, self.folder)
                for change in sorted(changed):
                    self.card.restore(change, self._entry.before, self._entry.made)
                if Change.MIG_MODE in changed:
                    self._entry = self._journal.unmake(self._entry, *self._entry.made)
        except DriverError as error:
            outcome.verdict = Verdict.FAILED
            outcome.reason += f" It cannot be put back yet: {error}"


def restore_leftovers(journal: Journal, say: Say, patience: float = PATIENCE) -> bool:
    """Undo a killed run; return False if there is none. Raises DriverError if that fails."""
    entry = journal.read()
    if entry is None:
        return False
    say(f"taking back the run {entry.run}, which did not end; it may have changed:"
        f" {', '.join(entry.touched) or 'nothing'}")  # fmt: skip
    if not entry.root.exists():
        raise StateError(
            f"{entry.root} is gone, by which the GPU was set; have the GPU driver there again, or"
            f" remove {journal.file} if the machine was a simulated one"
        )
    differences = _put_back(entry, journal, Card(entry.root, entry.gpu, patience))
    for difference in differences:
        say(f"not as before: {difference}")
    say("set these back by hand, unless others changed them" if differences else "all is as it was")
    return True


def _put_back(entry: Entry, journal: Journal, card: Card) -> list[str]:
    """Undo everything of a run; return what is not as it was. Removes the journal."""
    processes.end_all(entry.run, entry.folder)
    processes.remove_groups(entry.run)
    _remove_group(entry, card)
    for change in entry.touched:
        card.restore(change, entry.before, entry.made)
    differences = entry.before.differences(card.settings())
    processes.remove_folder(entry.folder)
    journal.forget()
    return differences


def _remove_group(entry: Entry, card: Card) -> None:
    if entry.group is None or not entry.group.exists():
        return
    with card.nvml() as library:
        if library.knows_memory_limits():
            library.set_memory_limit(card.uuid, entry.group, None)
    try:
        for inner in filter(Path.is_dir, entry.group.iterdir()):
            inner.rmdir()
        entry.group.rmdir()
    except OSError as error:
        raise StateError(f"{entry.group} cannot be removed: {error.strerror}") from error
