"""No call keeps its turn at computing while it waits: doors at which threads wait are watched."""

import os
import select
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from dra_driver.host import turns
from worlds.api import ClaimApi
from worlds.configs import REQUESTS
from worlds.node import Node

DOORS: tuple[tuple[Any, str], ...] = (
    (os, "fsync"),
    (time, "sleep"),
    (select, "select"),
    (threading.Condition, "wait"),  # an Event, a Future, a queue.Queue, a thread pool
    (ClaimApi, "get_claim"),
)


def line() -> str:
    frame = sys._getframe(2)
    while "/dra_driver/" not in frame.f_code.co_filename and frame.f_back:
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"


class Waits:
    """Where threads waited with their turn; and at which doors threads that have one waited."""

    def __init__(self) -> None:
        self.kept: list[str] = []
        self.doors: set[str] = set()

    def note(self, door: str) -> None:
        place = getattr(turns.IN_TURN._thread, "place", None)
        if place is None:
            return
        self.doors.add(door)
        if turns.IN_TURN._has is place:
            self.kept.append(f"{door} at {line()}")

    def watched(self, door: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def wait(*args: Any, **options: Any) -> Any:
            self.note(door)
            return real(*args, **options)

        return wait

    def poll(self, real: Callable[[], Any]) -> Callable[[], Any]:
        """A maker of objects that poll: these are no Python, so they are wrapped."""
        waits = self

        class Poll:
            def __init__(self) -> None:
                self._poll = real()
                self.register = self._poll.register
                self.unregister = self._poll.unregister

            def poll(self, timeout: float | None = None) -> Any:
                if timeout != 0:
                    waits.note("poll")
                return self._poll.poll(timeout)

        return Poll


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> Waits:
    waits = Waits()
    for owner, name in DOORS:
        monkeypatch.setattr(owner, name, waits.watched(name, getattr(owner, name)))
    monkeypatch.setattr(select, "poll", waits.poll(select.poll))
    return waits


@pytest.mark.parametrize(
    ("kind", "doors"),
    [
        ("exclusive", {"get_claim"}),
        ("time-slicing", {"get_claim", "poll"}),
        ("both", {"get_claim", "poll", "wait"}),
        ("mig", {"get_claim", "wait", "fsync"}),
    ],
)
def test_no_call_waits_with_its_turn(node: Node, waits: Waits, kind: str, doors: set[str]) -> None:
    with node.mps.supervised():
        if kind == "mig":
            ref = node.claim_migs(0, 2)
        else:
            ref = node.claim_gpus(REQUESTS.get(kind, {"a": None}))
        with turns.IN_TURN:
            node.driver.prepare(ref)
        with turns.IN_TURN:
            node.driver.unprepare(ref)
    assert node.left() == []
    assert waits.kept == []
    assert waits.doors >= doors
