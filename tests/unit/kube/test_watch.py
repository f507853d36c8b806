"""Delays between tries."""

from dra_driver.kube.watch import Backoff


def test_delays_double_up_to_the_longest_and_begin_again_after_success() -> None:
    backoff = Backoff(first=1, most=5, random=lambda: 0.0)
    assert [backoff.delay() for _ in range(5)] == [1, 2, 4, 5, 5]
    backoff.reset()
    assert backoff.delay() == 1


def test_jitter_takes_away_up_to_half() -> None:
    assert Backoff(first=4, most=9, random=lambda: 0.5).delay() == 3
    assert Backoff(first=4, most=9, random=lambda: 1.0).delay() == 2
