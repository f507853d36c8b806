"""One run: every case in turn, with a word of each on the terminal, also where it is interrupted.

In: a runner, strategies, a work. Out: the cases so far, and whether the run was interrupted. Ctrl-C
and SIGTERM end the case that runs, whose runner takes away what it made; a second one changes
nothing, because what is left behind would be worse than a wait.
"""

import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Protocol

from dra_driver.bench.figures import alone, compared
from dra_driver.bench.gathering import skipped
from dra_driver.bench.model import Case
from dra_driver.bench.strategies import Strategy
from dra_driver.bench.works import Work

Say = Callable[[str], None]
_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Runner(Protocol):
    """Runs cases, by processes or pods."""

    def obstacle(self, strategy: Strategy) -> str:
        """Say why a strategy cannot be run here; nothing if it can."""
        ...

    def run(self, strategy: Strategy, work: Work) -> Case:
        """Run a case; whatever happens, nothing of it is left afterwards."""
        ...


@dataclass(slots=True)
class Interrupted:
    """Whether the run was."""

    is_so: bool = False


@contextmanager
def interruptible(say: Say) -> Iterator[Interrupted]:
    """Let the first signal end what runs by KeyboardInterrupt, and the following ones nothing.

    The block is left as if it had ended by itself. For the main thread.
    """
    state = Interrupted()

    def on_signal(number: int, _frame: FrameType | None) -> None:
        if state.is_so:
            say("cleaning up, which takes a moment")
            return
        state.is_so = True
        say(f"{signal.Signals(number).name}: ending the case that runs, and cleaning up")
        raise KeyboardInterrupt

    before = {number: signal.signal(number, on_signal) for number in _SIGNALS}
    try:
        yield state
    except KeyboardInterrupt:
        if not state.is_so:
            raise
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def run_all(
    runner: Runner, strategies: Sequence[Strategy], work: Work, say: Say
) -> tuple[tuple[Case, ...], bool]:
    """Run all cases; return those that were run, and whether the run was interrupted."""
    cases: list[Case] = []
    with interruptible(say) as interrupted:
        for number, strategy in enumerate(strategies, start=1):
            place = f"[{number}/{len(strategies)}] {strategy.label}"
            if reason := runner.obstacle(strategy):
                cases.append(skipped(strategy, reason))
            else:
                say(f"{place} …")
                cases.append(runner.run(strategy, work))
            say(f"{place}: {_word(cases)}")
    return tuple(cases), interrupted.is_so


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
