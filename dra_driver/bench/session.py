"""One run: all cases in turn, with a message about each on the terminal.

After each case, all cases so far are passed on to be saved, because a run may be interrupted or
killed. Several rounds are run in different orders, so that no case always gets a warm or a cool
card.
"""

import random
import time
from collections.abc import Callable, Sequence
from typing import Literal, Protocol

from dra_driver.bench.gathering import failed, skipped
from dra_driver.bench.model import Case, Study
from dra_driver.bench.pods.offer import Offer
from dra_driver.bench.report.figures import bases, compared
from dra_driver.bench.stopping import Say, Stop
from dra_driver.bench.strategies import Strategy
from dra_driver.errors import DriverError

Keep = Callable[[Sequence[Case]], None]


class Runner(Protocol):
    """Runs cases, by processes or pods."""

    @property
    def where(self) -> Literal["processes", "pods"]:
        """Whether cases are processes or pods."""
        ...

    @property
    def offer(self) -> Offer:
        """What a GPU offers."""
        ...

    def obstacle(self, strategy: Strategy) -> str:
        """Return why a strategy cannot be run here; empty if it can."""
        ...

    def run(self, strategy: Strategy, seed: int) -> Case:
        """Run a case with this seed; nothing of it is left afterwards, whatever happens."""
        ...


def turns(strategies: Sequence[Strategy], study: Study) -> list[tuple[int, Strategy]]:
    """Return each case with the number of its round; the first round keeps the given order."""
    dice = random.Random(study.seed)  # noqa: S311 (the same order in every run)
    found = []
    for repetition in range(study.repetitions):
        order = list(strategies)
        if repetition:
            dice.shuffle(order)
        found += [(repetition, strategy) for strategy in order]
    return found


def run_all(  # noqa: PLR0913 (what a run is made of)
    runner: Runner,
    strategies: Sequence[Strategy],
    study: Study,
    *,
    say: Say,
    stop: Stop,
    keep: Keep = lambda _: None,
    minutes: float | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> tuple[tuple[Case, ...], bool]:
    """Run all cases; return those that were run, and whether the run was interrupted.

    Arrivals differ from round to round, and are the same for all cases of one. After `minutes` no
    further case is begun.
    """
    cases: list[Case] = []
    every = turns(strategies, study)
    begin = clock()
    try:
        for number, (repetition, strategy) in enumerate(every, start=1):
            stop.check()
            place = f"[{number}/{len(every)}] {strategy.name}"
            if minutes is not None and clock() - begin >= minutes * 60:
                case = skipped(strategy, f"the {minutes:g} minutes of the run were over")
            else:
                say(f"{place} …")
                case = _case(runner, strategy, study.seed + repetition)
            cases.append(case.model_copy(update={"repetition": repetition}))
            say(f"{place}: {_word(cases, study)}")
            keep(cases)
    except KeyboardInterrupt:
        return tuple(cases), True
    return tuple(cases), False


def _case(runner: Runner, strategy: Strategy, seed: int) -> Case:
    """Run a case, or report why it cannot be; an error of one does not end the others."""
    try:
        if reason := runner.obstacle(strategy):
            return skipped(strategy, reason)
        return runner.run(strategy, seed)
    except DriverError as error:
        return failed(strategy, str(error))


def _word(cases: Sequence[Case], study: Study) -> str:
    """Return the result of the last case in words."""
    case = cases[-1]
    if case.state == "passed":
        return "ran, on simulated GPUs: no results"
    if case.state != "measured":
        return f"{case.state}: {case.reason}"
    told = compared(case, bases(cases, case, study))
    parts = ["measured"]
    if told.total_throughput is not None:
        parts.append(f"{told.total_throughput:.2f} times the throughput alone")
    if told.p99 is not None:
        parts.append(f"{told.p99:.2f} times its p99")
    without = sum(tenant.result is None for tenant in case.tenants)
    if without:
        parts.append(f"{without} of {len(case.tenants)} tenants without a result")
    return ", ".join(parts)
