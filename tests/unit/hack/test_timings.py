"""Durations, and what is said of them."""

import pytest
from bench import timings

from dra_driver.bench.model import percentile


def test_percentiles_are_values_that_were_measured() -> None:
    values = [float(number) for number in range(1, 101)]
    assert percentile(values, 0.5) == 50
    assert percentile(values, 0.99) == 99
    assert percentile([7.0], 0.99) == 7.0


def test_callers_do_each_step_in_every_round() -> None:
    done: list[str] = []
    steps = [[lambda: done.append("a"), lambda: done.append("b")] for _ in range(3)]
    first, second = timings.at_once(steps, 4).times
    assert len(first) == len(second) == 3 * 4
    assert done.count("a") == done.count("b") == 3 * 4


def test_a_caller_that_fails_ends_the_measurement() -> None:
    def fail() -> None:
        raise RuntimeError("no such claim")

    with pytest.raises(RuntimeError, match="no such claim"):
        timings.at_once([[fail], [lambda: None]], 1, timeout=10)
