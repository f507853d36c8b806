"""The watch against an API server over HTTP and TLS."""
# ruff: noqa: S106 - the token belongs to a server that lives as long as one test

import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from testbed.apiserver.server import ApiServer

from dra_driver.kube.client import KubeClient
from dra_driver.kube.kubeconfig import from_kubeconfig
from dra_driver.kube.resource import NODES
from dra_driver.kube.watch import Changed, Listed, Watch


def node(name: str) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}}


@dataclass
class Follower:
    """A watch on one node by name, and what it told."""

    server: ApiServer
    client: KubeClient
    told: list[Listed | Changed] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.watch = Watch(
            self.client,
            NODES,
            selectors={"fieldSelector": "metadata.name=n1"},
            tell=self.told.append,
            clock=time.monotonic,
            random=lambda: 0.999,
        )

    def start(self) -> None:
        """Start, and wait until the stream is open."""
        self.watch.start()
        self.wait(lambda: bool(self.server.seen("watch", "nodes")))

    def lists(self) -> int:
        return sum(isinstance(news, Listed) for news in self.told)

    def changes(self) -> list[str]:
        return [news.type for news in self.told if isinstance(news, Changed)]

    def wait(self, condition: Any) -> None:
        assert self.server.wait_for(condition)


@pytest.fixture
def follower(tmp_path: Path) -> Iterator[Follower]:
    with ApiServer(bookmark_seconds=0.05) as server:
        server.put(node("n1"), node("n2"))
        client = from_kubeconfig(server.write_kubeconfig(tmp_path / "kubeconfig"))
        made = Follower(server, client)
        yield made
        assert made.watch.stop(5)
        client.close()


def test_it_lists_first_and_then_reports_every_selected_change(follower: Follower) -> None:
    follower.start()
    first = follower.told[0]
    assert isinstance(first, Listed)
    assert [item["metadata"]["name"] for item in first.items] == ["n1"]  # type: ignore[index]
    follower.server.delete_all("nodes")
    follower.server.put(node("n2"), node("n1"))
    follower.wait(lambda: follower.changes() == ["DELETED", "ADDED"])


def test_a_cut_stream_goes_on_where_it_ended_without_listing(follower: Follower) -> None:
    follower.start()
    follower.server.cut_watches()
    follower.server.delete_all("nodes")
    follower.wait(lambda: follower.changes() == ["DELETED"])
    assert follower.lists() == 1


def test_bookmarks_move_the_version_that_the_next_stream_begins_at(follower: Follower) -> None:
    follower.start()
    follower.server.put(node("n3"))
    version = str(follower.server.store.version)

    follower.wait(lambda: follower.watch._version == version)
    follower.server.cut_watches()
    follower.wait(lambda: len(follower.server.seen("watch")) == 2)
    assert follower.server.seen("watch")[1].query["resourceVersion"] == version
    assert follower.changes() == []


@pytest.mark.parametrize("status", [400, 404, 410])
def test_a_version_that_is_not_accepted_is_listed_again(follower: Follower, status: int) -> None:
    follower.server.fail("watch", status=status)
    follower.watch.start()
    follower.wait(lambda: follower.lists() == 2)
    follower.wait(lambda: any(seen.status == 200 for seen in follower.server.seen("watch")))


def test_an_expired_version_within_the_stream_is_listed_again(follower: Follower) -> None:
    follower.server.fail("watch", hang_up=True, times=2)
    follower.watch.start()
    follower.wait(lambda: len(follower.server.seen("watch")) >= 2)
    follower.server.delete_all("nodes")
    follower.server.store.compact()
    follower.wait(lambda: follower.lists() == 2)
    assert follower.told[-1] == Listed(items=())


@pytest.mark.parametrize("status", [500, 503, 429])
def test_a_failing_server_is_asked_again_without_listing(follower: Follower, status: int) -> None:
    follower.server.fail("watch", status=status)
    follower.watch.start()
    follower.wait(lambda: any(seen.status == 200 for seen in follower.server.seen("watch")))
    assert follower.lists() == 1


def test_a_servers_retry_after_is_respected(follower: Follower) -> None:
    follower.server.fail("list", status=429, retry_after=1)
    began = time.monotonic()
    follower.start()
    assert time.monotonic() - began >= 1


def test_a_refused_watch_backs_off(follower: Follower) -> None:
    follower.server.fail("watch", status=403, times=float("inf"))
    follower.watch.start()
    time.sleep(1.5)
    # Delays of at least 0.25, 0.5 and 1 s: an upper bound, which a slow machine only undercuts.
    assert len(follower.server.seen()) <= 8


def test_a_stream_that_ends_at_once_backs_off(follower: Follower) -> None:
    follower.server.bookmark_seconds = 60
    follower.watch.start()
    end = time.monotonic() + 1.5
    while time.monotonic() < end:
        follower.server.cut_watches()
        time.sleep(0.01)
    assert len(follower.server.seen()) <= 8


def test_a_server_that_comes_back_is_found(follower: Follower) -> None:
    follower.start()
    follower.server.stop()
    follower.server.start()
    follower.server.delete_all("nodes")
    follower.wait(lambda: "DELETED" in follower.changes())


def test_stop_ends_a_quiet_stream(follower: Follower) -> None:
    follower.server.bookmark_seconds = 60
    follower.start()
    assert follower.watch.stop(5)


def test_stop_ends_a_quiet_stream_over_tls(tmp_path: Path, certificate: tuple[Path, Path]) -> None:
    (tmp_path / "token").write_text("t")
    shutil.copy(certificate[0], tmp_path / "ca.crt")
    with ApiServer(token="t", tls=certificate) as server:
        environment = {
            "KUBERNETES_SERVICE_HOST": "127.0.0.1",
            "KUBERNETES_SERVICE_PORT": str(server.port),
        }
        client = KubeClient.in_cluster(environment, directory=tmp_path)
        follower = Follower(server, client)
        follower.start()
        server.put(node("n1"))
        follower.wait(lambda: follower.changes() == ["ADDED"])
        assert follower.watch.stop(5)
        client.close()


def test_stop_before_start_is_fine(follower: Follower) -> None:
    assert follower.watch.stop(1)
