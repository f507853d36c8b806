"""Which division of a device holds: what prepared claims keep, and what they leave free."""

from collections.abc import Mapping
from typing import Any

import pytest
from msgspec.structs import replace

import make
from dra_driver.claims.model.record import ClaimRecord, DeviceRecord
from dra_driver.claims.state.divisions import Divisions
from dra_driver.devices.device import Base, Device, equal_shares
from dra_driver.devices.model import GpuUuid
from dra_driver.devices.shares import ConsumedShare, Division, ShareStrategy
from dra_driver.errors import TransientError

GPU, OTHER = (make.device(make.gpu(minor)) for minor in (0, 1))
MIG, BESIDE = (make.device(make.mig_device(0, start=start)) for start in (0, 1))
WHOLE, OTHER_WHOLE, OF_MIG, OF_BESIDE = (one.place for one in (GPU, OTHER, MIG, BESIDE))
TWO = Division(
    count=2, strategy=ShareStrategy.TIME_SLICING, served_as="nvidia.com/gpu", combines=True
)
FOUR = replace(TWO, count=4)
BY_MPS = replace(TWO, strategy=ShareStrategy.MPS)
PART = ConsumedShare(share_id="s1", strategy=ShareStrategy.TIME_SLICING)


class Node:
    """What claims are prepared with, and what the share config wants."""

    def __init__(self, wanted: Mapping[Base, Division]) -> None:
        self.records: list[ClaimRecord] = []
        self.config = dict(wanted)
        self.unknown: str | None = None
        node: Any = self
        self.divisions = Divisions(node, node)

    def claim(self, *devices: Device, admin_access: bool = False) -> None:
        entries = tuple(
            DeviceRecord(
                name="device",
                device=device,
                pool="node-1",
                request_names=("gpu",),
                cdi_device_ids=(),
                admin_access=admin_access,
            )
            for device in devices
        )
        self.records.append(make.record(devices=entries))

    def users_of(self, gpu: GpuUuid) -> list[ClaimRecord]:
        return [record for record in self.records if gpu in record.held_gpus]

    def gpus(self) -> frozenset[GpuUuid]:
        return frozenset({GPU.gpu, OTHER.gpu})

    def wanted(self) -> Mapping[Base, Division]:
        return self.config

    def why_unknown(self) -> str | None:
        return self.unknown

    def offer(self, *, with_counters: bool = True) -> Mapping[Base, Division]:
        return self.divisions.offer(self.gpus(), with_counters=with_counters)

    def waiting(self) -> set[Base]:
        return set(self.divisions.waiting(self.gpus()))


def share(of: Device, division: Division) -> Device:
    return equal_shares(of.base, division)[0]


@pytest.mark.parametrize("with_counters", [True, False])
def test_the_wanted_division_applies_without_claims(with_counters: bool) -> None:
    node = Node({WHOLE: TWO, OTHER_WHOLE: BY_MPS})
    assert node.offer(with_counters=with_counters) == node.config
    assert node.waiting() == set()


def test_a_claim_with_a_share_keeps_the_division_that_it_was_prepared_with() -> None:
    node = Node({WHOLE: FOUR})
    node.claim(share(GPU, TWO))
    assert node.offer() == {WHOLE: TWO}
    assert node.waiting() == {WHOLE}
    node.records.clear()
    assert node.offer() == {WHOLE: FOUR}


def test_without_counters_a_claim_with_the_whole_gpu_keeps_it_from_being_divided() -> None:
    node = Node({WHOLE: FOUR})
    node.claim(GPU)
    assert node.offer(with_counters=True) == {WHOLE: FOUR}
    assert node.waiting() == set()
    assert node.offer(with_counters=False) == {}
    assert node.waiting() == {WHOLE}


def test_a_claim_with_another_gpu_or_with_admin_access_keeps_nothing() -> None:
    node = Node({WHOLE: FOUR})
    node.claim(OTHER)
    node.claim(share(GPU, TWO), admin_access=True)
    assert node.offer(with_counters=False) == {WHOLE: FOUR}


def test_a_claim_with_a_share_of_another_mig_device_of_the_gpu_keeps_nothing() -> None:
    node = Node({OF_MIG: FOUR})
    node.claim(share(BESIDE, TWO))
    assert node.offer() == {OF_MIG: FOUR, OF_BESIDE: TWO}
    assert node.waiting() == {OF_BESIDE}


@pytest.mark.parametrize("with_counters", [True, False])
@pytest.mark.parametrize("device", [share(OTHER, TWO), OTHER])
def test_claims_on_one_gpu_do_not_block_another_ones_division(
    device: Device, with_counters: bool
) -> None:
    node = Node({WHOLE: BY_MPS, OTHER_WHOLE: BY_MPS})
    node.claim(device)
    assert node.offer(with_counters=with_counters)[WHOLE] == BY_MPS
    assert WHOLE not in node.waiting()


def test_without_counters_a_mig_device_is_divided_beside_another_that_a_claim_has() -> None:
    node = Node({OF_MIG: TWO, OF_BESIDE: TWO})
    node.claim(BESIDE)
    assert node.offer(with_counters=False) == {OF_MIG: TWO}
    assert node.waiting() == {OF_BESIDE}


def test_without_counters_shares_are_offered_beside_shares_and_nothing_else_of_a_gpu() -> None:
    node = Node({OF_BESIDE: TWO})
    node.claim(share(MIG, TWO), OTHER)
    assert node.offer(with_counters=False) == {OF_MIG: TWO, OF_BESIDE: TWO}
    node.claim(BESIDE)
    assert node.offer(with_counters=False) == {OF_MIG: TWO}


def test_no_share_is_offered_of_what_a_claim_consumes_by_capacity() -> None:
    node = Node({WHOLE: TWO, OTHER_WHOLE: TWO})
    node.claim(replace(GPU, share=PART))
    assert node.offer() == {OTHER_WHOLE: TWO}
    assert node.waiting() == {WHOLE}


def test_a_share_is_of_the_division_that_holds_for_its_claims() -> None:
    node = Node({WHOLE: FOUR})
    assert node.divisions.of(WHOLE) == FOUR
    assert node.divisions.of(OTHER_WHOLE) is None
    node.claim(share(GPU, TWO))
    assert node.divisions.of(WHOLE) == TWO
    node.unknown = "its file cannot be read"
    assert node.divisions.of(WHOLE) == TWO
    with pytest.raises(TransientError, match=f"known yet how {OTHER.gpu} is shared: its file"):
        node.divisions.of(OTHER_WHOLE)


def test_a_device_that_is_no_longer_to_be_divided_waits_for_its_claims() -> None:
    node = Node({})
    node.claim(share(GPU, TWO))
    assert node.waiting() == {WHOLE}


def test_an_offer_is_outdated_when_claims_leave_other_divisions_by_now() -> None:
    node = Node({WHOLE: TWO})
    assert not node.divisions.is_outdated(), "nothing was offered yet"
    node.offer(with_counters=False)
    assert not node.divisions.is_outdated()
    node.claim(GPU)
    assert node.divisions.is_outdated()
    node.offer(with_counters=True)
    assert not node.divisions.is_outdated(), "counters keep the shares apart from it"
    node.claim(share(GPU, FOUR))
    assert node.divisions.is_outdated()
