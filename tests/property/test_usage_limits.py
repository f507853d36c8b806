"""What is told of memory limits on a GPU: what each claim may have, and never more than it has."""

from collections.abc import Sequence
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

import make
from dra_driver.claims.model.claim import ClaimRef, ClaimUid, ConsumerPod
from dra_driver.claims.model.record import ClaimRecord, DeviceRecord
from dra_driver.devices.device import Device, equal_shares
from dra_driver.devices.load import GpuLoad
from dra_driver.devices.shares import MIB, Division, ShareStrategy
from dra_driver.ops.metrics import UsageMetric
from dra_driver.sharing.base import Group, Unit
from dra_driver.sharing.memory_groups import MemoryGroups
from dra_driver.sharing.share_memory import ShareMemory
from dra_driver.sharing.shares import Shares
from dra_driver.usage.model import Known, NodeUse, used
from dra_driver.usage.series import series

GPU = make.gpu(0)
TOTAL = (GPU.memory_bytes or 0) // MIB


class Server:
    """Compute modes, and pods that can be limited."""

    def compute_mode(self, _uuid: str) -> int:
        return 0

    def why_not(self, _gpu: object) -> None:
        """They can."""

    def are_counted_by_kernel(self) -> bool:
        return False


def strategy(*, by_groups: bool) -> Shares:
    server: Any = Server()
    groups = MemoryGroups(server, lambda _: (), is_wanted=by_groups)
    return Shares(ShareMemory(groups), server)


def claim(name: str, shares: Sequence[Device], sharing: Shares, requests: int) -> ClaimRecord:
    """A prepared claim with these shares, dealt out to so many requests."""
    units = tuple(
        Unit(
            name=f"gpu-0-mps-share-{one.key}",
            request=f"container-{n % requests}-request-0",
            gpu=GPU,
            device=one,
        )
        for n, one in enumerate(shares)
    )
    group = Group(
        claim=name, name=f"default/{name}", config=make.gpu_config(), units=units, pods={name: name}
    )
    devices = tuple(
        DeviceRecord(
            name=unit.name,
            device=unit.device,
            pool="node-1",
            request_names=(unit.request,),
            cdi_device_ids=(),
        )
        for unit in units
    )
    return replace(
        make.record(),
        ref=ClaimRef(uid=ClaimUid(name), namespace="default", name=name),
        devices=devices,
        steps=sharing.plan([group], 0.0),
        pods=(ConsumerPod(name=name, uid=name),),
    )


@given(
    by_groups=st.booleans(),
    count=st.integers(2, 16),
    sizes=st.lists(st.integers(1, 10), min_size=1, max_size=6),
    requests=st.integers(1, 3),
)
def test_a_claims_shares_of_a_gpu_have_one_limit_and_all_claims_no_more_than_its_memory(
    by_groups: bool, count: int, sizes: list[int], requests: int
) -> None:
    division = Division(
        count=count, strategy=ShareStrategy.MPS, served_as="nvidia.com/gpu", combines=True
    )
    free = equal_shares(make.place(GPU), division)
    sharing = strategy(by_groups=by_groups)
    records, taken = [], {}
    for number, size in enumerate(sizes):
        mine, free = free[:size], free[size:]
        if mine:
            records.append(claim(f"c{number}", mine, sharing, requests))
            taken[f"c{number}"] = len(mine)
    load = GpuLoad(
        index=0,
        minor=0,
        uuid=GPU.uuid,
        product_name=GPU.product_name,
        memory=None,
        busy=None,
        processes=(),
    )
    found = used(load, {}, Known(records=records))
    limits = {user.pod: user.limit_bytes or 0 for device in found.devices for user in device.users}
    assert limits.keys() == taken.keys()
    assert sum(limits.values()) <= TOTAL * MIB
    if by_groups or requests == 1:
        for name, size in taken.items():
            assert abs(limits[name] // MIB - TOTAL * size // count) <= count
    told = NodeUse(gpus=(found,), silent={}, sees_processes=True)
    values = [one.value for one in series(told) if one.metric is UsageMetric.CONTAINER_LIMIT]
    assert sorted(values) == sorted(limits.values())
