"""The shares of a node, put together of its config, its GPUs and its claims."""

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

import pytest
from msgspec.structs import replace
from structlog.testing import capture_logs

import make
from dra_driver.admin.stored import read_notes
from dra_driver.claims.state.divisions import Divisions
from dra_driver.claims.state.ledger import Ledger
from dra_driver.devices.device import Base
from dra_driver.devices.model import Gpu, GpuUuid, Inventory, MigMode
from dra_driver.devices.shares import Division, ShareStrategy
from dra_driver.errors import DeviceError, DriverError
from dra_driver.node.shares import NodeShares
from dra_driver.shares.source import ShareConfigState
from dra_driver.sharing.limiters import Limited, Limiter
from dra_driver.slices.consumable import NO_CONSUMABLES, Consumable
from resource_nvidia_com.device_plugin import NodeConfig, OverLimit, SharedBy, SharedResource

GPU = make.gpu(0)
PLACE = make.place(GPU)


def config(replicas: int, shared_by: SharedBy = SharedBy.TIME_SLICING) -> NodeConfig:
    name = "nvidia.com/gpu"
    resource = SharedResource(name=name, served_as=name, devices="all", replicas=replicas)
    return NodeConfig(shared_by=shared_by, resources=(resource,))


@dataclass
class Node:
    """A share config that can be set, one GPU, and divisions that hold: those that are wanted."""

    root: Path
    state: ShareConfigState = ShareConfigState(  # noqa: RUF009 (frozen)
        config=config(4), origin="file /shares", problem=None, is_known=True
    )
    inventory: Inventory = field(default_factory=lambda: make.inventory(GPU))
    in_use: dict[Base, Division] = field(default_factory=dict)
    limits: Limited | DriverError = Limited(by=Limiter.CONTROL_GROUPS)  # noqa: RUF009 (frozen)
    consumable: Consumable = NO_CONSUMABLES
    sees_processes: bool = True

    def __post_init__(self) -> None:
        self.shares = NodeShares(
            self,
            _Gpus(self),
            memory=self,
            directory=self.root,
            consumable=self.consumable,
        )
        self.divisions = _Divisions(self)

    def current(self) -> ShareConfigState:
        return self.state

    def limited(
        self, gpu: Gpu, base: Base, strategy: ShareStrategy, *, has_size: bool = False
    ) -> Limited:
        if isinstance(self.limits, DriverError):
            raise self.limits
        return self.limits

    def set(self, wanted: NodeConfig) -> None:
        self.state = replace(self.state, config=wanted)


class _Divisions(Divisions):
    """Devices are divided as is wanted, but for those in use."""

    def __init__(self, node: Node) -> None:
        super().__init__(cast("Ledger", None), node.shares)
        self._node = node

    def on(self, gpus: Iterable[GpuUuid], *, with_counters: bool = True) -> Mapping[Base, Division]:
        assert set(gpus) == {gpu.uuid for gpu in self._node.inventory.gpus}
        return {**self._node.shares.wanted(), **self._node.in_use}

    def waiting(self, gpus: Iterable[GpuUuid]) -> frozenset[Base]:
        del gpus
        return frozenset(self._node.in_use)


@dataclass
class _Gpus:
    node: Node

    def current(self) -> Inventory:
        return self.node.inventory


def test_the_configs_shares_are_offered_and_noted(tmp_path: Path) -> None:
    node = Node(tmp_path)
    offer = node.shares.offer(node.inventory, node.divisions, with_counters=True)
    assert {base: one.count for base, one in offer.divisions.items()} == {PLACE: 4}
    notes = read_notes(tmp_path)
    assert notes.origin == "file /shares"
    assert [(device.name, device.count) for device in notes.devices] == [("gpu-0", 4)]
    assert notes.waiting == ()


def test_the_memory_limiter_is_noted_with_the_reason(tmp_path: Path) -> None:
    node = Node(tmp_path)
    found = []
    for limits in (
        Limited(by=Limiter.CONTROL_GROUPS),
        Limited(by=Limiter.NOTHING, why="no cgroup v2"),
        DeviceError("the GPU is away"),
    ):
        node.limits = limits
        node.shares.offer(node.inventory, node.divisions, with_counters=True)
        found += [(device.limited_by, device.why) for device in read_notes(tmp_path).devices]
    assert found == [
        ("control groups (NVML)", ""),
        (None, "no cgroup v2"),
        (None, "not known: the GPU is away"),
    ]


