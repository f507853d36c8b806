"""Records of claims with shares: as the strategy of shares makes them, and read for ever.

The golden files hold what the first version with shares writes. A later version may write more, and
must read these to the same end.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

import make
from dra_driver.claims.model.devices import DeviceRecord, recorded
from dra_driver.claims.model.record import ClaimRecord, PendingCleanup, decode, encode
from dra_driver.devices.model import Gpu, MigDevice
from dra_driver.devices.shares import (
    ConsumableShare,
    ConsumableSlot,
    Division,
    Share,
    ShareStrategy,
)
from dra_driver.mps.domain import DomainId
from dra_driver.mps.files import DomainPaths, MpsFiles
from dra_driver.sharing.base import DeviceUuid, Group, ShareUnit, SharingPlan, share_key
from dra_driver.sharing.enforcement import Backend, MemoryPart
from dra_driver.sharing.enforcement import part_json as memory_json
from dra_driver.sharing.shares import NAME, Shares, limits_in, memory_part

GOLDEN = Path(__file__).parents[2] / "data" / "records"
CLAIM = "11111111-0000-4000-8000-000000000000"
GPU = make.gpu(0)
MIG = make.mig_device(1, "3g.40gb", 4)
DIVIDED_GPU = make.gpu(1, mig=make.mig(MIG))


class Server:
    """Where a supervisor's domains would be; compute modes are as they should be."""

    def paths(self, domain: DomainId) -> DomainPaths:
        return MpsFiles(root=Path("/run/mps")).paths(domain)

    def compute_mode(self, _uuid: str) -> int:
        return 0


def strategy() -> Shares:
    server: Any = Server()
    return Shares(
        server, server, server, lambda: 0.0, memory=make.limited_by_mps(), ready_seconds=1.0
    )


def unit(request: str, gpu: Gpu, share: Share | ConsumableShare, name: str) -> ShareUnit:
    return ShareUnit(name=name, request=request, gpu=gpu, share=share)


def record_of(groups: Sequence[Group], plans: Sequence[SharingPlan], **changes: Any) -> ClaimRecord:
    """The record of a claim with these shares."""
    units = [one for group in groups for one in group.shares]
    devices = tuple(
        DeviceRecord(
            name=one.name,
            device=recorded(one.share),
            pool="node-1",
            request_names=(one.request,),
            cdi_device_ids=(f"k8s.gpu.nvidia.com/claim={CLAIM}-{number}",),
            share_id=one.share.slot.share_id if isinstance(one.share, ConsumableShare) else None,
        )
        for number, one in enumerate(units)
    )
    return replace(make.record(), devices=devices, plans=tuple(plans), **changes)


def group(kind: str, *units: ShareUnit, strategy: str | None = None) -> Group:
    config: Any = make.gpu_config(strategy)
    return Group(claim=CLAIM, name=f"default/{kind}", config=config, shares=units)


def equal_shares() -> list[Group]:
    """Two of ten shares of a GPU in one request, under MPS, and one of a MIG device in turns."""
    by_mps = Division(
        count=10, strategy=ShareStrategy.MPS, served_as="nvidia.com/gpu", combines=True
    )
    in_turns = Division(
        count=2,
        strategy=ShareStrategy.TIME_SLICING,
        served_as="nvidia.com/mig-3g.40gb",
        combines=False,
        free_compute=True,
    )
    parts = [Share(of=GPU, index=index, division=by_mps) for index in (3, 4)]
    return [
        group(
            "shares",
            *(unit("a", GPU, one, f"gpu-0-share-{one.index}-of-10") for one in parts),
            unit(
                "b",
                DIVIDED_GPU,
                Share(of=MIG, index=0, division=in_turns),
                "gpu-1-mig-3g40gb-9-4-share-0-of-2",
            ),
        )
    ]


def part(of: Gpu | MigDevice, share_id: str, memory_mib: int, cores: int) -> ConsumableShare:
    slot = ConsumableSlot(
        share_id=share_id, strategy=ShareStrategy.MPS, memory_mib=memory_mib, cores=cores
    )
    return ConsumableShare(of=of, slot=slot)


def consumable_shares() -> list[Group]:
    """A part of a GPU with memory and SMs, one with memory alone, and one of a MIG device."""
    return [
        group(
            "parts",
            unit("a", GPU, part(GPU, "a671734a-e8e5-11e4-8fde-42010af09327", 10240, 20), "gpu-0"),
            unit("b", GPU, part(GPU, "b671734a-e8e5-11e4-8fde-42010af09327", 2048, 0), "gpu-0"),
            unit(
                "c",
                DIVIDED_GPU,
                part(MIG, "c671734a-e8e5-11e4-8fde-42010af09327", 4096, 50),
                "gpu-1-mig-3g40gb-9-4",
            ),
            strategy="MPS",
        )
    ]


