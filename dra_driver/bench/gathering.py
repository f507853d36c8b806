"""What tenants said, put together: a case with its results, or why it has none. Pure.

In: for each tenant what it said, and whether the GPU is simulated. Out: a `Case`. Both runners end
here, so a process and a pod are judged by the same rules. A tenant that says it has worked on a GPU
that is simulated is not believed.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from dra_driver.bench import lines
from dra_driver.bench.listening import Listener
from dra_driver.bench.model import Case, Result, Tenant
from dra_driver.bench.strategies import Strategy

_SILENT = "it said nothing in time"


@dataclass(frozen=True, slots=True, kw_only=True)
class Gathered:
    """What one tenant said; `words` are the last that it wrote elsewhere."""

    ready: lines.Ready | None = None
    done: lines.Done | None = None
    failed: lines.Failed | None = None
    launch_seconds: float | None = None
    words: str = ""

    @classmethod
    def of(cls, one: Listener) -> Self:
        """Return what a process said."""
        return cls(
            ready=one.ready,
            done=one.done,
            failed=one.failed,
            launch_seconds=one.ready_after,
            words=one.last_words,
        )


def case_of(
    strategy: Strategy,
    gathered: Sequence[Gathered],
    *,
    seen: tuple[str, ...] = (),
    is_simulated: bool,
) -> Case:
    """Return the case."""
    if is_simulated or any(one.ready and one.ready.is_simulated for one in gathered):
        missing = [one for one in gathered if one.done is None]
        if missing:
            return failed(strategy, _why(missing[0]), seen=seen)
        return Case(strategy=strategy, state="passed", seen=seen)
    tenants = tuple(_tenant(number, one) for number, one in enumerate(gathered))
    usage = next((one.done.usage for one in gathered if one.done and one.done.usage), None)
    if not any(one.result for one in tenants):
        return Case(
            strategy=strategy,
            state="failed",
            reason=tenants[0].failure,
            tenants=tenants,
            seen=seen,
        )
    return Case(strategy=strategy, state="measured", tenants=tenants, usage=usage, seen=seen)


def failed(strategy: Strategy, reason: str, *, seen: tuple[str, ...] = ()) -> Case:
    """Return a case that could not be run."""
    return Case(strategy=strategy, state="failed", reason=reason, seen=seen)


def skipped(strategy: Strategy, reason: str) -> Case:
    """Return a case that was not tried."""
    return Case(strategy=strategy, state="skipped", reason=reason)


def _tenant(number: int, one: Gathered) -> Tenant:
    done, ready = one.done, one.ready
    if done is None or ready is None or done.steps is None:
        return Tenant(number=number, failure=_why(one))
    return Tenant(
        number=number,
        result=Result(
            throughput=done.units / done.seconds if done.seconds else 0.0,
            unit=done.unit,
            seconds=done.seconds,
            latency=done.latency,
            late_seconds=done.late_seconds,
            context_seconds=ready.context_seconds,
            launch_seconds=one.launch_seconds,
            memory_mib=ready.memory_mib,
            memory_refused_mib=ready.refused_mib,
        ),
    )


def _why(one: Gathered) -> str:
    if one.failed is not None:
        return one.failed.reason
    return one.words or _SILENT
