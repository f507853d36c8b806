"""Records of claims with shares, as the strategy of shares makes them."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from msgspec.structs import replace

import make
from dra_driver.claims.model.record import ClaimRecord, DeviceRecord, PendingCleanup, decode, encode
from dra_driver.claims.report.descriptions import memory_limit
from dra_driver.devices.device import Device, equal_shares
from dra_driver.devices.model import Gpu
from dra_driver.devices.shares import ConsumedShare, Division, ShareStrategy
from dra_driver.mps.domain import DomainId
from dra_driver.mps.files import DomainPaths, MpsFiles
from dra_driver.sharing.base import Group, Unit
from dra_driver.sharing.limiters import Limiter
from dra_driver.sharing.mps import Mps
from dra_driver.sharing.shares import Shares
from dra_driver.sharing.steps import JoinDomain, SharingStep, UseShares

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


SERVER: Any = Server()
SHARES = Shares(make.limited_by_mps(), SERVER)
MPS = Mps(SERVER, lambda: 0.0, ready_seconds=1.0)


def unit(request: str, gpu: Gpu, device: Device, name: str) -> Unit:
    return Unit(name=name, request=request, gpu=gpu, device=device)


def share_id_of(device: Device) -> str | None:
    return device.share.share_id if isinstance(device.share, ConsumedShare) else None


def record_of(groups: Sequence[Group], steps: Sequence[SharingStep], **changes: Any) -> ClaimRecord:
    """The record of a claim with these shares."""
    devices = tuple(
        DeviceRecord(
            name=one.name,
            device=one.device,
            pool="node-1",
            request_names=(one.request,),
            cdi_device_ids=(f"k8s.gpu.nvidia.com/claim={CLAIM}-{number}",),
            share_id=share_id_of(one.device),
        )
        for number, one in enumerate(one for group in groups for one in group.shares)
    )
    return replace(make.record(), devices=devices, steps=tuple(steps), **changes)


def group(kind: str, *units: Unit, strategy: str | None = None) -> Group:
    config: Any = make.gpu_config(strategy)
    return Group(claim=CLAIM, name=f"default/{kind}", config=config, units=units)


def with_equal_shares() -> list[Group]:
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
    parts = equal_shares(make.device(GPU).base, by_mps)
    part = equal_shares(make.device(MIG).base, in_turns)[0]
    return [
        group(
            "shares",
            *(unit("a", GPU, parts[index], f"gpu-0-mps-share-{index}-of-10") for index in (3, 4)),
            unit("b", DIVIDED_GPU, part, "gpu-1-mig-3g40gb-9-4-single-share-0-of-2"),
        )
    ]


def part(of: Device, share_id: str, memory_mib: int, cores: int) -> Device:
    share = ConsumedShare(
        share_id=share_id, strategy=ShareStrategy.MPS, memory_mib=memory_mib, cores=cores
    )
    return replace(of, share=share)


CONTAINERS = [f"container-{number}-request-0" for number in range(3)]


def with_parts() -> list[Group]:
    """A part of a GPU with memory and SMs, one with memory alone, and one of a MIG device."""
    gpu, mig = make.device(GPU), make.device(MIG)
    return [
        group(
            "parts",
            unit(
                CONTAINERS[0],
                GPU,
                part(gpu, "a671734a-e8e5-11e4-8fde-42010af09327", 10240, 20),
                "gpu-0",
            ),
            unit(
                CONTAINERS[1],
                GPU,
                part(gpu, "b671734a-e8e5-11e4-8fde-42010af09327", 2048, 0),
                "gpu-0",
            ),
            unit(
                CONTAINERS[2],
                DIVIDED_GPU,
                part(mig, "c671734a-e8e5-11e4-8fde-42010af09327", 4096, 50),
                "gpu-1-mig-3g40gb-9-4",
            ),
            strategy="MPS",
        )
    ]


def made(kind: str) -> ClaimRecord:
    """The record of a claim with shares or parts."""
    groups = with_equal_shares() if kind == "shares" else with_parts()
    steps = SHARES.plan(groups, 0.0)
    if kind == "parts":
        return record_of(groups, steps)
    by_groups = replace(
        steps[0],
        limited_by=Limiter.CONTROL_GROUPS,
        memory_mib=12288,
        pod="22222222-0000-4000-8000-000000000000",
    )
    owed = (by_groups, steps[1])
    pending = (PendingCleanup(of=one, reason="the GPU is lost", since=1.5) for one in owed)
    return record_of(groups, steps, pending=tuple(pending))


def steps_of(kind: str) -> tuple[list[UseShares], list[JoinDomain]]:
    """How shares are used, and the domains that are joined, by the record on disk."""
    steps = decode(encode(made(kind))).steps
    uses = [step for step in steps if isinstance(step, UseShares)]
    joins = [step for step in steps if isinstance(step, JoinDomain)]
    assert len(uses) + len(joins) == len(steps)
    return uses, joins


def test_limits_of_equal_shares_are_in_the_record() -> None:
    (by_mps, in_turns), (join,) = steps_of("shares")

    for one in by_mps.limits:
        assert (one.taken, one.count, one.active_thread_percentage) == (2, 10, 20)
        assert one.memory_mib == by_mps.memory_mib == 16384
    assert by_mps.limited_by is Limiter.MPS
    for edits in MPS.edits(join).values():
        assert f"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT={GPU.uuid}=16384M" in edits.env
    (one,) = in_turns.limits
    assert (one.taken, one.count, in_turns.memory_mib) == (1, 2, None)
    assert in_turns.limited_by is Limiter.NOTHING


def test_limits_of_parts_by_capacity_are_in_the_record() -> None:
    (of_gpu, of_mig), _ = steps_of("parts")

    first, second = of_gpu.limits
    assert (first.consumed_memory_mib, first.consumed_cores) == (10240, 20)
    assert (first.memory_mib, first.active_thread_percentage) == (10240, 20)
    assert (second.memory_mib, second.active_thread_percentage) == (2048, None)
    (third,) = of_mig.limits
    assert (third.memory_mib, third.active_thread_percentage) == (4096, 50)
    record = decode(encode(made("parts")))
    assert [device.share_id for device in record.devices] == [
        f"{letter}671734a-e8e5-11e4-8fde-42010af09327" for letter in "abc"
    ]
    assert [device.device for device in record.devices] == [
        share.device for share in with_parts()[0].shares
    ]


def test_a_pending_control_group_limit_is_in_the_record() -> None:
    owed, _ = decode(encode(made("shares"))).pending

    assert isinstance(owed.of, UseShares)
    assert (owed.of.gpus, owed.of.memory_mib) == ((GPU.uuid,), 12288)
    assert owed.of.pod == "22222222-0000-4000-8000-000000000000"


def test_a_claims_limit_is_the_sum_of_its_requests() -> None:
    record = decode(encode(made("parts")))
    *of_gpu, of_mig = record.devices
    assert memory_limit(record, of_gpu) == 10240 + 2048
    assert memory_limit(record, [of_mig]) == 4096
