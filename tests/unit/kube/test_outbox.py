"""What can wait is sent in the background: once, in its latest form, and again if it failed."""

from collections.abc import Callable
from functools import partial

import pytest
from structlog.testing import capture_logs
from testbed.commands import wait_until

from clock import Clock
from dra_driver.errors import AccessError, ApiError, InvalidError, StaleError, UnavailableError
from dra_driver.kube import outbox as module
from dra_driver.kube.outbox import GIVES_WAY, Message, Outbox

AWAY = UnavailableError("away")


class World:
    """An outbox, and what it has sent."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.outbox = Outbox(clock=self.clock, jitter=lambda: 0.0)
        self.failures: dict[str, list[Exception]] = {}
        self.asked: list[str] = []
        self.sent: list[str] = []

    def put(self, name: str, *, refused: float | None = None, urgent: bool = False) -> None:
        message = Message(kind="event", about={"about": name}, refused_seconds=refused)
        self.outbox.put(("event", name), partial(self.send, name), message, is_urgent=urgent)

    def send(self, name: str) -> None:
        self.asked.append(name)
        if self.failures.get(name):
            raise self.failures[name].pop(0)
        self.sent.append(name)

    def work(self, name: str, after: float = 0.0) -> None:
        """Put in work on the node, which sends nothing."""
        self.outbox.put((name,), lambda: self.sent.append(name), after=after)

    def pass_by(self, seconds: float = 0.0) -> float:
        self.clock.now += seconds
        return self.outbox.deliver()

    def calls_for(self, seconds: float, during: Callable[[], None] = lambda: None) -> None:
        """Let calls come without a pause."""
        end = self.clock.now + seconds

        def busy() -> float:
            self.clock.now += 0.25
            during()
            return 0.001 if self.clock.now < end else 0.0

        self.outbox.busy = busy


@pytest.fixture
def world() -> World:
    return World()


def test_a_waiting_message_is_replaced_by_its_latest_form(world: World) -> None:
    world.outbox.put(("one",), partial(world.send, "first"))
    world.put("other")
    world.outbox.put(("one",), partial(world.send, "latest"))
    world.pass_by()
    assert world.sent == ["latest", "other"]
    world.outbox.put(("one",), partial(world.send, "again"))
    world.pass_by()
    assert world.sent == ["latest", "other", "again"]


def test_it_is_sent_at_its_time_or_at_once_if_it_is_put_again_for_now(world: World) -> None:
    world.work("late", after=10)
    world.work("later", after=30)
    assert world.pass_by() == 10
    world.work("later")
    assert (world.pass_by(), world.sent) == (10, ["later"])
    world.pass_by(10)
    assert world.sent == ["later", "late"]


def test_a_burst_of_calls_is_left_alone_until_it_ends(world: World) -> None:
    world.put("one")
    world.calls_for(3, during=lambda: world.sent.append("call"))
    world.pass_by()
    assert world.sent[-1] == "one"
    assert world.sent.count("call") == 12


def test_endless_calls_do_not_delay_messages_for_long(world: World) -> None:
    world.put("one")
    world.calls_for(1000)
    began = world.clock.now
    world.pass_by()
    assert world.sent == ["one"]
    assert GIVES_WAY <= world.clock.now - began < GIVES_WAY + 1


def test_urgent_messages_are_sent_first_and_during_calls(world: World) -> None:
    def call() -> None:
        if not world.sent:
            world.put("urgent", urgent=True)

    world.put("one")
    world.calls_for(1000, during=call)
    began = world.clock.now
    world.outbox.put(("sent",), lambda: world.sent.append(f"{world.clock.now - began}"))
    world.pass_by()
    assert world.sent[0] == "urgent"
    assert set(world.sent) > {"one"}


def test_failed_messages_are_retried_and_block_no_other(world: World) -> None:
    world.failures = {"bad": [AWAY, AWAY], "raced": [StaleError("changed", status=409)]}
    for name in ("bad", "good", "raced"):
        world.put(name)
    with capture_logs() as logs:
        world.pass_by()
        assert world.sent == ["good"]
        for _ in range(3):
            world.pass_by(1)
    assert world.sent == ["good", "raced", "bad"]
    assert world.asked.count("bad") == 3
    warned = [line for line in logs if line["log_level"] == "warning"]
    assert [(line["event"], line["about"]) for line in warned] == [("event not written yet", "bad")]


def test_an_api_server_that_asks_for_time_has_it(world: World) -> None:
    world.failures = {"one": [UnavailableError("busy", retry_after=100)]}
    world.put("one")
    world.pass_by()
    world.put("one")  # also by what takes its place
    world.pass_by(99)
    assert world.asked == ["one"]
    world.pass_by(1)
    assert world.sent == ["one"]


def test_an_api_server_that_is_away_is_asked_for_all_once_in_a_while(world: World) -> None:
    names = [str(number) for number in range(9)]
    world.failures = {name: [AWAY] * 2 for name in names}
    for name in names:
        world.put(name)
    world.pass_by()
    assert world.asked == ["0", "1"]  # the second failure in a row is the API server's
    world.work("local")
    world.pass_by()
    assert world.sent == ["local"]  # what asks nothing does not wait
    world.pass_by(1)
    assert world.asked[2:] == ["2"]  # the one that has waited longest
    for _ in range(30):
        world.pass_by(60)
    assert sorted(world.sent) == sorted([*names, "local"])


@pytest.mark.parametrize(
    ("error", "event"),
    [
        (AccessError("a policy", status=403), "event not written"),
        (InvalidError("a rule", status=422), "event refused"),
        (ApiError("odd", status=405), "event refused"),
    ],
    ids=repr,
)
@pytest.mark.parametrize("again", [None, 600.0], ids=["dropped", "repeated"])
def test_refused_messages_are_dropped_or_rarely_retried(
    world: World, error: ApiError, event: str, again: float | None
) -> None:
    world.failures = {"bad": [error] * 2}
    world.put("bad", refused=again)
    world.put("good")
    with capture_logs() as logs:
        for _ in range(30):
            world.pass_by(100)
    assert world.sent == (["good"] if again is None else ["good", "bad"])
    assert world.asked.count("bad") == (1 if again is None else 3)
    assert [line["event"] for line in logs] == [event]


def test_a_right_that_is_missing_for_all_is_logged_once(world: World) -> None:
    for name in "abc":
        world.failures[name] = [AccessError("no right", status=403)]
        world.put(name)
    with capture_logs() as logs:
        world.pass_by()
    assert [line["event"] for line in logs] == ["event not written"]


def test_credentials_that_are_not_accepted_hold_up_all(world: World) -> None:
    for name in "abc":
        world.failures[name] = [AccessError("who are you", status=401)]
        world.put(name)
    world.pass_by()
    assert world.asked == ["a"]
    for _ in range(9):
        world.pass_by(60)
    assert world.sent == ["a", "b", "c"]


def test_the_latest_messages_are_kept_and_no_more_than_a_bound(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MOST_WAITING", 5)
    world.work("local")
    for number in range(8):
        world.put(str(number))
    with capture_logs() as logs:
        world.pass_by()
    assert world.sent == ["local", "4", "5", "6", "7"]
    assert [(line["event"], line["count"]) for line in logs] == [("messages dropped", 4)]


def test_a_message_dropped_at_its_turn_is_not_sent(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MOST_WAITING", 1)

    def busy() -> float:
        world.outbox.busy = lambda: 0.0
        world.put("latest")
        return 0.0

    world.put("oldest")
    world.outbox.busy = busy
    world.pass_by()
    assert world.sent == ["latest"]


def test_work_that_fails_is_logged_once_and_ends_nothing(world: World) -> None:
    def fail() -> None:
        raise AWAY

    with capture_logs() as logs:
        for _ in range(2):
            world.outbox.put(("look",), fail)
            world.put("one")
            world.pass_by()
    assert world.sent == ["one", "one"]
    assert [(line["event"], line["work"]) for line in logs] == [("background work failed", "look")]


def test_its_thread_sends_and_what_waits_when_it_stops_is_tried_once() -> None:
    world = World()
    world.outbox.start()
    world.put("one")
    wait_until(lambda: world.sent == ["one"], "it to be sent", timeout=30)
    world.outbox.busy = lambda: 1000.0
    world.failures = {"bad": [AWAY] * 9}
    world.put("bad")
    world.put("two")
    assert world.outbox.stop(30)
    assert (world.asked, world.sent) == (["one", "bad", "two"], ["one", "two"])
