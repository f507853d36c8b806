"""What decides by itself what a node offers of MIG, followed on a server as it changes.

The label by which mig-manager divides a node, the version of Kubernetes, and modes of GPUs.
"""

import time
from collections.abc import Callable, Iterator

import pytest
from msgspec.structs import replace
from structlog.testing import capture_logs

import make
from contract.slices.conftest import QUICK, Bench, node
from dra_driver.devices.model import Inventory, MigMode
from dra_driver.devices.shares import Division, ShareStrategy
from dra_driver.errors import UnavailableError
from dra_driver.kube.own_node import OwnNode
from dra_driver.kube.resource import NODES
from dra_driver.kube.server_version import ServerVersion
from dra_driver.slices.node import NodeOffer
from dra_driver.slices.offer.mig import MIG_MANAGER_LABEL, MigSettings
from dra_driver.slices.offer.shares import ShareOffer, WholeBesideShares
from dra_driver.slices.project import Projection, projection
from dra_driver.slices.publish.publisher import SlicePublisher
from worlds.process import eventually

Start = Callable[[str, str], "World"]

WHOLE = make.gpu(0, mig=make.mig())
IN_MIG_MODE = make.gpu(1, mig_mode=MigMode.ENABLED, mig=make.mig(pending_mode=MigMode.ENABLED))
HOPPERS = make.inventory(WHOLE, IN_MIG_MODE)

RESYNCED = replace(QUICK, resync=0.05)


def label(bench: Bench, **labels: str) -> None:
    """Give node n1 these labels and no others."""
    bench.client.update(
        NODES, "n1", node() | {"metadata": node()["metadata"] | {"labels": labels}}, timeout=5
    )


SHARES = {
    make.place(make.gpu(2)): Division(
        count=2, strategy=ShareStrategy.TIME_SLICING, served_as="nvidia.com/gpu", combines=True
    )
}
"""How a third GPU is divided, where there is one."""


class World:
    """A publisher that heeds the label of node n1."""

    def __init__(self, bench: Bench, settings: MigSettings) -> None:
        self.bench = bench
        self.changes = 0
        self.labels = OwnNode(bench.client, "n1", clock=time.monotonic, random=lambda: 0.5)
        self.version = ServerVersion(bench.client, clock=time.monotonic, again=0.0)
        self.offer = NodeOffer(self.labels, self.version, settings, on_change=self._changed)
        self.publisher: SlicePublisher = bench.start(
            HOPPERS, project=self._project, timing=RESYNCED
        )
        self.labels.start()

    def _project(
        self, inventory: Inventory, *, with_counters: bool, with_consumables: bool
    ) -> Projection:
        share = ShareOffer(
            divisions=SHARES, alone=WholeBesideShares.AUTO.why_alone(self.version.current)
        )
        return projection(
            inventory, with_counters=with_counters, mig=self.offer.current(), share=share
        )

    def _changed(self) -> None:
        self.changes += 1
        self.publisher.publish_again()

    def label(self, value: str | None) -> None:
        label(self.bench, **({} if value is None else {MIG_MANAGER_LABEL: value}))

    def is_divided(self) -> bool:
        return len(self.bench.devices()) > 1

    def published(self, *, divided: bool) -> None:
        eventually(lambda: self.is_divided() == divided and self.bench.devices(), "the slices")


@pytest.fixture
def start(bench: Bench) -> Iterator[Start]:
    made: list[World] = []

    def world(*words: str) -> World:
        made.append(World(bench, MigSettings.of(*words)))
        return made[-1]

    yield world
    for one in made:
        one.labels.stop(10)


def test_a_label_that_comes_and_goes_is_followed(start: Start) -> None:
    world = start("auto", "")
    world.published(divided=True)
    world.label("all-1g.10gb")
    world.published(divided=False)
    world.label(None)
    world.published(divided=True)


def test_a_label_that_is_there_at_the_start_is_known_before_anything_is_published(
    bench: Bench, start: Start
) -> None:
    label(bench, **{MIG_MANAGER_LABEL: "all-disabled"})
    start("auto", "")
    # However often it looked meanwhile.
    assert set(bench.count.publications) == {(1, 1)}
    assert bench.devices() == ["gpu-0"]


def test_a_setting_overrides_the_label(bench: Bench, start: Start) -> None:
    world = start("on-demand", "")
    world.label("all-1g.10gb")
    assert world.is_divided()
    assert bench.server.seen("watch", "nodes") == []


