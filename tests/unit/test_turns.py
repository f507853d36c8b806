"""Turns at computing: one at a time, the oldest call first, and nobody waits for what hangs."""

import os
import random
import re
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from dra_driver.host.process import read_boot_id
from dra_driver.host.turns import Turns

LONG = 30.0


def started(work: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


def in_line(turns: Turns, count: int) -> None:
    """Wait until so many threads stand in line."""
    until = time.monotonic() + 10
    while len(turns._line) != count:
        assert time.monotonic() < until
        time.sleep(0.001)


def test_a_call_that_waited_goes_before_those_that_began_after_it() -> None:
    turns = Turns(LONG)
    order: list[str] = []
    away, answer = threading.Event(), threading.Event()

    def oldest() -> None:
        with turns:
            with turns.waiting():
                away.set()
                answer.wait(10)
            order.append("oldest")

    def younger(name: str) -> Callable[[], None]:
        def call() -> None:
            with turns:
                order.append(name)

        return call

    threads = [started(oldest)]
    assert away.wait(10)
    with turns:  # the oldest let others have it, so this one has it at once
        for count, name in enumerate(("second", "third"), 1):
            threads.append(started(younger(name)))
            in_line(turns, count)
        answer.set()
        in_line(turns, 3)
    for thread in threads:
        thread.join(10)
    assert order == ["oldest", "second", "third"]


def test_a_hanging_turn_blocks_nobody() -> None:
    turns = Turns(0.01)
    hung, release = threading.Event(), threading.Event()

    def hangs() -> None:
        with turns:
            hung.set()
            release.wait(10)
            with turns.waiting():  # it has no turn to give away, and stands in line again
                pass

    thread = started(hangs)
    assert hung.wait(10)
    with capture_logs() as logs, turns:
        assert not release.is_set()
    release.set()
    thread.join(10)
    assert not thread.is_alive()
    assert (turns._has, turns._line) == (None, [])
    assert [line["event"] for line in logs] == ["turn at computing taken from a call"]


def test_a_revoked_turn_is_logged_with_its_place(tmp_path: Path) -> None:
    turns = Turns(0.01)
    pipe = tmp_path / "sys/kernel/random/boot_id"
    pipe.parent.mkdir(parents=True)
    os.mkfifo(pipe)

    def waits_for_a_file() -> None:
        with turns:
            read_boot_id(tmp_path)

    thread = started(waits_for_a_file)
    with pipe.open("w") as file:  # which waits for the reader
        with capture_logs() as logs, turns:
            pass
        file.write("boot-1")
    thread.join(10)
    assert re.fullmatch(r"host/process\.py:\d+ in read_boot_id", logs[0]["line"])


def test_outside_of_a_call_there_is_nothing_to_wait_for() -> None:
    turns = Turns(LONG)
    release, taken = threading.Event(), threading.Event()

    def call() -> None:
        with turns:
            taken.set()
            release.wait(10)

    thread = started(call)
    assert taken.wait(10)
    with turns.waiting():
        pass
    release.set()
    thread.join(10)
    assert turns._has is None


def test_an_error_gives_the_turn_back() -> None:
    turns = Turns(LONG)
    with pytest.raises(ZeroDivisionError), turns:
        raise ZeroDivisionError
    assert turns._has is None
    with pytest.raises(ZeroDivisionError), turns, turns.waiting():
        raise ZeroDivisionError
    assert turns._has is None


@pytest.mark.parametrize("longest", [LONG, 0.0005])
def test_every_turn_has_exactly_one_holder(longest: float) -> None:
    """Of turns that are taken away several are had at once, and the line is empty in the end."""
    turns = Turns(longest)
    inside: list[int] = []
    most = 0

    def compute(pick: random.Random) -> None:
        nonlocal most
        inside.append(1)
        most = max(most, len(inside))
        time.sleep(pick.choice((0, 0.0004)))
        inside.pop()

    def calls(pick: random.Random) -> None:
        for _ in range(60):
            with turns:
                compute(pick)
                with turns.waiting():
                    time.sleep(pick.choice((0, 0.0004)))
                compute(pick)

    threads = [
        started(lambda seed=seed: calls(random.Random(seed)))  # noqa: S311
        for seed in range(8)
    ]
    for thread in threads:
        thread.join(60)
    assert (turns._has, turns._line) == (None, [])
    if longest == LONG:
        assert most == 1
