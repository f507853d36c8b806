"""Joined GPUs through NVML and the driver's session: what each look finds, and what is published.

What is published of them is held in tests/data/slices.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import yaml

import make
from dra_driver.devices.model import Inventory, MigMode
from dra_driver.devices.nvlink import joined
from dra_driver.devices.nvml.calls import NvmlCalls
from dra_driver.devices.nvml.nvlink import LOOKS
from dra_driver.devices.session import DriverSession
from dra_driver.simulator import profile as profiles
from dra_driver.simulator.layout import Fact
from dra_driver.simulator.machine import Machine
from dra_driver.slices.project import projection
from worlds.session import session_on

GOLDEN = Path(__file__).parents[2] / "data" / "slices"
CAPABILITY = "nvmlDeviceGetNvLinkCapability"
UNKNOWN_ERROR, FUNCTION_NOT_FOUND = 999, 13


class Node:
    """A machine, and a session that looks at it."""

    def __init__(self, machine: Machine, session: DriverSession) -> None:
        self.machine = machine
        self.session = session

    def gpu(self, index: int) -> str:
        return self.machine.find(str(index)).uuid

    def islands(self) -> list[list[int]]:
        """Look; return the islands as indices of GPUs."""
        inventory = self.session.look()
        assert inventory.sick == ()
        found = joined(inventory.gpus)
        groups: dict[str, list[int]] = {}
        for gpu in inventory.gpus:
            if gpu.uuid in found:
                groups.setdefault(found[gpu.uuid], []).append(gpu.index)
        return sorted(groups.values())

    def down(self, index: int, *links: int, is_up: bool = False) -> None:
        for link in links:
            self.machine.set_nvlink(self.gpu(index), link, is_up=is_up)

    def looks(self, count: int) -> None:
        for _ in range(count):
            self.session.look()


MakeNode = Callable[..., Node]


@pytest.fixture
def node_of(tmp_path: Path) -> Iterator[MakeNode]:
    with ExitStack() as stack:

        def make(profile: profiles.Profile | str, calls: NvmlCalls | None = None) -> Node:
            machine = Machine.create(tmp_path / "machine", profile)
            session = session_on(machine, calls=calls)
            stack.callback(session.close)
            return Node(machine, session)

        yield make


def with_fabric(**changes: object) -> profiles.Profile:
    """Eight H100 behind switches whose fabric reaches other nodes."""
    h100 = profiles.load("h100x8")
    assert h100.nvswitch is not None
    return profiles.changed(h100, {"nvswitch": h100.nvswitch.model_dump() | changes})


def whole(inventory: Inventory) -> list[dict[str, Any]]:
    published = projection(inventory)
    assert published.omitted == ()
    return [
        {key: value for key, value in wire.items() if key != "consumesCounters"}
        for wire, source in zip(published.devices, published.sources, strict=True)
        if source == make.whole(source.gpu)
    ]


@pytest.mark.parametrize("name", ["a100-4x2", "h100x8"])
def test_joined_gpus_are_published_as_before(name: str, node_of: MakeNode) -> None:
    node = node_of(name)
    assert whole(node.session.look()) == yaml.safe_load((GOLDEN / f"{name}.yaml").read_text())


@pytest.mark.parametrize("name", ["a100x8", "h100x8", "b200x8", "v100x8"])
def test_all_gpus_of_an_nvswitch_node_or_a_dgx_1_are_one_island(
    name: str, node_of: MakeNode
) -> None:
    node = node_of(name)
    assert node.islands() == [list(range(8))]


def test_a_node_of_two_boards_has_two_islands(node_of: MakeNode) -> None:
    node = node_of("a100-4x2")
    assert node.islands() == [[0, 1, 2, 3], [4, 5, 6, 7]]


@pytest.mark.parametrize("name", ["l4x2", "t4x4", "a30x4", "laptop", "generations"])
def test_cards_without_links_are_in_no_island(name: str, node_of: MakeNode) -> None:
    assert node_of(name).islands() == []


def test_mig_devices_of_joined_gpus_have_no_island(node_of: MakeNode) -> None:
    published = projection(node_of("h100x8").session.look())
    kinds = {
        str(device["attributes"]["type"]["string"]): "nvlinkIsland" in device["attributes"]  # type: ignore[index]
        for device in published.devices
    }
    assert kinds == {"gpu": True, "mig": False}


def test_a_link_that_goes_down_is_noticed_within_some_looks(node_of: MakeNode) -> None:
    node = node_of("v100x8")
    node.looks(1)
    node.down(0, *range(6))
    node.looks(LOOKS - 2)
    assert node.islands() == [list(range(8))]
    assert node.islands() == [list(range(1, 8))]


def test_a_gpu_all_of_whose_links_are_down_is_in_no_island(node_of: MakeNode) -> None:
    node = node_of("a100x8")
    node.down(2, *range(12))
    assert node.islands() == [[0, 1, 3, 4, 5, 6, 7]]
    # Links that are all down are looked at each time: they come up when a node has just started.
    node.down(2, 0, is_up=True)
    assert node.islands() == [list(range(8))]


def test_a_fabric_that_is_still_starting_joins_its_gpus_when_it_is_done(node_of: MakeNode) -> None:
    node = node_of("h100x8")
    for index in range(8):
        node.machine.set_fact(node.gpu(index), Fact.FABRIC_STATE, 2)
    assert node.islands() == []
    for index in range(8):
        node.machine.set_fact(node.gpu(index), Fact.FABRIC_STATE, 3)
    assert node.islands() == [list(range(8))]


def test_the_fabric_of_several_nodes_is_published_with_its_clique(node_of: MakeNode) -> None:
    cluster = "9f0b1d1e-36b1-4ad2-8b4e-5b5ad8f6c001"
    node = node_of(with_fabric(cluster=cluster, clique=32766))
    for device in whole(node.session.look()):
        assert device["attributes"]["fabricClusterUUID"] == {"string": cluster}
        assert device["attributes"]["fabricClique"] == {"string": f"{cluster}.32766"}
    node.machine.set_fact(node.gpu(0), Fact.FABRIC_STATE, 2)
    there = ["fabricClique" in one["attributes"] for one in whole(node.session.look())]
    assert there.count(False) == 1


BOARDS = [[0, 1, 2, 3], [4, 5, 6, 7]]


@pytest.mark.parametrize(
    ("function", "islands"),
    [
        (CAPABILITY, []),
        ("nvmlDeviceGetNvLinkRemotePciInfo_v2", []),
        ("nvmlDeviceGetNvLinkRemoteDeviceType", BOARDS),
        ("nvmlDeviceGetFieldValues", BOARDS),
        ("nvmlDeviceGetGpuFabricInfoV", BOARDS),
    ],
)
@pytest.mark.parametrize("code", [UNKNOWN_ERROR, FUNCTION_NOT_FOUND])
def test_links_that_cannot_be_queried_hide_no_gpu(
    function: str, code: int, islands: list[list[int]], node_of: MakeNode
) -> None:
    node = node_of("a100-4x2")
    node.machine.fail_call(function, code)
    assert node.islands() == islands
    assert len(node.session.look().gpus) == 8


def test_a_driver_that_does_not_tell_switches_from_gpus_finds_the_same(node_of: MakeNode) -> None:
    node = node_of("a100x8")
    node.machine.fail_call("nvmlDeviceGetNvLinkRemoteDeviceType", FUNCTION_NOT_FOUND)
    assert node.islands() == [list(range(8))]


def test_a_gpu_whose_links_hang_stays_with_the_links_it_had(node_of: MakeNode) -> None:
    calls = NvmlCalls(clock=time.monotonic, answer_seconds=2.0)
    node = node_of("v100x8", calls)
    node.looks(1)
    node.machine.slow_call(CAPABILITY, 600_000, uuid=node.gpu(1), times=1)
    node.looks(LOOKS)
    assert node.islands() == [list(range(8))]
    assert node.session.silences()["1"] == 0.0
    assert node.session.silences()["1 NVLink"] > 0
    node.machine.clear_faults()
    end = time.monotonic() + 30
    while calls.silent:
        assert time.monotonic() < end
        time.sleep(0.05)


def test_a_gpu_in_mig_mode_for_claims_is_not_asked_for_its_links(tmp_path: Path) -> None:
    machine = Machine.create(tmp_path / "machine", "h100x8")
    uuid = machine.find("0").uuid
    session = session_on(machine, turned_on=lambda: {uuid})
    node = Node(machine, session)
    try:
        assert node.islands() == [list(range(8))]
        machine.set_mig_mode(uuid, enabled=True)
        node.down(0, *range(18))
        node.looks(LOOKS + 1)
        assert session.look().gpus[0].mig_mode is MigMode.ENABLED
        assert node.islands() == [list(range(8))]
        machine.set_mig_mode(uuid, enabled=False)
        node.looks(LOOKS)
        assert node.islands() == [list(range(1, 8))]
    finally:
        session.close()


def test_a_gpu_that_an_admin_puts_into_mig_mode_leaves_its_island(node_of: MakeNode) -> None:
    node = node_of("h100x8")
    assert node.islands() == [list(range(8))]
    node.machine.set_mig_mode(node.gpu(0), enabled=True)
    assert node.islands() == [list(range(1, 8))]
