"""One run: every case in turn, with a word of each on the terminal, also where it is interrupted.

After each case the cases so far are told, so that they can be kept: a run may be killed.
"""

from collections.abc import Callable, Sequence
from typing import Protocol

from dra_driver.admin.bench.gathering import failed, skipped
from dra_driver.admin.bench.model import Case
from dra_driver.admin.bench.report.figures import alone, compared
from dra_driver.admin.bench.stopping import Say, Stop
from dra_driver.admin.bench.strategies import Strategy
from dra_driver.admin.bench.workload import Workload
from dra_driver.errors import DriverError

Keep = Callable[[Sequence[Case]], None]


class Runner(Protocol):
    """Runs cases, by processes or pods."""

    def obstacle(self, strategy: Strategy) -> str:
        """Say why a strategy cannot be run here; nothing if it can."""
        ...

    def run(self, strategy: Strategy, work: Workload) -> Case:
        """Run a case; whatever happens, nothing of it is left afterwards."""
        ...


def run_all(
    runner: Runner,
    strategies: Sequence[Strategy],
    work: Workload,
    *,
    say: Say,
    stop: Stop,
    keep: Keep = lambda _: None,
) -> tuple[tuple[Case, ...], bool]:
    """Run all cases; return those that were run, and whether the run was interrupted."""
    cases: list[Case] = []
    try:
        for number, strategy in enumerate(strategies, start=1):
            stop.check()
            place = f"[{number}/{len(strategies)}] {strategy.label}"
            say(f"{place} …")
            cases.append(_case(runner, strategy, work))
            say(f"{place}: {_word(cases)}")
            keep(cases)
    except KeyboardInterrupt:
        return tuple(cases), True
    return tuple(cases), False


def _case(runner: Runner, strategy: Strategy, work: Workload) -> Case:
    """Run a case, or say why it cannot be: no error of one ends the others."""
    try:
        if reason := runner.obstacle(strategy):
            return skipped(strategy, reason)
        return runner.run(strategy, work)
    except DriverError as error:
        return failed(strategy, str(error))


def _word(cases: Sequence[Case]) -> str:
    """Say what came of the last case."""
    case = cases[-1]
    if case.state == "passed":
        return "ran, on simulated GPUs: no results"
    if case.state != "measured":
        return f"{case.state}: {case.reason}"
    told = compared(case, alone(cases))
    parts = ["measured"]
    if told.total_throughput is not None:
        parts.append(f"{told.total_throughput:.2f} times the throughput alone")
    if told.p99 is not None:
        parts.append(f"{told.p99:.2f} times its p99")
    without = sum(one.result is None for one in case.tenants)
    if without:
        parts.append(f"{without} of {len(case.tenants)} tenants without a result")
    return ", ".join(parts)