def test_other_changes_of_the_node_are_ignored(bench: Bench, start: Start) -> None:
    world = start("auto", "")
    eventually(lambda: bench.server.seen("watch", "nodes"), "the watch")
    label(bench, zone="b")
    world.label("all-1g.10gb")
    world.published(divided=False)
    assert world.changes == 1


def test_a_cluster_that_is_upgraded_gets_the_new_offer(bench: Bench, start: Start) -> None:
    bench.server.kubernetes = "1.36"
    world = start("auto", "")
    assert bench.devices() == ["gpu-0"]
    bench.server.kubernetes = "1.37"
    world.published(divided=True)
    assert "gpu-0" in bench.devices()
    assert any(name.startswith("gpu-1-mig-") for name in bench.devices())


def test_shares_get_the_whole_gpu_beside_them_when_the_cluster_is_upgraded(
    bench: Bench, start: Start
) -> None:
    bench.server.kubernetes = "1.36"
    world = start("auto", "")
    shared = make.inventory(WHOLE, make.gpu(2, mig=make.mig()))
    shares = ["gpu-2-share-0-of-2", "gpu-2-share-1-of-2"]
    world.publisher.update(shared)
    eventually(lambda: bench.devices() == ["gpu-0", *shares], "shares alone")
    assert not any("consumesCounters" in str(one) for one in bench.slices())
    bench.server.kubernetes = "1.37"
    eventually(lambda: bench.devices() == ["gpu-0", "gpu-2", *shares], "whole GPU and shares")
    assert any("sharedCounters" in one["spec"] for one in bench.slices())


def test_an_unavailable_version_changes_nothing(bench: Bench, start: Start) -> None:
    world = start("auto", "")
    before = bench.devices()
    bench.server.pages["/version"] = lambda _: {"gitVersion": "?"}
    bench.look_again(world.publisher, HOPPERS)
    assert bench.devices() == before
    bench.server.stop()
    assert world.offer.current().source == "auto"
    bench.server.start()


def test_before_the_version_is_known_nothing_is_decided(bench: Bench) -> None:
    version = ServerVersion(bench.client, clock=time.monotonic)
    bench.server.stop()
    with pytest.raises(UnavailableError):
        version.current()
    bench.server.start()
    assert version.current() == (1, 37)


@pytest.mark.parametrize(
    ("page", "version"),
    [
        ({"major": "1", "minor": "36+", "gitVersion": "v1.36.2-eks-1b"}, (1, 36)),
        ({"gitVersion": "v1.37.0-alpha.1"}, (1, 37)),
        ({"major": "", "minor": "", "gitVersion": "v1.38.1+k3s1"}, (1, 38)),
        ({"gitVersion": "main"}, None),
    ],
)
def test_versions_are_read_as_clusters_write_them(
    bench: Bench, page: dict[str, str], version: tuple[int, int] | None
) -> None:
    bench.server.pages["/version"] = lambda _: page
    assert ServerVersion(bench.client, clock=time.monotonic).current() == version


def test_an_answer_is_good_for_a_while(bench: Bench) -> None:
    now = 0.0
    version = ServerVersion(bench.client, clock=lambda: now)
    assert version.current() == (1, 37)
    bench.server.kubernetes = "1.38"
    now = 29.0
    assert version.current() == (1, 37)
    now = 30.0
    assert version.current() == (1, 38)


def test_a_mig_mode_that_changes_changes_the_offer(bench: Bench, start: Start) -> None:
    world = start("auto", "")
    world.publisher.update(make.inventory(WHOLE, make.gpu(1, mig=make.mig())))
    eventually(lambda: sorted(bench.devices()) == ["gpu-0", "gpu-1"], "whole GPUs")
    world.publisher.update(HOPPERS)
    eventually(
        lambda: "gpu-1" not in bench.devices() and len(bench.devices()) > 2, "the partitions"
    )


def test_the_cost_of_on_demand_is_logged_once_on_older_kubernetes(
    bench: Bench, start: Start
) -> None:
    bench.server.kubernetes = "1.36"
    with capture_logs() as logs:
        world = start("on-demand", "")
        bench.look_again(world.publisher, HOPPERS)
    assert world.is_divided()
    (told,) = [log for log in logs if log["event"] == "mig on demand slows the scheduler"]
    assert told["kubernetes"] == "Kubernetes 1.36"
    assert "1.1 pods a second instead of 44" in told["reason"]
