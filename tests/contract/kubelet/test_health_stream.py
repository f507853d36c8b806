"""The health stream as kubelets meet it: many, slow, gone, and come back."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import grpc
import pytest
from structlog.testing import capture_logs
from testbed.commands import wait_until
from testbed.kubelet import KubeletClient

from dra_driver.claims.report.device_health import WELL, DeviceHealth, HealthState, Reported
from dra_driver.errors import StateError
from dra_driver.kubelet.health_stream import MOST_STREAMS, HealthStream, StreamTiming
from dra_driver.kubelet.plugin import KubeletPlugin
from dra_driver.kubelet.service import ClaimCalls
from dra_driver.kubelet.sockets import SocketPaths, socket_paths
from dra_driver.ops.metrics import Metrics

SICK = DeviceHealth(state=HealthState.UNHEALTHY, reason="Xid79", message="XID 79: it is lost.")
UNKNOWN = DeviceHealth(state=HealthState.UNKNOWN, reason="DriverUnavailable", message="Who knows.")
QUICK = StreamTiming(resend=0.3, least=0.01, stuck=3.0)


class NoClaims:
    def prepare(self, *_: object, **__: object) -> Any:
        raise AssertionError

    unprepare = prepare


def one(device: str, health: DeviceHealth = WELL) -> tuple[tuple[str, str], DeviceHealth]:
    return ("node-1", device), health


class Node:
    """A plugin on sockets, what it has to report, and a kubelet."""

    def __init__(self, root: Path, timing: StreamTiming) -> None:
        self.found: Reported = dict([one("gpu-0")])
        self.error: StateError | None = None
        self.asked = self.waited = 0
        self.looked = threading.Event()
        self.looked.set()
        self.paths: SocketPaths = socket_paths(plugins=root / "p", registrar=root / "r")
        self.stream = HealthStream(self.report, wait_ready=self.wait_ready, timing=timing)
        metrics = Metrics(driver="d", node="n", version="1")
        self.plugin = KubeletPlugin(
            ClaimCalls(NoClaims(), metrics, clock=lambda: 0.0),
            self.paths,
            self.stream,
            on_status=lambda _: None,
            check_seconds=0.05,
        )

    def wait_ready(self, seconds: float) -> bool:
        self.waited += 1
        return self.looked.wait(min(seconds, 0.05))

    def report(self) -> Reported:
        self.asked += 1
        if self.error is not None:
            raise self.error
        return self.found

    def say(self, *found: tuple[tuple[str, str], DeviceHealth]) -> None:
        self.found = dict(found)
        self.stream.ring()

    def start(self) -> None:
        self.plugin.start()
        self.stream.start()


def world(root: Path, timing: StreamTiming) -> Iterator[tuple[Node, KubeletClient]]:
    node = Node(root, timing)
    node.start()
    with KubeletClient(node.paths.registration.parent) as kubelet:
        kubelet.register()
        yield node, kubelet
    node.plugin.stop(0)


@pytest.fixture
def steady(tmp_path: Path) -> Iterator[tuple[Node, KubeletClient]]:
    """A node on which nothing is sent twice within a test."""
    yield from world(tmp_path, StreamTiming(resend=3600.0))


@pytest.fixture
def quick(tmp_path: Path) -> Iterator[tuple[Node, KubeletClient]]:
    """A node whose clocks go fast."""
    yield from world(tmp_path, QUICK)


def told(message: Any) -> dict[str, tuple[int, str]]:
    return {
        device.device.device_name: (device.health, device.message) for device in message.devices
    }


def eventually(condition: Callable[[], bool]) -> None:
    wait_until(condition, "the condition", timeout=30, interval=0.02)


def threads() -> int:
    return sum(thread.name.startswith("health-stream") for thread in threading.enumerate())


def ends(messages: Iterator[Any]) -> bool:
    """Whether a stream ends after what was sent on it already."""
    with suppress(grpc.RpcError):
        return sum(1 for _ in zip(messages, range(20), strict=False)) < 20
    return True


@pytest.mark.parametrize("version", ["v1", "v1alpha1"])
def test_all_devices_are_reported_in_both_versions(
    steady: tuple[Node, KubeletClient], version: str
) -> None:
    node, kubelet = steady
    node.say(one("gpu-0"), one("gpu-1", SICK), one("gpu-2", UNKNOWN))
    messages = kubelet.watch_health(version)
    message = next(messages)
    while len(message.devices) < 3:  # what was found before it was changed
        message = next(messages)
    assert told(message) == {
        "gpu-0": (1, ""),
        "gpu-1": (2, "XID 79: it is lost."),
        "gpu-2": (0, "Who knows."),
    }
    for device in message.devices:
        assert device.device.pool_name == "node-1"
        assert abs(device.last_updated_time - time.time()) < 30
        assert device.health_check_timeout_seconds == 30


def test_only_a_change_is_reported_at_once(steady: tuple[Node, KubeletClient]) -> None:
    node, kubelet = steady
    messages = kubelet.watch_health()
    assert told(next(messages)) == {"gpu-0": (1, "")}
    for _ in range(20):
        asked = node.asked
        node.stream.ring()
        eventually(lambda asked=asked: node.asked > asked)
    node.say(one("gpu-0", SICK))
    assert told(next(messages)) == {"gpu-0": (2, "XID 79: it is lost.")}
    node.say()
    assert told(next(messages)) == {}


def test_steady_health_is_repeated_before_the_kubelets_timeout(
    quick: tuple[Node, KubeletClient],
) -> None:
    _, kubelet = quick
    messages = kubelet.watch_health()
    assert [told(next(messages)) for _ in range(4)] == [{"gpu-0": (1, "")}] * 4
    assert StreamTiming().resend * 2 < next(messages).devices[0].health_check_timeout_seconds


def test_nothing_is_reported_before_the_first_scan(tmp_path: Path) -> None:
    node = Node(tmp_path, QUICK)
    node.looked.clear()
    node.start()
    with KubeletClient(node.paths.registration.parent) as kubelet:
        kubelet.register()
        messages = kubelet.watch_health()
        node.say(one("gpu-0", UNKNOWN))
        waited = node.waited
        eventually(lambda: node.waited > waited + 2)
        node.say(one("gpu-0"))
        node.looked.set()
        assert told(next(messages)) == {"gpu-0": (1, "")}
    node.plugin.stop(0)


def test_unknown_health_is_not_repeated_as_new(quick: tuple[Node, KubeletClient]) -> None:
    node, kubelet = quick
    got: list[Any] = []

    def read() -> None:
        with suppress(grpc.RpcError):
            got.extend(kubelet.watch_health())

    threading.Thread(target=read, daemon=True).start()
    eventually(lambda: bool(got))
    with capture_logs() as logs:
        node.error = StateError("the disk is gone")
        eventually(lambda: bool(logs))
        before, asked = len(got), node.asked
        eventually(lambda: node.asked > asked + 8)  # it is told again as often
        assert len(got) <= before + 1  # one may have been under way
        assert [log["event"] for log in logs] == ["device health not reported"]
        before = len(got)
        node.error = None
        eventually(lambda: len(got) > before)


def test_several_kubelets_get_reports_and_none_leaks_a_thread(
    quick: tuple[Node, KubeletClient],
) -> None:
    node, kubelet = quick
    streams = [kubelet.watch_health(version) for version in ("v1", "v1alpha1", "v1")]
    for messages in streams:
        assert told(next(messages)) == {"gpu-0": (1, "")}
    eventually(lambda: len(node.stream._streams) == 3)
    streams[0].cancel()
    eventually(lambda: len(node.stream._streams) == 2)
    for messages in streams[1:]:
        next(messages)
    for messages in streams[1:]:
        messages.cancel()
    eventually(lambda: len(node.stream._streams) == 0)


def test_a_kubelet_that_reconnects_gets_health_each_time(
    steady: tuple[Node, KubeletClient],
) -> None:
    node, _ = steady
    for _ in range(30):
        with KubeletClient(node.paths.registration.parent) as kubelet:
            kubelet.register()
            assert told(next(kubelet.watch_health())) == {"gpu-0": (1, "")}
    eventually(lambda: len(node.stream._streams) == 0)
    assert threads() <= MOST_STREAMS + 2


def test_new_streams_replace_the_oldest(quick: tuple[Node, KubeletClient]) -> None:
    node, kubelet = quick
    streams = []
    for _ in range(3 * MOST_STREAMS):
        streams.append(kubelet.watch_health())
        next(streams[-1])
    eventually(lambda: len(node.stream._streams) == MOST_STREAMS)
    assert ends(streams[0])
    for messages in streams[-MOST_STREAMS:]:
        next(messages)
    assert threads() <= MOST_STREAMS + 2


def test_a_kubelet_that_does_not_read_blocks_nobody(quick: tuple[Node, KubeletClient]) -> None:
    node, kubelet = quick
    text = "x" * 1000
    long = DeviceHealth(state=HealthState.UNHEALTHY, reason="Xid79", message=text)
    node.say(*(one(f"gpu-{number}", long) for number in range(2000)))
    slow = kubelet.watch_health()  # gRPC keeps what it takes, and takes no more than that
    with KubeletClient(node.paths.registration.parent) as other, capture_logs() as logs:
        other.register()
        messages = other.watch_health()
        eventually(  # reading all the while: who does not read is ended
            lambda: bool(next(messages)) and "health stream ended" in {log["event"] for log in logs}
        )
        for _ in range(3):
            next(messages)
        eventually(lambda: len(node.stream._streams) == 1)
    assert ends(slow)


def test_a_driver_that_stops_ends_its_streams_at_once(tmp_path: Path) -> None:
    node = Node(tmp_path, StreamTiming())
    node.start()
    with KubeletClient(node.paths.registration.parent) as kubelet:
        kubelet.register()
        messages = kubelet.watch_health()
        next(messages)
        node.plugin.stop(3600)
        assert ends(messages)
    eventually(lambda: threads() == 0)


def test_a_recreated_socket_reports_again(steady: tuple[Node, KubeletClient]) -> None:
    node, kubelet = steady
    before = kubelet.watch_health()
    next(before)
    node.paths.service.unlink()
    eventually(node.paths.service.is_socket)
    assert ends(before)
    eventually(lambda: len(node.stream._streams) == 0)
    with KubeletClient(node.paths.registration.parent) as after:
        after.register()
        assert told(next(after.watch_health())) == {"gpu-0": (1, "")}
