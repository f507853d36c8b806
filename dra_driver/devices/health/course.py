"""The course that a GPU's ailments take: when one begins, counts, passes, and comes back. Pure.

In: what was wrong before, and what a look or an event says now. Out: what is wrong from now on.
Time is given, in whole seconds of the clock on the wall, which alone goes on over a restart.
Rules: what is read at each look passes once looks have not found it for a while; what only an event
told passes when the card itself says that nothing has to be done about it, or when the GPU had been
out of reach and answers again, for it was reset then. What comes back soon has to be away longer.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace

from dra_driver.devices.health.findings import Cause, Finding, Remedy
from dra_driver.devices.health.judge import Examination
from dra_driver.devices.health.tables import UNREACHED
from dra_driver.devices.vitals import InstanceId


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthTiming:
    """Seconds that damp what comes and goes."""

    settle: int = 60
    """For which a GPU has to look well before what was wrong has passed, and something that has to
    last has to have lasted: two looks, so that one alone decides nothing."""

    settle_most: int = 3600
    """The same for what keeps coming back: each time within this long it doubles."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ailment:
    """A finding over time.

    Attributes:
        finding: what is wrong.
        instance: the MIG instance that alone has it; None for the whole GPU.
        since: when it began.
        counts: it has lasted long enough to count.
        absent_since: since when it seems to have passed.
        passed_at: when it had; it is kept for a while, in case it comes back.
        relapses: how often it came back.
        was_away: the GPU has been out of reach since it began.
    """

    finding: Finding
    instance: InstanceId | None = None
    since: int
    counts: bool = True
    absent_since: int | None = None
    passed_at: int | None = None
    relapses: int = 0
    was_away: bool = False

    @property
    def is_in_force(self) -> bool:
        """Whether something is wrong now."""
        return self.counts and self.passed_at is None

    @property
    def key(self) -> tuple[Cause, str, InstanceId | None]:
        """What makes two ailments of a GPU the same."""
        return (*self.finding.key, self.instance)


Ailments = tuple[Ailment, ...]
"""What is or was wrong with one GPU, in the order in which it began."""


def in_force(ailments: Iterable[Ailment]) -> Ailments:
    """Return what is wrong now, the gravest first, and then what began first."""
    found = (one for one in ailments if one.is_in_force)
    return tuple(sorted(found, key=lambda one: (-one.finding.severity.rank, one.since)))


def after_event(
    ailments: Ailments,
    finding: Finding,
    instance: InstanceId | None,
    now: int,
    timing: HealthTiming,
) -> Ailments:
    """Return what is wrong once an event has told a finding."""
    return _with(ailments, finding, instance, now, timing)


def after_look(
    ailments: Ailments,
    found: Examination,
    instances: Collection[int] | None,
    now: int,
    timing: HealthTiming,
) -> Ailments:
    """Return what is wrong after a look.

    Args:
        ailments: what was.
        found: what the look found.
        instances: the GPU instances that there are; None if that is not known.
        now: when the look was.
        timing: how long things take.
    """
    present = {finding.key for finding in found.findings}
    kept: list[Ailment] = []
    for one in ailments:
        after = _looked_at(one, found, present, now, timing)
        gone = one.instance is not None and instances is not None
        if gone and one.instance and one.instance.gpu_instance not in (instances or ()):
            continue  # what had it is no more
        if after is not None:
            kept.append(after)
    result = tuple(kept)
    for finding in found.findings:
        result = _with(result, finding, None, now, timing)
    return result


def after_absence(ailments: Ailments) -> Ailments:
    """Return what is wrong with a GPU that a look did not find at all: it was taken out, or is."""
    return tuple(replace(one, was_away=True, absent_since=None) for one in ailments)


def _looked_at(
    one: Ailment,
    found: Examination,
    present: Collection[tuple[Cause, str]],
    now: int,
    timing: HealthTiming,
) -> Ailment | None:
    """Return an ailment after a look that may have found it; None once it is forgotten."""
    if one.passed_at is not None:
        return one if now - one.passed_at < timing.settle_most else None
    if not found.answered:
        one = replace(one, was_away=True)
    if one.finding.key in present:
        return one  # `_with` takes it on
    if not _seems_passed(one, found):
        return replace(one, absent_since=None)
    return _absent(one, now, timing) if one.counts else None


def _absent(one: Ailment, now: int, timing: HealthTiming) -> Ailment:
    """Return an ailment that seems to have passed."""
    if one.absent_since is None:
        return replace(one, absent_since=now)
    if now - one.absent_since < _settle(one, timing):
        return one
    return replace(one, passed_at=now, absent_since=None)


def _seems_passed(one: Ailment, found: Examination) -> bool:
    """Tell whether a look that does not name an ailment means that it is over."""
    cause = one.finding.cause
    if cause in UNREACHED:
        return found.answered or any(other.cause in UNREACHED for other in found.findings)
    if cause is Cause.XID:
        by_itself = one.finding.remedy is Remedy.NONE
        return found.answered and (by_itself or found.says_well or one.was_away)
    return cause not in found.unanswered


def _settle(one: Ailment, timing: HealthTiming) -> int:
    doubled: int = timing.settle * 2 ** min(one.relapses, 16)
    return min(doubled, max(timing.settle, timing.settle_most))


def _with(
    ailments: Ailments,
    finding: Finding,
    instance: InstanceId | None,
    now: int,
    timing: HealthTiming,
) -> Ailments:
    """Return them with one that has been found now."""
    key = (*finding.key, instance)
    before = next((one for one in ailments if one.key == key), None)
    if before is None:
        begun = Ailment(
            finding=finding, instance=instance, since=now, counts=not finding.has_to_last
        )
        return (*ailments, begun)
    if before.passed_at is not None:
        after = Ailment(
            finding=finding,
            instance=instance,
            since=now,
            counts=not finding.has_to_last,
            relapses=before.relapses + 1,
        )
    else:
        lasted = before.counts or now - before.since >= timing.settle
        is_event = finding.cause is Cause.XID
        was_away = before.was_away and not is_event  # it has happened anew since
        after = replace(before, absent_since=None, counts=lasted, was_away=was_away)
    return tuple(after if one is before else one for one in ailments)
