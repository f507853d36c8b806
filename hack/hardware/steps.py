"""The run's values: what a step may change and make, and its outcome."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from dra_driver.devices.model import BareInstance, Instance


class Change(StrEnum):
    """What a step may change while it lasts, if a person allows it."""

    TIME_SLICE = "time-slice"
    COMPUTE_MODE = "compute-mode"
    MIG_MODE = "mig-mode"
    MPS = "mps"
    MEMORY_LIMIT = "memory-limit"


MEANING: Mapping[Change, str] = {
    Change.TIME_SLICE: "the card's time-slice",
    Change.COMPUTE_MODE: "the card's compute mode, and under MPS to EXCLUSIVE_PROCESS",
    Change.MIG_MODE: "the card's MIG mode and, where that changes, its other settings; MIG devices",
    Change.MPS: "nothing of the card, but MPS daemons run on it",
    Change.MEMORY_LIMIT: "the memory limit of a control group that the step makes",
}


class Verdict(StrEnum):
    """How a step ended."""

    PASSED = "passed"
    FAILED = "failed"
    LEFT_OUT = "left out"


class LeftOut(Exception):  # noqa: N818  # no error: the step has nothing to do here
    """The step cannot be done on this machine; the text says why."""


class Unexpected(Exception):  # noqa: N818  # as an assertion, in words for people
    """The step found something that it should not; the text says what."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Made:
    """A MIG device of the run, by its profile's id and its start; without UUID until it is made."""

    profile_id: int
    start: int
    uuid: str = ""

    @property
    def place(self) -> tuple[int, int]:
        """Where it is."""
        return self.profile_id, self.start

    def is_it(self, instance: Instance) -> bool:
        """Whether it is the one that was found; so is an unfinished device at its place.

        If UUIDs depend on the place, as on simulated cards, any device at its place is it.
        """
        if (instance.profile.id, instance.placement.start) != self.place:
            return False
        return isinstance(instance, BareInstance) or self.uuid in ("", instance.uuid)


@dataclass(slots=True, kw_only=True)
class Outcome:
    """The outcome of a step: `seconds` of all of it, and of its parts by name."""

    step: str
    verdict: Verdict = Verdict.PASSED
    reason: str = ""
    seconds: float = 0.0
    timings: dict[str, float] = field(default_factory=dict)
    evidence: list[str] = field(default_factory=list)
    answers: dict[str, str] = field(default_factory=dict)

    def sentence(self) -> str:
        """Return it in a line."""
        why = f": {self.reason}" if self.reason else ""
        return f"{self.step}: {self.verdict} in {self.seconds:.1f} s{why}"
