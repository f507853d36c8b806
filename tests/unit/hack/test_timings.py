"""Durations, and what is said of them."""

import pytest
from bench import timings


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
