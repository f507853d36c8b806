"""What enforces the memory of shares is the best backend, and the same for all tenants."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import pytest
from msgspec.structs import replace

import make
from dra_driver.devices.device import Base, Device
from dra_driver.devices.model import Gpu, GpuUuid
from dra_driver.devices.shares import ConsumedShare, ShareStrategy
from dra_driver.errors import ConfigError
from dra_driver.sharing.base import Group, Unit
from dra_driver.sharing.memory_groups import MemoryGroups
from dra_driver.sharing.share_memory import Choice, ShareMemory
from dra_driver.sharing.steps import Backend, MemoryPart

GPU = make.gpu(0)
MPS, SLICED = ShareStrategy.MPS, ShareStrategy.TIME_SLICING
CLAIM = Group(claim="uid", name="default/x", pods={"pod-uid": "a"}, config=make.gpu_config())
PART = MemoryPart(
    by=Backend.CONTROL_GROUPS,
    claim="uid",
    pod="pod-uid",
    gpu=GPU.uuid,
    mib=100,
)


@dataclass
class Groups:
    """Control groups that can be had, or not."""

    reason: str | None = None
    present: Sequence[MemoryPart] = ()

    def why_not(self, base: Base) -> str | None:
        return self.reason

    def caution(self, gpu: Gpu) -> str | None:
        return None

    def tenants(self, gpu: GpuUuid) -> Sequence[MemoryPart]:
        return self.present


def choose(
    found: ShareMemory, strategy: ShareStrategy, gpu: Gpu = GPU, *, has_size: bool = False
) -> Choice:
    return found.choose(gpu, make.place(gpu), strategy, has_size=has_size)


def unit(gpu: Gpu = GPU) -> Unit:
    share = ConsumedShare(share_id="a", strategy=MPS)
    device = Device(base=make.place(gpu), share=share)
    return Unit(name=f"gpu-{gpu.minor}", request="gpu", gpu=gpu, device=device)


def memory(
    groups: Groups | None = None, *present: MemoryPart, sees_processes: bool = True
) -> ShareMemory:
    groups = groups or Groups()
    groups.present = present
    return ShareMemory(cast("MemoryGroups", groups), sees_processes=sees_processes)


def test_control_groups_come_first_by_mps_and_by_time_slicing() -> None:
    for strategy in ShareStrategy:
        assert choose(memory(), strategy) == Choice(by=Backend.CONTROL_GROUPS)


def test_the_next_best_keeps_the_reasons_against_the_better_ones() -> None:
    groups = Groups(reason="the GPU driver 535.1 is older than R615")
    assert choose(memory(groups), MPS) == Choice(by=Backend.MPS, why=groups.reason or "")
    found = choose(memory(groups), SLICED)
    assert found.by is Backend.NOTHING
    assert found.why == f"{groups.reason}; time-slicing divides no memory"


def test_before_volta_mps_limits_nothing_and_its_clients_are_watched() -> None:
    old = make.gpu(0, cuda_compute_capability=(6, 1))
    found = choose(memory(Groups(reason="no")), MPS, old)
    assert found.by is Backend.WATCHED
    assert found.why.endswith("which is older than Volta")
    found = choose(memory(Groups(reason="no"), sees_processes=False), MPS, old)
    assert found.by is Backend.NOTHING
    assert "set the chart's usage.enabled (hostPID)" in found.why
    volta = make.gpu(0, cuda_compute_capability=(7, 0))
    assert choose(memory(Groups(reason="no")), MPS, volta).by is Backend.MPS


@pytest.mark.parametrize(
    ("has_size", "sees_processes", "by"),
    [
        (True, True, Backend.WATCHED),
        (True, False, Backend.NOTHING),
        (False, True, Backend.NOTHING),
    ],
)
def test_time_sliced_shares_that_have_a_size_are_watched_where_processes_are_seen(
    has_size: bool, sees_processes: bool, by: Backend
) -> None:
    found = memory(Groups(reason="no"), sees_processes=sees_processes)
    choice = choose(found, SLICED, has_size=has_size)
    assert choice.by is by
    assert choice.why.startswith("no; time-slicing divides no memory")
    assert ("hostPID" in choice.why) is (by is Backend.NOTHING and has_size)


@pytest.mark.parametrize("there", [Backend.WATCHED, Backend.NOTHING])
def test_who_is_watched_need_not_agree_with_the_other_tenants(there: Backend) -> None:
    present = replace(PART, by=there)
    for has_size in (True, False):
        choice = choose(memory(Groups(reason="no"), present), SLICED, has_size=has_size)
        assert choice.by is (Backend.WATCHED if has_size else Backend.NOTHING)


@pytest.mark.parametrize("now", [None, "no more"])
@pytest.mark.parametrize("before", [Backend.CONTROL_GROUPS, Backend.MPS])
def test_who_comes_later_is_limited_as_those_who_are_there(
    now: str | None, before: Backend
) -> None:
    present = replace(PART, by=before)
    found = choose(memory(Groups(reason=now), present), MPS)
    assert found.by is before
    if now is None and before is Backend.MPS:
        assert found.why == "earlier claims are limited like this; it changes when they end"


@pytest.mark.parametrize(
    ("pods", "words"),
    [
        ({"u1": "b", "u2": "a"}, r"default/x has a share of GPU memory and .* for 2 pods \(a, b\)"),
        ({}, "is reserved for no pod"),
        ({f"u{each}": f"p{each}" for each in range(9)}, r"9 pods \(p0, .*, p4 and 4 more\): "),
    ],
)
def test_only_one_pod_can_have_a_claim_that_control_groups_limit(
    pods: dict[str, str], words: str
) -> None:
    claim = replace(CLAIM, pods=pods)

    def part(by: Backend) -> MemoryPart:
        return memory().part(claim, [unit()], Choice(by=by), 100)

    with pytest.raises(ConfigError, match=words):
        part(Backend.CONTROL_GROUPS)
    assert part(Backend.MPS).by is Backend.MPS


def test_each_means_has_words_for_people() -> None:
    watching = "--over-limit, afterwards"
    assert [one.words() for one in Backend] == ["control groups (NVML)", "MPS", watching, None]
    assert [Choice(by=one).with_condition() for one in Backend] == [
        "control groups (NVML)",
        "MPS, unless a program changes MPS's environment variables",
        watching,
        None,
    ]
