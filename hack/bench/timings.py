"""Measurements and their figures: durations in milliseconds, a process's CPU time."""

import itertools
import os
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from dra_driver.bench.model import percentile

Summary = dict[str, float | int]

_WHOLE_PROCESS = 2
"""The kind of CPU clock that counts all threads of a process, including ended ones."""


def timed(action: Callable[[], object]) -> float:
    """Return how long `action` took, in milliseconds."""
    began = time.perf_counter()
    action()
    return (time.perf_counter() - began) * 1000


def summary(values: Sequence[float]) -> Summary:
    """Return the values' median and 99th percentile, and how many there are."""
    return {
        "p50_ms": round(percentile(values, 0.5), 3),
        "p99_ms": round(percentile(values, 0.99), 3),
        "samples": len(values),
    }


def cpu_seconds(pid: int) -> float:
    """Return the CPU time of another process, in kernel and user mode, to the nanosecond.

    /proc/PID/stat has it in steps of 10 ms, more than a call takes. The clock's number is computed
    as by clock_getcpuclockid(3), which Python lacks.
    """
    return time.clock_gettime((~pid << 3) | _WHOLE_PROCESS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Steps:
    """Times of repeated steps, by step.

    Attributes:
        times: the milliseconds of all callers in all rounds.
        used: how much the meter increased, per call; for callers that go on by themselves, over all
            steps, per call of each.
        seconds: the time that passed, likewise.
    """

    times: Sequence[Sequence[float]]
    used: Sequence[float]
    seconds: Sequence[float]


def at_once(
    steps: Sequence[Sequence[Callable[[], object]]],
    rounds: int,
    *,
    together: bool = True,
    meter: Callable[[], float] = lambda: 0.0,
    timeout: float = 120,
) -> Steps:
    """Time steps that several callers make at the same time, round after round.

    `steps[caller][step]` are actions. All callers begin each step `together`, and a caller that has
    finished waits for the others; or they only start together, and each goes on by itself. `meter`
    is read whenever all begin, and at the end.
    """
    readings: list[tuple[float, float]] = []

    def read() -> None:
        readings.append((meter(), time.perf_counter()))

    barrier = threading.Barrier(len(steps), action=read, timeout=timeout)

    def caller(actions: Sequence[Callable[[], object]]) -> list[list[float]]:
        times: list[list[float]] = [[] for _ in actions]
        try:
            for number in range(rounds):
                for action, step in zip(actions, times, strict=True):
                    if together or (number == 0 and step is times[0]):
                        barrier.wait()
                    step.append(timed(action))
        except BaseException:
            barrier.abort()  # or the others would wait forever
            raise
        return times

    with ThreadPoolExecutor(len(steps), thread_name_prefix="caller") as pool:
        done = [task.result() for task in [pool.submit(caller, actions) for actions in steps]]
    read()
    count = len(steps[0]) if together else 1
    calls = rounds * len(steps)

    def per_call(read: Sequence[float]) -> list[float]:
        spans = [after - before for before, after in itertools.pairwise(read)]
        return [sum(spans[step::count]) / calls for step in range(count)]

    metered, moments = zip(*readings, strict=True)
    return Steps(
        times=[[value for of in done for value in of[step]] for step in range(len(steps[0]))],
        used=per_call(metered),
        seconds=per_call(moments),
    )


def fsync_1kb(folder: Path) -> float:
    """Return the milliseconds until 1 kB in a new file is on the disk of `folder`."""
    path = folder / "fsync-yardstick"
    data = os.urandom(1024)

    def write() -> None:
        with path.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())

    took = timed(write)
    path.unlink()
    return took
