"""The label by which mig-manager divides a node, followed on a server as it comes and goes."""

import time
from collections.abc import Callable, Iterator

import pytest

import make
from contract.slices.conftest import Bench, node
from dra_driver.devices.model import Inventory
from dra_driver.kube.own_node import OwnNode
from dra_driver.kube.resource import NODES
from dra_driver.slices.mig_offer import MIG_MANAGER_LABEL, MigSettings
from dra_driver.slices.node_offer import NodeOffer
from dra_driver.slices.project import Projection, projection
from dra_driver.slices.publisher import SlicePublisher
from worlds.process import eventually

Start = Callable[[str, str], "World"]

HOPPER = make.inventory(make.gpu(0, mig=make.mig()))


def label(bench: Bench, **labels: str) -> None:
    """Give node n1 these labels and no others."""
    bench.client.update(
        NODES, "n1", node() | {"metadata": node()["metadata"] | {"labels": labels}}, timeout=5
    )


class World:
    """A publisher that heeds the label of node n1."""

    def __init__(self, bench: Bench, settings: MigSettings) -> None:
        self.bench = bench
        self.changes = 0
        self.labels = OwnNode(bench.client, "n1", clock=time.monotonic, random=lambda: 0.5)
        self.offer = NodeOffer(self.labels, settings, on_change=self._changed)
        self.publisher: SlicePublisher = bench.start(HOPPER, project=self._project)
        self.labels.start()

    def _project(
        self,
        inventory: Inventory,
        *,
        with_counters: bool,
        with_consumables: bool,
    ) -> Projection:
        return projection(inventory, with_counters=with_counters, mig=self.offer.current())

    def _changed(self) -> None:
        self.changes += 1
        self.publisher.publish_anew()

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


def test_a_setting_is_held_to_whatever_the_label_says(bench: Bench, start: Start) -> None:
    world = start("on-demand", "")
    world.label("all-1g.10gb")
    assert world.is_divided()
    assert bench.server.seen("watch", "nodes") == []


def test_another_change_of_the_node_is_no_change(bench: Bench, start: Start) -> None:
    world = start("auto", "")
    eventually(lambda: bench.server.seen("watch", "nodes"), "the watch")
    label(bench, zone="b")
    world.label("all-1g.10gb")
    world.published(divided=False)
    assert world.changes == 1