def remarks(node: Node) -> tuple[str, ...]:
    node.limits = Limited(by=Limiter.CONTROL_GROUPS, caution="limits may end")
    node.shares.offer(node.inventory, node.divisions, with_counters=True)
    return read_notes(node.root).remarks


def test_what_may_remove_limits_is_noted_for_shared_gpus(tmp_path: Path) -> None:
    beside = make.inventory(GPU, make.gpu(1))
    shared, whole, parts = (tmp_path / name for name in ("shared", "whole", "parts"))
    for folder in (shared, whole, parts):
        folder.mkdir()
    assert remarks(Node(shared, inventory=beside)) == ("gpu-0, gpu-1: limits may end",)
    undivided = ShareConfigState(config=NodeConfig(), origin="", problem=None, is_known=True)
    assert remarks(Node(whole, state=undivided, inventory=beside)) == ()
    in_mig_mode = make.gpu(1, mig=make.mig(), mig_mode=MigMode.ENABLED)
    consuming = Node(
        parts,
        state=undivided,
        inventory=make.inventory(GPU, in_mig_mode),
        consumable=Consumable.of("unlimited"),
    )
    with capture_logs() as lines:
        for _ in range(2):
            assert remarks(consuming) == ("gpu-0: limits may end",)
    assert [line["reason"] for line in lines] == ["gpu-0: limits may end"]


@pytest.mark.parametrize("sees_processes", [True, False])
def test_over_limit_applies_to_each_resource_and_warns_if_in_vain(
    tmp_path: Path, sees_processes: bool
) -> None:
    node = Node(tmp_path, sees_processes=sees_processes)
    ended = dataclasses.replace(config(4).resources[0], over_limit=OverLimit.END)
    node.set(dataclasses.replace(config(4), resources=(ended,)))
    assert node.shares.over_limit(ended.served_as) == "end"
    assert node.shares.over_limit("nvidia.com/other") is None
    in_vain = [text for text in remarks(node) if "overLimit has no effect" in text]
    assert len(in_vain) == (not sees_processes)


def test_without_shares_nothing_is_noted(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.set(NodeConfig())
    node.shares.offer(node.inventory, node.divisions, with_counters=True)
    assert list(tmp_path.iterdir()) == []


def test_notes_of_removed_shares_are_deleted(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.shares.offer(node.inventory, node.divisions, with_counters=True)
    node.set(NodeConfig())
    node.shares.offer(node.inventory, node.divisions, with_counters=True)
    assert read_notes(tmp_path).devices == ()


def test_as_long_as_no_config_is_known_no_gpu_is_offered(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.state = ShareConfigState(config=None, origin="", problem="no such file", is_known=False)
    offer = node.shares.offer(node.inventory, node.divisions, with_counters=True)
    assert offer.refused == {PLACE: "it is not known how it is to be shared: no such file"}
    assert node.shares.why_unknown() == "no such file"
    assert read_notes(tmp_path).problem == "no such file"


def test_a_gpu_that_mps_cannot_divide_so_often_is_refused_unless_somebody_has_a_share(
    tmp_path: Path,
) -> None:
    node = Node(tmp_path)
    before = node.shares.wanted()
    node.set(config(100, SharedBy.MPS))
    refused = node.shares.offer(node.inventory, node.divisions, with_counters=True).refused
    assert "at most 48" in refused[PLACE]
    node.in_use = dict(before)
    offer = node.shares.offer(node.inventory, node.divisions, with_counters=True)
    assert offer.refused == {}
    assert offer.divisions == before


def test_an_offer_is_outdated_after_a_new_division(tmp_path: Path) -> None:
    node = Node(tmp_path)
    assert not node.divisions.is_outdated()
    node.in_use = dict(node.shares.wanted())
    node.set(config(2))
    offer = node.shares.offer(node.inventory, node.divisions, with_counters=True)
    assert read_notes(tmp_path).waiting == ("gpu-0",)
    assert offer.waiting == {PLACE}
    assert not node.divisions.is_outdated()
    node.in_use.clear()
    assert node.divisions.is_outdated()


def test_gpus_that_come_later_are_divided_too(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.shares.offer(node.inventory, node.divisions, with_counters=True)
    node.inventory = make.inventory(GPU, make.gpu(1))
    offer = node.shares.offer(node.inventory, node.divisions, with_counters=True)
    assert {base.gpu for base in offer.divisions} == {gpu.uuid for gpu in node.inventory.gpus}
