"""Debounces the conditions of a GPU: when one begins, counts, and passes. Pure.

Times are in whole seconds of the wall clock, because only that goes on over a restart. If it is set
back, possibly by hours, waits begin at the new time at the latest. If it is set ahead, a wait is
shorter, but it still takes two looks. A condition that each look reads passes once looks have not
found it for a while. A condition known only from an event passes when the card says that nothing
has to be done about it (dra-driver-nvidia-gpu#1455), or when the GPU was out of reach and answers
again, because it was reset then.

`settle` is the number of seconds for which a GPU has to look well before a condition has passed,
and for which a condition must have lasted if it has to. It takes two looks: one decides nothing.
"""

from collections.abc import Collection, Iterable

from msgspec import Struct
from msgspec.structs import replace

from dra_driver.devices.health.findings import UNREACHED, Cause, Examination, Finding, Remedy
from dra_driver.devices.model import InstanceId


class GpuCondition(Struct, frozen=True, kw_only=True):
    """A finding over time (the `Condition` of a claim's status is something else).

    Attributes:
        instance: the only MIG instance that has it; None for the whole GPU.
        counts: it has lasted long enough to count.
        absent_since: since when it has seemed to be over.
        was_away: the GPU has been out of reach at some time since it began.
    """

    finding: Finding
    instance: InstanceId | None = None
    since: int
    counts: bool = True
    absent_since: int | None = None
    was_away: bool = False

    @property
    def key(self) -> tuple[Cause, str, InstanceId | None]:
        """What makes two conditions of a GPU the same."""
        return (*self.finding.key, self.instance)


GpuConditions = tuple[GpuCondition, ...]
"""What is wrong with one GPU, in the order in which it began."""


def in_force(conditions: Iterable[GpuCondition]) -> GpuConditions:
    """Return the conditions in force, the gravest first, and among those the earliest first."""
    known = (condition for condition in conditions if condition.counts)
    return tuple(sorted(known, key=lambda held: (-held.finding.severity.rank, held.since)))


def after_look(
    conditions: GpuConditions,
    look: Examination,
    instances: Collection[int] | None,
    now: int,
    settle: int,
) -> GpuConditions:
    """Return a GPU's conditions after a look.

    `instances` are the ids of the GPU instances that exist; None if they are not known.
    """
    looked_at = (
        _looked_at(_by_now(condition, now), look, now, settle)
        for condition in conditions
        if condition.instance is None
        or instances is None
        or condition.instance.gpu_instance in instances
    )
    result = tuple(condition for condition in looked_at if condition is not None)
    for finding in look.findings:
        result = with_finding(result, finding, None, now, settle)
    return result


def after_absence(conditions: GpuConditions) -> GpuConditions:
    """Return the conditions of a GPU that a look did not find at all, such as one taken out."""
    return tuple(replace(condition, was_away=True, absent_since=None) for condition in conditions)


def with_finding(
    conditions: GpuConditions,
    finding: Finding,
    instance: InstanceId | None,
    now: int,
    settle: int,
) -> GpuConditions:
    """Return a GPU's conditions after an event or a look has reported a finding."""
    key = (*finding.key, instance)
    before = next((condition for condition in conditions if condition.key == key), None)
    if before is None:
        new = GpuCondition(
            finding=finding, instance=instance, since=now, counts=not finding.has_to_last
        )
        return (*conditions, new)
    lasted = before.counts or now - before.since >= settle
    is_event = finding.cause is Cause.XID
    was_away = before.was_away and not is_event  # it has happened again since
    after = replace(before, absent_since=None, counts=lasted, was_away=was_away)
    return tuple(after if condition is before else condition for condition in conditions)


def _by_now(was: GpuCondition, now: int) -> GpuCondition:
    """Return a condition whose waits begin by `now`; `since` is kept once the condition counts."""
    absent = was.absent_since
    return replace(
        was,
        since=was.since if was.counts else min(was.since, now),
        absent_since=None if absent is None else min(absent, now),
    )


def _looked_at(was: GpuCondition, look: Examination, now: int, settle: int) -> GpuCondition | None:
    """Return a condition after a look; None once it has passed."""
    if not look.answered:
        was = replace(was, was_away=True)
    if any(finding.key == was.finding.key for finding in look.findings):
        return was  # `with_finding` updates it
    if not _seems_passed(was, look):
        return replace(was, absent_since=None)
    if not was.counts:
        return None
    if was.absent_since is None:
        return replace(was, absent_since=now)
    return was if now - was.absent_since < settle else None


def _seems_passed(was: GpuCondition, look: Examination) -> bool:
    """Tell whether a look that does not report a condition means that it is over."""
    cause = was.finding.cause
    if cause in UNREACHED:
        return look.answered or any(other.cause in UNREACHED for other in look.findings)
    if cause is Cause.XID:
        by_itself = was.finding.remedy is Remedy.NONE
        return look.answered and (by_itself or look.says_well or was.was_away)
    return cause not in look.unanswered
