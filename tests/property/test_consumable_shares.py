"""Whatever the capacities let the scheduler give out, no device is promised more than it has."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

import make
from consuming import Scheduler
from dra_driver.claims.model.claim import Result
from dra_driver.claims.prepare.allocation import allocated_devices
from dra_driver.devices.device import Device, DeviceUuid, Mig, overlap, share_key
from dra_driver.devices.model import Gpu, MigDevice, MigMode
from dra_driver.devices.shares import ConsumedShare, Division, ShareStrategy
from dra_driver.sharing.base import Group, Unit
from dra_driver.sharing.share_limits import limits_of
from dra_driver.sharing.steps import ShareLimits
from dra_driver.slices.consumable import Consumable
from dra_driver.slices.offer.shares import ShareOffer
from dra_driver.slices.project import projection

MIB = 1024**2


class Undivided:
    """No device is divided into equal shares."""

    def of(self, _: object) -> Division | None:
        return None


WHOLE_GPUS: list[dict[str, Any]] = [
    {"mig": make.mig()},
    {},
    {"memory_bytes": 15109 * MIB + 4096, "memory_reserved_bytes": 450 * MIB + 1},
    {"memory_bytes": None},
]
MIG_DEVICES = [make.mig_device(), make.mig_device(0, "3g.40gb", 4), make.mig_device(0, "7g.80gb")]

whole_gpus = st.sampled_from(WHOLE_GPUS).map(lambda facts: make.gpu(0, **facts))
divided = st.sampled_from(MIG_DEVICES).map(
    lambda one: make.gpu(0, mig=make.mig(one), mig_mode=MigMode.ENABLED)
)
modes = st.sampled_from(["memory", "unlimited", "1", "5"])
asked = st.fixed_dictionaries(
    {},
    optional={
        "memory": st.integers(0, 20 * 1024 * MIB),
        "cores": st.integers(0, 60),
        "shares": st.integers(0, 3),
        "multiprocessors": st.integers(0, 40),
    },
)
claims = st.tuples(st.lists(asked, min_size=1, max_size=2), st.booleans())
"""What a claim asks for, part by part, and whether all of it is one request."""

comings_and_goings = st.lists(claims | st.integers(0, 9), min_size=1, max_size=20)
"""Claims that come; a number is a tenant that goes."""


def shared_device(gpu: Gpu, mode: str) -> Any:
    found = projection(make.inventory(gpu), share=ShareOffer(consumable=Consumable.of(mode)))
    return next(device for device in found.devices if device.get("allowMultipleAllocations"))


@dataclass(frozen=True)
class Tenant:
    """A claim: what it consumes part by part, and for each the request that has it."""

    name: str
    consumed: Sequence[dict[str, int]]
    requests: Sequence[str]

    def share_id(self, number: int) -> str:
        return f"{self.name}-{number}"


@dataclass(frozen=True)
class Prepared:
    """What the driver makes of a tenant: its devices, and limits by share id."""

    devices: Sequence[Device]
    limits: dict[str, ShareLimits]


def prepared(tenant: Tenant, gpu: Gpu, device: str) -> Prepared:
    results = [
        Result(
            request=request,
            pool="n",
            device=device,
            share_id=tenant.share_id(number),
            consumed=consumed,
        )
        for number, (consumed, request) in enumerate(
            zip(tenant.consumed, tenant.requests, strict=True)
        )
    ]
    strategies = {one.allocation_id: ShareStrategy.MPS for one in results}
    found = allocated_devices(results, "n", make.inventory(gpu), Undivided(), strategies)
    units = []
    for result, one in zip(results, found.values(), strict=True):
        assert isinstance(one.share, ConsumedShare)
        is_mig = isinstance(one.base, Mig)
        share = replace(one, base=make.device(existing(gpu)).base) if is_mig else one
        units.append(Unit(name=device, request=result.request, gpu=gpu, device=share))
    config: Any = make.gpu_config("MPS")
    group = Group(claim=f"uid-{tenant.name}", config=config, units=tuple(units))
    limits = limits_of([group])
    uuid = DeviceUuid(existing(gpu).uuid if gpu.mig_mode is MigMode.ENABLED else gpu.uuid)
    return Prepared(
        devices=list(found.values()),
        limits={one.share_id or "": limits[share_key(uuid, one.share_id or "")] for one in results},
    )


def existing(gpu: Gpu) -> MigDevice:
    assert gpu.mig is not None
    (found,) = gpu.mig.instances
    return found


def usable(gpu: Gpu) -> int:
    """The memory of the device that is shared, in bytes."""
    if gpu.mig_mode is MigMode.ENABLED:
        return existing(gpu).profile.memory_bytes
    return (gpu.memory_bytes or 0) - gpu.memory_reserved_bytes


def check_tenant(tenant: Tenant, of: Prepared) -> None:
    """Each request is limited to what it was allocated, and not at all where that is nothing."""
    for number, request in enumerate(tenant.requests):
        limits = of.limits[tenant.share_id(number)]
        of_request = [
            consumed
            for consumed, one in zip(tenant.consumed, tenant.requests, strict=True)
            if one == request
        ]
        cores = [consumed["cores"] for consumed in of_request]
        memory = [consumed.get("memory", 0) for consumed in of_request]
        wanted = sum(cores) if all(cores) else 0
        assert (limits.active_thread_percentage or 100) == (wanted or 100)
        assert (limits.memory_mib or 0) * MIB == (sum(memory) if all(memory) else 0)


@given(whole_gpus | divided, modes, comings_and_goings)
def test_tenants_get_what_they_were_allocated_and_together_no_more_than_there_is(
    gpu: Gpu, mode: str, events: list[tuple[list[dict[str, int]], bool] | int]
) -> None:
    device = shared_device(gpu, mode)
    scheduler = Scheduler(device)
    tenants: list[Tenant] = []
    for number, event in enumerate(events):
        if isinstance(event, int):
            for gone in tenants[event : event + 1]:
                for consumed in gone.consumed:
                    scheduler.give_back(consumed)
                tenants.remove(gone)
            continue
        parts, is_one_request = event
        taken = [one for one in map(scheduler.take, parts) if one is not None]
        names = [
            "gpu" if is_one_request else f"container-{part}-request-0" for part in range(len(taken))
        ]
        if taken:
            tenants.append(Tenant(f"claim-{number}", taken, names))
        check_all(tenants, gpu, device["name"], mode)


def check_all(tenants: Sequence[Tenant], gpu: Gpu, name: str, mode: str) -> None:
    there = [(tenant, prepared(tenant, gpu, name)) for tenant in tenants]
    devices = [device for _, one in there for device in one.devices]
    for position, each in enumerate(devices):
        assert not overlap([each], devices[:position])
        assert overlap([each], [Device(base=each.place)])
    memory = percent = 0
    for tenant, one in there:
        check_tenant(tenant, one)
        by_request = {
            request: one.limits[tenant.share_id(number)]
            for number, request in enumerate(tenant.requests)
        }
        memory += sum((limits.memory_mib or 0) * MIB for limits in by_request.values())
        percent += sum(limits.active_thread_percentage or 0 for limits in by_request.values())
    assert memory <= usable(gpu)
    # A request with all SMs has no limit: then nobody else was promised any.
    assert percent <= 100
    everything = [one for tenant in tenants for one in tenant.consumed]
    assert sum(one["cores"] for one in everything) <= 100
    if mode.isdecimal():
        assert len(everything) <= int(mode)


@given(whole_gpus | divided, modes)
def test_a_claim_that_asks_for_nothing_has_no_limit_of_sms_and_leaves_other_engines_alone(
    gpu: Gpu, mode: str
) -> None:
    consumed = Scheduler(shared_device(gpu, mode)).take({}) or {}
    assert {name for name, much in consumed.items() if much} <= {"memory", "shares"}
