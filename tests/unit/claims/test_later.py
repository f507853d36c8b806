"""Events are posted beside the calls, one after the other, and again if the API server was away."""

from collections.abc import Iterator
from functools import partial
from time import monotonic

import pytest
from structlog.testing import capture_logs
from testbed.commands import wait_until

from dra_driver.claims.report import later as module
from dra_driver.claims.report.later import Later
from dra_driver.errors import AccessError, UnavailableError


class World:
    """A thread, and what it was asked to post: by whom and when."""

    def __init__(self, retry: float) -> None:
        self.later = Later(retry_seconds=retry)
        self.outages = 0
        self.retry_after = 0.0
        self.asked: list[tuple[str, float]] = []
        self.posted: list[str] = []

    def post(self, name: str) -> None:
        self.asked.append((name, monotonic()))
        if self.outages:
            self.outages -= 1
            raise UnavailableError("away", retry_after=self.retry_after)
        self.posted.append(name)


@pytest.fixture(params=[0.0])
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    made = World(request.param)
    made.later.start()
    yield made
    assert made.later.stop(30)


@pytest.mark.parametrize("world", [1000.0], indirect=True)
def test_what_cannot_be_posted_keeps_nothing_else(world: World) -> None:
    def refused() -> None:
        raise AccessError("a policy", status=403)

    world.outages = 1
    for work in (partial(world.post, "late"), refused, partial(world.post, "good")):
        world.later.do(work)
    wait_until(lambda: world.posted == ["good"], "the other to be posted", timeout=30)


def test_an_api_server_that_asks_for_time_has_it(world: World) -> None:
    world.outages, world.retry_after = 1, 1.5
    world.later.do(partial(world.post, "one"))
    wait_until(lambda: world.posted == ["one"], "it to be posted", timeout=30)
    (_, first), (_, second) = world.asked
    assert second - first >= 1.5


def test_of_what_waits_for_the_api_server_the_latest_is_kept_and_no_more_than_a_bound(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MOST_WAITING", 5)
    world.outages, world.retry_after = 8, 0.3
    with capture_logs() as logs:
        for one in range(8):
            world.later.do(partial(world.post, f"{one}"))
        wait_until(lambda: len(world.posted) >= 5, "the latest to be posted", timeout=30)
    assert world.posted == ["3", "4", "5", "6", "7"]
    assert sum(line["count"] for line in logs if line["event"] == "events not created") == 3
