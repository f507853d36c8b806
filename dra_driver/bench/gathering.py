"""What tenants reported, put together: a case with its results, or why it has none. Pure.

Both runners use it, so processes and pods are judged by the same rules. Figures that
tenants report from simulated GPUs are dropped.
"""

import signal
from collections.abc import Sequence
from typing import Self

from msgspec import Struct

from dra_driver.bench import latencies, lines
from dra_driver.bench.listening import Listener
from dra_driver.bench.model import Case, Result, Tenant, Usage
from dra_driver.bench.strategies import Strategy
from dra_driver.bench.workload import Workload
from dra_driver.errors import SetupError

_UNENDED = "it did not end in time: give it more time with --seconds"
_SIGNALLED = 128
_LATE = "it was not ready in time"
_ENDLESS = "it was ready, but still ran long after its time was over"


class Gathered(Struct, frozen=True, kw_only=True):
    """What one tenant reported.

    `exit_status` is None while it runs, or if unknown; negative for a signal. `words` is the last
    line that it wrote to stderr.
    """

    ready: lines.Ready | None = None
    done: lines.Done | None = None
    failed: lines.Failed | None = None
    launch_seconds: float | None = None
    exit_status: int | None = None
    words: str = ""

    @classmethod
    def of(cls, listener: Listener) -> Self:
        """Return what a process reported."""
        return cls(
            ready=listener.ready,
            done=listener.done,
            failed=listener.failed,
            launch_seconds=listener.ready_after,
            exit_status=listener.exit_status,
            words=listener.last_words,
        )


def case_of(
    strategy: Strategy,
    gathered: Sequence[Gathered | Tenant],
    *,
    usage: Usage | None = None,
    seen: tuple[str, ...] = (),
    is_simulated: bool,
) -> Case:
    """Return the case. A user's own command is a Tenant already; `usage` is measured by others.

    On simulated GPUs, only whether a command succeeded is kept.
    """
    own = [each for each in gathered if isinstance(each, Gathered)]
    if is_simulated or any(each.ready and each.ready.is_simulated for each in own):
        if missing := [why for each in gathered if (why := _missing(each))]:
            return failed(strategy, missing[0], seen=seen)
        return Case(strategy=strategy, state="passed", seen=seen)
    tenants = tuple(
        _tenant(number, each) if isinstance(each, Gathered) else each
        for number, each in enumerate(gathered)
    )
    if not any(tenant.result for tenant in tenants):
        reason = _missing(gathered[0]) or tenants[0].failure
        return Case(strategy=strategy, state="failed", reason=reason, tenants=tenants, seen=seen)
    usage = next((each.done.usage for each in own if each.done and each.done.usage), usage)
    return Case(strategy=strategy, state="measured", tenants=tenants, usage=usage, seen=seen)


def _missing(tenant: Gathered | Tenant) -> str:
    """Return why a tenant has not ended properly; empty if it has."""
    if isinstance(tenant, Tenant):
        return "" if tenant.result else f"the command failed: {tenant.failure}"
    return "" if tenant.done else _why(tenant)


def failed(strategy: Strategy, reason: str, *, seen: tuple[str, ...] = ()) -> Case:
    """Return a case that could not be run."""
    return Case(strategy=strategy, state="failed", reason=reason, seen=seen)


def skipped(strategy: Strategy, reason: str) -> Case:
    """Return a case that was not tried."""
    return Case(strategy=strategy, state="skipped", reason=reason)


def _tenant(number: int, gathered: Gathered) -> Tenant:
    done, ready = gathered.done, gathered.ready
    if done is None or ready is None or done.steps is None:
        return Tenant(number=number, failure=_why(gathered))
    return Tenant(
        number=number,
        result=Result(
            throughput=done.units / done.seconds if done.seconds else 0.0,
            unit=done.unit,
            seconds=done.seconds,
            latency=done.latency,
            late_seconds=done.late_seconds,
            context_seconds=ready.context_seconds,
            launch_seconds=gathered.launch_seconds,
            memory_mib=ready.memory_mib,
            memory_refused_mib=ready.refused_mib,
            busy_sm_percent=done.busy_sm_percent,
            bandwidth_percent=done.bandwidth_percent,
        ),
    )


class CommandEnd(Struct, frozen=True, kw_only=True):
    """How a user's own command ended.

    Attributes:
        status: its exit status; None while it runs.
        text: the output or the file that contains its latencies.
        ended: when it ended, if reported; otherwise it took `seconds`.
        last_words: the last line that it wrote to stderr.
    """

    status: int | None
    text: str = ""
    ended: lines.Ended | None = None
    seconds: float = 0.0
    last_words: str = ""


def tenant_of_command(number: int, work: Workload, end: CommandEnd) -> Tenant:
    """Return the result of a command."""
    status, ended = end.status, end.ended
    if status is None:
        return Tenant(number=number, failure=_UNENDED)
    if status != 0:
        is_signal = _SIGNALLED < status <= _SIGNALLED + 64  # as a shell reports it
        how = how_it_ended(_SIGNALLED - status if is_signal else status, end.last_words)
        return Tenant(number=number, failure=how)
    took = max(end.seconds if ended is None else ended.seconds, 1e-3)
    late = 0.0 if ended is None else ended.late_seconds
    if work.latencies is None:
        return _done(number, took, late, throughput=1 / took, unit="runs")
    own = "".join(f"{line}\n" for line in end.text.splitlines() if not line.startswith(lines.MARK))
    try:
        said = latencies.read(work.latencies, own, work.latency_metric)
    except SetupError as error:
        return Tenant(number=number, failure=f"its latencies cannot be read: {error}")
    rate = said.throughput
    if rate is None:
        rate = (said.latency.count or 0) / took
    return _done(number, took, late, throughput=rate, unit=said.unit, latency=said.latency)


def _done(number: int, seconds: float, late: float, **facts: object) -> Tenant:
    known = {"seconds": seconds, "late_seconds": late, "exit_status": 0}
    return Tenant(number=number, result=Result.model_validate({**known, **facts}))


def how_it_ended(status: int, words: str = "") -> str:
    """Return a sentence about a process's exit status or signal, and its last words."""
    how = f"its exit status was {status}"
    if status < 0:
        how = f"it was killed by {_signal_name(-status)}"
    return f"{how}: {words}" if words else how


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # a real-time signal
        return f"signal {number}"


def _why(gathered: Gathered) -> str:
    if gathered.failed is not None:
        return gathered.failed.reason
    if gathered.exit_status is not None:
        return how_it_ended(gathered.exit_status, gathered.words)
    state = _LATE if gathered.ready is None else _ENDLESS
    return f"{state}: {gathered.words}" if gathered.words else state
