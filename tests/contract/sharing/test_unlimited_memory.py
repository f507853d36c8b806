"""A claim whose memory nothing limits is told so by an Event, beside the kubelet's calls."""

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from testbed.apiserver.server import ApiServer

from dra_driver.claims.model.claim import ClaimRef
from dra_driver.claims.report.claim_events import ClaimEvents
from dra_driver.claims.report.unlimited_memory import UnlimitedMemory
from dra_driver.devices.shares import ShareStrategy
from dra_driver.kube.events import Regarding
from dra_driver.kube.kubeconfig import from_kubeconfig
from dra_driver.kube.outbox import Outbox
from dra_driver.kubelet.service import ClaimCalls
from dra_driver.ops.metrics import Metrics
from worlds.configs import PATIENCE
from worlds.node import MakeNode, Node

SHARE = "gpu-0-single-share-0-of-10"


@pytest.fixture
def node(make_node: MakeNode) -> Node:
    return make_node()


@pytest.fixture
def server() -> Iterator[ApiServer]:
    with ApiServer() as server:
        yield server


def calls_beside(memory: UnlimitedMemory, node: Node) -> ClaimCalls:
    calls = ClaimCalls(
        node.driver.preparer, Metrics(driver="d", node="n", version="1"), clock=time.monotonic
    )
    calls.prepared.add(memory.prepared)
    calls.unprepared.add(memory.unprepared)
    return calls


class Telling:
    """A driver's calls, and the thread beside them; the node's claims are known to it alone."""

    def __init__(self, node: Node, server: ApiServer, folder: Path) -> None:
        self.node, self.server = node, server
        self.kube = from_kubeconfig(server.write_kubeconfig(folder / "kubeconfig"))
        self.thread = Outbox(jitter=lambda: 0.9)
        events = ClaimEvents(self.kube, self.thread, node="node-1")
        records = node.driver.claims.records
        self.calls = calls_beside(UnlimitedMemory(records, events, self.thread), node)
        self.thread.start()

    def prepare(self, ref: ClaimRef) -> None:
        assert self.calls.prepare([ref], PATIENCE)[ref.uid].error == ""

    def unprepare(self, ref: ClaimRef) -> None:
        assert self.calls.unprepare([ref], PATIENCE)[ref.uid].error == ""

    def told(self, count: int) -> list[dict[str, Any]]:
        """Wait until so many Events of claims are there, and all that waits was looked at."""
        assert self.server.wait_for(lambda: len(self.of("ResourceClaim")) >= count)
        self.thread.stop(10)
        return self.of("ResourceClaim")

    def of(self, kind: str) -> list[dict[str, Any]]:
        """The Events that are about a kind of object."""
        events = self.server.objects("events")
        return [event for event in events if event["regarding"]["kind"] == kind]


@pytest.fixture
def telling(node: Node, server: ApiServer, tmp_path: Path) -> Iterator[Telling]:
    made = Telling(node, server, tmp_path)
    yield made
    made.thread.stop(10)
    made.kube.close()


def test_the_event_says_why_nothing_limits_the_memory_and_what_to_do(telling: Telling) -> None:
    telling.node.divide(0, strategy=ShareStrategy.TIME_SLICING)
    telling.prepare(telling.node.claim(SHARE))
    (event,) = telling.told(1)
    about = event["regarding"]
    assert (about["kind"], about["namespace"], about["name"]) == (
        "ResourceClaim",
        "default",
        "claim",
    )
    (on_pod,) = telling.of("Pod")
    assert on_pod["regarding"]["name"] == "pod"
    assert (on_pod["reason"], on_pod["note"]) == (event["reason"], event["note"])
    assert about["uid"] == "uid-claim"
    assert (event["reason"], event["type"]) == ("GPUMemoryNotLimited", "Warning")
    assert f"nothing limits the GPU memory that this claim uses with {SHARE}: " in event["note"]
    assert "time-slicing divides no memory" in event["note"]
    assert event["note"].endswith("GPU driver of R615 or newer and cgroup v2")
    assert len(event["note"]) < 1024


def test_a_claim_is_told_once_and_again_when_it_was_given_back(telling: Telling) -> None:
    telling.node.divide(0, strategy=ShareStrategy.TIME_SLICING)
    ref = telling.node.claim(SHARE)
    for _ in range(3):
        telling.prepare(ref)
    assert telling.server.wait_for(lambda: len(telling.of("ResourceClaim")) == 1)
    telling.prepare(ref)
    telling.unprepare(ref)
    telling.prepare(ref)
    assert len(telling.told(2)) == 2


def test_claims_whose_memory_is_limited_or_all_theirs_are_not_told(telling: Telling) -> None:
    node = telling.node
    node.divide(0, strategy=ShareStrategy.MPS)
    node.divide(1, strategy=ShareStrategy.TIME_SLICING)
    with node.mps.supervised():
        refs = [node.claim(SHARE, name="limited"), node.claim("gpu-2", name="whole")]
        refs.append(node.claim("gpu-1-single-share-0-of-10", name="last"))
        for ref in refs:
            telling.prepare(ref)
        assert [one["regarding"]["name"] for one in telling.told(1)] == ["last"]
        for ref in refs:
            telling.unprepare(ref)
    assert node.left() == []


def test_an_api_server_that_is_away_gets_the_event_later(telling: Telling) -> None:
    fault = telling.server.fail("create", status=503, times=1000)
    telling.node.divide(0, strategy=ShareStrategy.TIME_SLICING)
    telling.prepare(telling.node.claim(SHARE))
    assert telling.server.wait_for(lambda: fault.times < 1000)
    assert telling.server.objects("events") == []
    fault.times = 0
    assert len(telling.told(1)) == 1


def test_a_driver_that_may_not_write_events_prepares_and_goes_on(telling: Telling) -> None:
    telling.server.fail("create", status=403, times=1)
    telling.node.divide(0, strategy=ShareStrategy.TIME_SLICING)
    telling.prepare(telling.node.claim(SHARE, name="refused"))
    telling.prepare(telling.node.claim("gpu-0-single-share-1-of-10", name="told"))
    assert [one["regarding"]["name"] for one in telling.told(1)] == ["told"]


def test_prepare_waits_for_no_event(node: Node) -> None:
    node.divide(0, strategy=ShareStrategy.TIME_SLICING)
    answer, asked = threading.Event(), threading.Event()

    class Slow:
        """An API server that takes its time."""

        def post(self, about: Regarding, **what: str) -> None:
            asked.set()
            assert answer.wait(PATIENCE)

    thread = Outbox()
    thread.start()
    calls = calls_beside(UnlimitedMemory(node.driver.claims.records, Slow(), thread), node)
    try:
        for number in range(2):
            ref = node.claim(f"gpu-0-single-share-{number}-of-10", name=f"c{number}")
            (device,) = calls.prepare([ref], PATIENCE)[ref.uid].devices
            assert device.name == f"gpu-0-single-share-{number}-of-10"
        assert asked.wait(PATIENCE)
    finally:
        answer.set()
        thread.stop(10)
