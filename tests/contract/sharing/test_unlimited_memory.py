"""A claim whose memory nothing limits is told so by an Event, beside the kubelet's calls."""

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


class Telling:
    """A driver's calls, and what is sent beside them."""

    def __init__(self, node: Node, server: ApiServer, folder: Path) -> None:
        self.node, self.server, self.outbox = node, server, Outbox()
        self.kube = from_kubeconfig(server.write_kubeconfig(folder / "kubeconfig"))
        events = ClaimEvents(self.kube, self.outbox, node="node-1")
        memory = UnlimitedMemory(node.driver.claims.ledger, events, self.outbox)
        metrics = Metrics(driver="d", node="n", version="1")
        self.calls = ClaimCalls(node.driver.preparer, metrics, clock=time.monotonic)
        self.calls.prepared.add(memory.prepared)
        self.calls.unprepared.add(memory.unprepared)

    def prepare(self, ref: ClaimRef) -> None:
        assert self.calls.prepare([ref], PATIENCE)[ref.uid].error == ""

    def unprepare(self, ref: ClaimRef) -> None:
        assert self.calls.unprepare([ref], PATIENCE)[ref.uid].error == ""

    def events(self, kind: str = "ResourceClaim") -> list[dict[str, Any]]:
        """The Events that are about a kind of object, once all are sent."""
        self.outbox.deliver()
        events = self.server.objects("events")
        return [event for event in events if event["regarding"]["kind"] == kind]


@pytest.fixture
def telling(node: Node, tmp_path: Path) -> Iterator[Telling]:
    with ApiServer() as server:
        made = Telling(node, server, tmp_path)
        yield made
        made.kube.close()


def test_the_event_says_why_nothing_limits_the_memory_and_what_to_do(telling: Telling) -> None:
    telling.node.divide(0, strategy=ShareStrategy.TIME_SLICING)
    telling.prepare(telling.node.claim(SHARE))
    (event,) = telling.events()
    about = event["regarding"]
    assert (about["kind"], about["namespace"], about["name"]) == (
        "ResourceClaim",
        "default",
        "claim",
    )
    (on_pod,) = telling.events("Pod")
    assert on_pod["regarding"]["name"] == "pod"
    assert (on_pod["reason"], on_pod["note"]) == (event["reason"], event["note"])
    assert about["uid"] == "uid-claim"
    assert (event["reason"], event["type"]) == ("GPUMemoryNotLimited", "Warning")
    assert f"nothing limits the GPU memory that this claim uses with {SHARE}: " in event["note"]
    assert "time-slicing divides no memory" in event["note"]
    assert event["note"].endswith("GPU driver of R615 or newer and cgroup v2")
    assert len(event["note"]) < 1024


def test_a_claim_gets_one_event_each_time_it_is_prepared(telling: Telling) -> None:
    telling.node.divide(0, strategy=ShareStrategy.TIME_SLICING)
    ref = telling.node.claim(SHARE)
    for _ in range(3):
        telling.prepare(ref)
    assert len(telling.events()) == 1
    telling.prepare(ref)
    assert len(telling.events()) == 1
    telling.unprepare(ref)
    telling.prepare(ref)
    assert len(telling.events()) == 2


def test_claims_with_limited_or_all_memory_get_no_event(telling: Telling) -> None:
    node = telling.node
    node.divide(0, strategy=ShareStrategy.MPS)
    node.divide(1, strategy=ShareStrategy.TIME_SLICING)
    with node.mps.supervised():
        refs = [node.claim(SHARE, name="limited"), node.claim("gpu-2", name="whole")]
        refs.append(node.claim("gpu-1-single-share-0-of-10", name="last"))
        for ref in refs:
            telling.prepare(ref)
        assert [one["regarding"]["name"] for one in telling.events()] == ["last"]
        for ref in refs:
            telling.unprepare(ref)
    assert node.left() == []
