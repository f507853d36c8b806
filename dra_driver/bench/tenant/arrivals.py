"""When steps run: one after the other, or as requests arrive; and how long they took.

Requests arrive whether or not earlier ones have ended (open loop). If a tenant falls behind, they
wait, and their latency, which counts from the arrival, shows it. A closed loop would slow the
arrivals down and hide that. Each moment is as likely as any other. All tenants have the same
moments, each shifted by a different amount: so they have the same work, clustered in the same
way, and differences between two tenants are not due to chance. Pure, except for the clock and
the step, which are arguments.
"""

import random
from collections.abc import Callable, Iterator, Sequence

from msgspec import Struct

from dra_driver.bench.model import Latency, percentile

_GOLDEN = (5**0.5 - 1) / 2
"""Multiples of it, modulo 1, are far from each other, however many there are."""

Clock = Callable[[], float]


class Timings(Struct, frozen=True, kw_only=True):
    """What was done: how many steps until when, and their latencies in seconds.

    `unfinished` are latencies so far, of requests that had arrived and not ended.
    """

    steps: int
    seconds: float
    latencies: Sequence[float]
    unfinished: Sequence[float] = ()

    def latency(self) -> Latency | None:
        """Return the percentiles; None without requests."""
        all_of_them = [*self.latencies, *self.unfinished]
        if not all_of_them:
            return None
        return Latency(
            p50_ms=percentile(all_of_them, 0.5) * 1000,
            p99_ms=percentile(all_of_them, 0.99) * 1000,
            count=len(all_of_them),
            unfinished=len(self.unfinished),
        )


def closed_loop(step: Callable[[], None], seconds: float, clock: Clock) -> Timings:
    """Run steps until the time is over; the last one is finished and counts."""
    begin = before = clock()
    latencies = []
    while before - begin < seconds:
        step()
        now = clock()
        latencies.append(now - before)
        before = now
    return Timings(steps=len(latencies), seconds=before - begin, latencies=latencies)


def open_loop(
    step: Callable[[], None],
    arrivals: Iterator[float],
    seconds: float,
    clock: Clock,
    sleep: Callable[[float], None],
) -> Timings:
    """Run a step for each arrival (seconds after the beginning) until the time is over."""
    begin = clock()
    latencies: list[float] = []
    waiting: list[float] = []
    for arrival in arrivals:
        if arrival >= seconds:
            break
        now = clock() - begin
        if now >= seconds:
            waiting.append(arrival)
            continue
        if now < arrival:
            sleep(arrival - now)
        step()
        latencies.append(clock() - begin - arrival)
    end = max(clock() - begin, seconds)
    return Timings(
        steps=len(latencies),
        seconds=end,
        latencies=latencies,
        unfinished=[end - arrival for arrival in waiting],
    )


def random_arrivals(rate: float, seconds: float, seed: int, number: int = 0) -> Iterator[float]:
    """Yield when requests of a tenant arrive, in order: `rate` · `seconds` moments."""
    dice = random.Random(seed)  # noqa: S311 (the same arrivals in every run)
    turned = number * _GOLDEN % 1.0 * seconds
    moments = (dice.uniform(0.0, seconds) for _ in range(round(rate * seconds)))
    yield from sorted((moment + turned) % seconds for moment in moments)