def limited_by_group(plan: SharingPlan) -> SharingPlan:
    """The plan where a node limits memory on the pod's control group."""
    limited = MemoryPart(
        by=Backend.CONTROL_GROUPS,
        of_device=Backend.CONTROL_GROUPS,
        claim=CLAIM,
        pod="22222222-0000-4000-8000-000000000000",
        mib={GPU.uuid: 12288},
    )
    return replace(plan, changes={**plan.changes, "memory": memory_json(limited)})


def made(kind: str) -> ClaimRecord:
    """What this version of the driver writes for the claim of a golden file."""
    groups = equal_shares() if kind == "v1-shares" else consumable_shares()
    plans = strategy().plan(groups, 0.0)
    if kind == "v1-parts":
        return record_of(groups, plans)
    owed = PendingCleanup(of=limited_by_group(plans[0]), reason="the GPU is lost", since=1.5)
    return record_of(groups, plans, pending=(owed,))


@pytest.mark.parametrize("kind", ["v1-shares", "v1-parts"])
def test_a_record_with_shares_is_read_and_written_as_ever(kind: str) -> None:
    golden = (GOLDEN / f"{kind}.json").read_bytes()
    record = made(kind)
    plans = [without(plan, "containers") for plan in record.plans]
    record = replace(record, plans=tuple(plans))

    assert decode(golden) == decode(encode(record))
    assert encode(record) == golden


def without(plan: SharingPlan, key: str) -> SharingPlan:
    """The plan as it was written before there was this key."""
    return replace(plan, changes={name: one for name, one in plan.changes.items() if name != key})


def test_what_containers_get_by_several_requests_comes_back_from_the_record() -> None:
    gpu, mig = decode(encode(made("v1-parts"))).plans
    assert "containers" not in mig.changes
    (edits,) = set(strategy().edits(gpu).values())
    assert f"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT={GPU.uuid}=12288M" in edits.env
    key = share_key(DeviceUuid(GPU.uuid), "a671734a-e8e5-11e4-8fde-42010af09327")
    said = Shares.describe(gpu, key).words
    assert said.startswith("consumes 10240 MiB and 20 % of SMs, 20 % of threads, 10240 MiB, with ")
    assert "with the claim's other requests 12288 MiB, enforced by MPS" in said
    before = strategy().edits(without(gpu, "containers"))
    assert [edits.env[-1].rpartition("=")[2] for edits in before.values()] == ["10240M", "2048M"]


def golden_plans(kind: str) -> tuple[SharingPlan, ...]:
    plans = decode((GOLDEN / f"{kind}.json").read_bytes()).plans
    assert {plan.strategy for plan in plans} == {NAME}
    return plans


def test_of_equal_shares_the_limits_are_known_from_the_record() -> None:
    by_mps, in_turns = golden_plans("v1-shares")

    limits = limits_in(by_mps)
    assert set(limits) == {share_key(DeviceUuid(GPU.uuid), label) for label in ("3", "4")}
    for one in limits.values():
        assert (one.taken, one.count, one.active_thread_percentage) == (2, 10, 20)
        assert one.memory_mib == {GPU.uuid: 16384}
    assert memory_part(by_mps).by is Backend.MPS
    for edits in strategy().edits(by_mps).values():
        assert f"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT={GPU.uuid}=16384M" in edits.env
    (one,) = limits_in(in_turns).values()
    assert (one.taken, one.count, one.memory_mib) == (1, 2, {})
    assert memory_part(in_turns).by is Backend.NOTHING
    assert strategy().edits(in_turns) == {}


def test_of_parts_by_capacity_the_limits_are_known_from_the_record() -> None:
    of_gpu, of_mig = golden_plans("v1-parts")

    first, second = limits_in(of_gpu).values()
    assert (first.consumed_memory_mib, first.consumed_cores) == (10240, 20)
    assert (first.memory_mib, first.active_thread_percentage) == ({GPU.uuid: 10240}, 20)
    assert (second.memory_mib, second.active_thread_percentage) == ({GPU.uuid: 2048}, None)
    (third,) = limits_in(of_mig).values()
    assert (third.memory_mib, third.active_thread_percentage) == ({MIG.uuid: 4096}, 50)
    record = decode((GOLDEN / "v1-parts.json").read_bytes())
    assert [one.share_id for one in record.answer] == [
        f"{letter}671734a-e8e5-11e4-8fde-42010af09327" for letter in "abc"
    ]
    assert [one.device.part.share for one in record.devices] == [
        one.share.slot for one in consumable_shares()[0].shares
    ]


def test_a_limit_on_a_control_group_that_is_owed_is_known_from_the_record() -> None:
    (owed,) = decode((GOLDEN / "v1-shares.json").read_bytes()).pending

    assert isinstance(owed.of, SharingPlan)
    limited = memory_part(owed.of)
    assert limited.by is Backend.CONTROL_GROUPS
    assert limited.pod == "22222222-0000-4000-8000-000000000000"
    assert limited.mib == {GPU.uuid: 12288}
