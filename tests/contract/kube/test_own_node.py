"""One watch of the Node for several listeners, and the labels for who cannot wait for it."""

import time
from collections.abc import Iterator
from typing import Any

import pytest
from testbed.apiserver.server import ApiServer

from dra_driver.errors import DriverError
from dra_driver.kube.client import KubeClient
from dra_driver.kube.own_node import NodeFacts, OwnNode
from dra_driver.kube.resource import NODES
from dra_driver.kube.watch import Changed
from worlds.process import eventually

A, B = (NodeFacts(labels={"zone": zone}) for zone in "ab")


def node(**labels: str) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1", "labels": labels}}


@pytest.fixture
def server() -> Iterator[ApiServer]:
    with ApiServer() as made:
        made.put(node(zone="a"))
        yield made


@pytest.fixture
def labels(client: KubeClient) -> Iterator[OwnNode]:
    made = OwnNode(client, "n1", clock=time.monotonic, random=lambda: 0.5)
    yield made
    assert made.stop(10)


def test_one_watch_reports_each_change_to_all_listeners(
    server: ApiServer, client: KubeClient, labels: OwnNode
) -> None:
    heard: tuple[list[NodeFacts], list[NodeFacts]] = ([], [])
    for one in heard:
        labels.listen(one.append)
    labels.start()
    eventually(lambda: heard[1] == [A], "the labels at the start")
    # Another change of the Node than of its labels is none.
    client.update(NODES, "n1", node(zone="a") | {"spec": {"unschedulable": True}}, timeout=5)
    client.update(NODES, "n1", node(zone="b"), timeout=5)
    eventually(lambda: heard[1] == [A, B], "the change")
    assert heard[0] == heard[1]
    assert labels.current() == B
    assert len(server.seen("list", "nodes")) == 1


def test_nothing_is_watched_without_listeners(server: ApiServer, labels: OwnNode) -> None:
    labels.start()
    assert labels.current() == A
    assert server.seen("watch", "nodes") == []


def test_an_early_query_takes_no_change_from_listeners(labels: OwnNode) -> None:
    heard: list[NodeFacts] = []
    labels.listen(heard.append)
    assert labels.current() == A
    labels.start()
    eventually(lambda: heard == [A], "the labels")


def test_a_query_of_an_unreachable_server_fails(server: ApiServer, labels: OwnNode) -> None:
    server.fail("get", "nodes", status=503)
    with pytest.raises(DriverError, match="503"):
        labels.current()


def test_a_watch_event_beats_an_answer_under_way() -> None:
    class Slow:
        """An API server that answers after the watch has told."""

        def get_node(self, name: str, *, timeout: float) -> dict[str, Any]:
            own._take_news(Changed(type="MODIFIED", object=node(zone="new")))
            return node(zone="old")

    own = OwnNode(Slow(), "n1", clock=time.monotonic, random=lambda: 0.5)  # type: ignore[arg-type]
    assert own.current().labels == {"zone": "new"}
    assert own.current().labels == {"zone": "new"}
