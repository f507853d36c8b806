"""What enforces the memory of shares is the best means, and the same for all tenants."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import pytest

import make
from dra_driver.cdi.model import Edits
from dra_driver.devices.model import Gpu, GpuUuid
from dra_driver.devices.shares import ShareStrategy
from dra_driver.errors import ConfigError
from dra_driver.sharing.base import SharingPlan
from dra_driver.sharing.enforcement import (
    KEY,
    Choice,
    DividedDevice,
    Means,
    MemoryPart,
    MpsLimits,
    ShareMemory,
    Tenant,
    part_json,
    part_of,
)

GPU = make.gpu(0)
BY_MPS = DividedDevice(gpu=GPU, is_mig=False, strategy=ShareStrategy.MPS)
SLICED = replace(BY_MPS, strategy=ShareStrategy.TIME_SLICING)
TENANT = Tenant(claim="uid", name="default/x", pods={"pod-uid": "a"}, mib={GPU.uuid: 100})
PART = MemoryPart(
    by=Means.CONTROL_GROUPS,
    of_device=Means.CONTROL_GROUPS,
    claim="uid",
    pod="pod-uid",
    mib={GPU.uuid: 100},
)


@dataclass
class Groups:
    """Control groups that can be had, or not."""

    reason: str | None = None
    reason_for: str | None = None
    means = Means.CONTROL_GROUPS

    def why_not(self, device: DividedDevice) -> str | None:
        return self.reason

    def why_not_for(self, mib: Mapping[GpuUuid, int]) -> str | None:
        return self.reason_for

    def caution(self, gpu: Gpu) -> str | None:
        return None

    def apply(self, part: MemoryPart) -> None:
        """Nothing is there to be limited."""

    def ensure(self, part: MemoryPart, *, mend: bool) -> None:
        """Nothing is there to be limited."""

    def undo(self, part: MemoryPart) -> None:
        """Nothing is there to be limited."""

    def edits(self, part: MemoryPart) -> Edits:
        return Edits()


def memory(groups: Groups | None = None, *present: MemoryPart) -> ShareMemory:
    return ShareMemory([groups or Groups(), MpsLimits()], lambda _: present)


def test_control_groups_come_first_by_mps_and_by_time_slicing() -> None:
    for device in (BY_MPS, SLICED):
        assert memory().choose(device) == Choice(by=Means.CONTROL_GROUPS)


def test_the_next_best_keeps_the_reasons_against_the_better_ones() -> None:
    groups = Groups(reason="the NVIDIA driver 535.1 is older than R615")
    assert memory(groups).choose(BY_MPS) == Choice(by=Means.MPS, why=groups.reason or "")
    found = memory(groups).choose(SLICED)
    assert found.by is Means.NOTHING
    assert found.why == f"{groups.reason}; time-slicing divides no memory"


def test_before_volta_mps_limits_nothing() -> None:
    old = replace(BY_MPS, gpu=make.gpu(0, cuda_compute_capability=(6, 1)))
    found = memory(Groups(reason="no")).choose(old)
    assert found.by is Means.NOTHING
    assert found.why.endswith("which is older than Volta")


@pytest.mark.parametrize("now", [None, "no more"])
@pytest.mark.parametrize("before", [Means.CONTROL_GROUPS, Means.MPS])
def test_who_comes_later_is_limited_as_those_who_are_there(now: str | None, before: Means) -> None:
    found = memory(Groups(reason=now), replace(PART, by=before, of_device=before)).choose(BY_MPS)
    assert found.by is before


def test_of_devices_that_are_served_together_the_worst_counts() -> None:
    class OnlyFirst(Groups):
        def why_not(self, device: DividedDevice) -> str | None:
            return None if device.gpu is GPU else "not there"

    devices = [BY_MPS, replace(BY_MPS, gpu=make.gpu(1))]
    assert memory(OnlyFirst()).choose_for(devices) == Choice(by=Means.MPS, why="not there")


def test_a_claim_that_cannot_be_limited_so_gets_the_next_best() -> None:
    groups = Groups(reason_for="its GPUs differ")
    choice = memory(groups).choose(BY_MPS)
    part = memory(groups).part(TENANT, choice, TENANT.mib, [BY_MPS])
    assert (part.by, part.of_device, part.why) == (
        Means.MPS,
        Means.CONTROL_GROUPS,
        "its GPUs differ",
    )
    assert (part.pod, part.mib) == ("", {})


@pytest.mark.parametrize(
    ("pods", "words"),
    [
        ({"u1": "b", "u2": "a"}, r"default/x has a share of GPU memory and .* for 2 pods \(a, b\)"),
        ({}, "is reserved for no pod"),
    ],
)
def test_only_one_pod_can_have_a_claim_that_control_groups_limit(
    pods: dict[str, str], words: str
) -> None:
    tenant = replace(TENANT, pods=pods)
    with pytest.raises(ConfigError, match=words):
        memory().part(tenant, Choice(by=Means.CONTROL_GROUPS), TENANT.mib, [BY_MPS])
    assert memory().part(tenant, Choice(by=Means.MPS), TENANT.mib, [BY_MPS]).by is Means.MPS


def test_a_part_is_read_back_from_a_plan() -> None:
    plan = SharingPlan(strategy="Shares", gpus=(), changes={KEY: part_json(PART)})
    assert part_of(plan) == PART
    assert part_of(replace(plan, changes={})) is None


def test_each_means_has_words_for_people() -> None:
    assert [Choice(by=one).words() for one in Means] == ["control groups (NVML)", "MPS", None]
    assert [Choice(by=one).with_condition() for one in Means] == [
        "control groups (NVML)",
        "MPS, while programs leave its variables alone",
        None,
    ]
