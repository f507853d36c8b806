"""Which division of a device holds, what claims keep as it is, and what changes without a look."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

import make
from dra_driver.claims.model.devices import DeviceRecord, recorded
from dra_driver.claims.model.record import ClaimRecord
from dra_driver.claims.state.divisions import Change, Divisions
from dra_driver.devices.kinds import Device, GpuPart
from dra_driver.devices.model import GpuUuid
from dra_driver.devices.shares import (
    ConsumableShare,
    ConsumableSlot,
    Division,
    Share,
    ShareStrategy,
)
from dra_driver.errors import TransientError

GPU, OTHER = make.gpu(0), make.gpu(1)
MIG, BESIDE = make.mig_device(0, start=0), make.mig_device(0, start=1)
WHOLE, OTHER_WHOLE = (GpuPart(gpu=one.uuid) for one in (GPU, OTHER))
OF_MIG, OF_BESIDE = (GpuPart(gpu=GPU.uuid, placement=one.placement) for one in (MIG, BESIDE))
TWO = Division(
    count=2, strategy=ShareStrategy.TIME_SLICING, served_as="nvidia.com/gpu", combines=True
)
FOUR = replace(TWO, count=4)
TOGETHER = replace(TWO, strategy=ShareStrategy.MPS, together=(GPU.uuid, OTHER.uuid))
PART = ConsumableSlot(share_id="s1", strategy=ShareStrategy.TIME_SLICING)


class Node:
    """What claims have, what the share config wants, and what is in force."""

    def __init__(
        self,
        wanted: Mapping[GpuPart, Division],
        in_force: Mapping[GpuPart, Division] | None = None,
        *,
        with_consumables: bool = False,
    ) -> None:
        self.records: list[ClaimRecord] = []
        self.config, self.forced = dict(wanted), dict(in_force or {})
        self.with_consumables = with_consumables
        self.unknown: str | None = None
        node: Any = self
        self.divisions = Divisions(node, node, node)

    def claim(self, *devices: Device, admin_access: bool = False) -> None:
        entries = tuple(
            DeviceRecord(
                name="device",
                device=recorded(one),
                pool="node-1",
                request_names=("gpu",),
                cdi_device_ids=(),
                admin_access=admin_access,
            )
            for one in devices
        )
        self.records.append(make.record(devices=entries))

    def users_of(self, gpu: GpuUuid) -> list[ClaimRecord]:
        return [one for one in self.records if gpu in {each.device.gpu for each in one.devices}]

    def gpus(self) -> frozenset[GpuUuid]:
        return frozenset({GPU.uuid, OTHER.uuid})

    def wanted(self) -> Mapping[GpuPart, Division]:
        return self.config

    def why_unknown(self) -> str | None:
        return self.unknown

    def current(self) -> Mapping[GpuPart, Division]:
        return self.forced

    def change(self, divisions: Mapping[GpuPart, Division | None]) -> None:
        changed = {**self.forced, **divisions}
        self.forced = {part: one for part, one in changed.items() if one is not None}

    def offer(self, *, with_counters: bool = True) -> Mapping[GpuPart, Division]:
        return self.divisions.offer(self.gpus(), with_counters=with_counters)

    def states(self) -> dict[GpuPart, bool]:
        """The devices that are to be divided in another way, and whether a claim is in the way."""
        return {one.part: self.divisions.is_held(one) for one in self.divisions.changes()}


def share(of: Any, division: Division) -> Share:
    return Share(of=of, index=0, division=division)


def test_a_first_division_holds_at_once_where_counters_keep_claims_apart() -> None:
    node = Node({WHOLE: TWO})
    node.claim(GPU)
    assert node.offer() == {WHOLE: TWO} == node.forced
    node.config[OTHER_WHOLE] = TWO
    assert node.divisions.changes() == (), "nor is another one looked for that comes later"
    assert node.divisions.waiting([OTHER.uuid]) == frozenset()


@pytest.mark.parametrize("with_consumables", [True, False])
def test_without_counters_or_beside_parts_by_capacity_it_has_to_be_looked_for(
    with_consumables: bool,
) -> None:
    node = Node({WHOLE: TWO}, with_consumables=with_consumables)
    assert node.offer(with_counters=with_consumables) == {}
    (change,) = node.divisions.changes()
    assert change == Change(part=WHOLE, former=None, wanted=TWO, with_counters=with_consumables)
    assert node.divisions.withdrawn() == {WHOLE}
    node.divisions.make([change])
    assert node.offer(with_counters=with_consumables) == {WHOLE: TWO}


def test_a_claim_with_a_share_holds_the_division_that_it_was_allocated() -> None:
    node = Node({WHOLE: FOUR}, {WHOLE: TWO})
    node.claim(share(GPU, TWO))
    assert node.offer() == {WHOLE: TWO}
    assert node.states() == {WHOLE: True}
    assert node.divisions.withdrawn() == frozenset(), "what it has a share of is offered"
    node.records.clear()
    assert node.states() == {WHOLE: False}
    assert node.divisions.withdrawn() == {WHOLE}


def test_with_counters_a_claim_with_the_whole_gpu_holds_no_change_and_without_it_does() -> None:
    for with_counters in (True, False):
        node = Node({WHOLE: FOUR}, {WHOLE: TWO})
        node.offer(with_counters=with_counters)
        node.claim(GPU)
        assert node.states() == {WHOLE: not with_counters}


def test_a_claim_with_another_gpu_or_with_admin_access_holds_no_change() -> None:
    node = Node({WHOLE: FOUR}, {WHOLE: TWO})
    node.offer(with_counters=False)
    node.claim(OTHER)
    node.claim(share(GPU, TWO), admin_access=True)
    assert node.states() == {WHOLE: False}


def test_a_claim_with_a_share_of_another_mig_device_of_the_gpu_holds_no_change() -> None:
    node = Node({OF_MIG: FOUR}, {OF_MIG: TWO})
    node.offer()
    node.claim(share(BESIDE, TWO))
    assert node.states() == {OF_MIG: False}


def test_a_change_of_gpus_that_are_served_together_is_held_by_a_claim_on_any_of_them() -> None:
    node = Node({WHOLE: TOGETHER, OTHER_WHOLE: TOGETHER}, {WHOLE: TWO})
    node.offer()
    node.claim(OTHER)
    assert node.states() == {WHOLE: True, OTHER_WHOLE: True}
    node.records.clear()
    assert node.divisions.withdrawn() == {WHOLE, OTHER_WHOLE}


def test_without_counters_shares_are_offered_beside_shares_and_nothing_else_of_a_gpu() -> None:
    node = Node({}, {OF_MIG: TWO, OF_BESIDE: TWO, OTHER_WHOLE: TWO})
    node.claim(share(MIG, TWO), OTHER)
    assert node.offer(with_counters=False) == {OF_MIG: TWO, OF_BESIDE: TWO}
    node.claim(BESIDE)
    assert node.offer(with_counters=False) == {OF_MIG: TWO}


def test_gpus_that_another_server_has_meanwhile_are_not_offered_together() -> None:
    node = Node({}, {WHOLE: TOGETHER, OTHER_WHOLE: TOGETHER})
    assert node.offer() == {WHOLE: TOGETHER, OTHER_WHOLE: TOGETHER}
    node.claim(share(OTHER, replace(TOGETHER, count=3)))
    former = replace(TOGETHER, count=3)
    assert node.offer() == {WHOLE: former, OTHER_WHOLE: former}


def test_of_a_gpu_that_is_used_together_with_another_both_are_in_use() -> None:
    node = Node({}, {WHOLE: TOGETHER, OTHER_WHOLE: TOGETHER})
    node.claim(share(GPU, TOGETHER))
    assert node.divisions.on([OTHER.uuid]) == {OTHER_WHOLE: TOGETHER}
    node.claim(OTHER)
    assert node.divisions.on([OTHER.uuid]) == {OTHER_WHOLE: TOGETHER}


def test_no_share_is_offered_of_what_a_claim_consumes_by_capacity() -> None:
    node = Node({}, {WHOLE: TWO, OTHER_WHOLE: TWO})
    node.claim(ConsumableShare(of=GPU, slot=PART))
    assert node.offer() == {OTHER_WHOLE: TWO}


def test_a_share_is_of_the_division_that_holds_for_its_claims() -> None:
    node = Node({WHOLE: FOUR})
    assert node.divisions.of(WHOLE) == FOUR
    assert node.divisions.of(OTHER_WHOLE) is None
    node.forced = {WHOLE: TWO}
    assert node.divisions.of(WHOLE) == TWO
    node.unknown = "its file cannot be read"
    assert node.divisions.of(WHOLE) == TWO
    with pytest.raises(TransientError, match=f"known yet how {OTHER.uuid} is shared: its file"):
        node.divisions.of(OTHER_WHOLE)
    assert node.divisions.changes() == ()


def test_what_waits_is_what_is_not_divided_as_the_config_asks_for() -> None:
    node = Node({WHOLE: FOUR, OTHER_WHOLE: TWO}, {WHOLE: TWO, OTHER_WHOLE: TWO})
    assert node.divisions.waiting([GPU.uuid, OTHER.uuid]) == {WHOLE}
    assert node.divisions.waiting([OTHER.uuid]) == frozenset()
    node.config = {}
    assert node.divisions.waiting([GPU.uuid, OTHER.uuid]) == {WHOLE, OTHER_WHOLE}


def test_an_offer_is_outdated_when_claims_leave_other_divisions_by_now() -> None:
    node = Node({}, {WHOLE: TWO})
    assert not node.divisions.is_outdated(), "nothing was offered yet"
    assert node.divisions.changes() == ()
    node.offer(with_counters=False)
    assert not node.divisions.is_outdated()
    node.claim(GPU)
    assert node.divisions.is_outdated()
    node.offer(with_counters=True)
    assert not node.divisions.is_outdated(), "counters keep the shares apart from it"
    node.claim(share(GPU, FOUR))
    assert node.divisions.is_outdated()


@pytest.mark.parametrize(
    ("wanted", "in_force", "expected"),
    [({}, {}, False), ({WHOLE: TWO}, {}, True), ({}, {WHOLE: TWO}, True)],
)
def test_a_claims_end_changes_nothing_on_a_node_without_divisions(
    wanted: Mapping[GpuPart, Division], in_force: Mapping[GpuPart, Division], expected: bool
) -> None:
    node = Node(wanted, in_force)
    assert node.divisions.are_any() is expected
    node.offer()
    node.config, node.forced = {}, {}
    assert node.divisions.are_any() is expected, "what was offered counts too"


def test_a_change_that_waits_is_offered_as_before() -> None:
    node = Node({WHOLE: FOUR, OTHER_WHOLE: FOUR}, {WHOLE: TWO, OTHER_WHOLE: TWO})
    node.offer()
    one, other = node.divisions.changes()
    node.divisions.block({one: "claim x"})
    assert node.divisions.blocked() == {one: "claim x"}
    assert node.divisions.withdrawn() == {OTHER_WHOLE}
    node.divisions.make([other])
    assert node.forced == {WHOLE: TWO, OTHER_WHOLE: FOUR}
    node.config = {}
    (gone, _) = node.divisions.changes()
    node.divisions.make([gone])
    assert node.forced == {OTHER_WHOLE: FOUR}


def test_changes_come_in_one_order_and_none_of_a_gpu_that_has_gone() -> None:
    gone = GpuPart(gpu=make.gpu(5).uuid)
    places = [make.mig_device(0, start=start).placement for start in range(7)]
    parts = [*(GpuPart(gpu=GPU.uuid, placement=one) for one in places), OTHER_WHOLE]
    node = Node(dict.fromkeys([*reversed(parts), gone], TWO))
    node.offer(with_counters=False)
    assert [one.part for one in node.divisions.changes()] == parts
