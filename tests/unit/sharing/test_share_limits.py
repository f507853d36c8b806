"""What the requests of a claim may use of the shares that they got."""

import re
from typing import Any

import pytest
from msgspec.structs import replace

import make
from dra_driver.devices.device import (
    Device,
    DeviceKey,
    DeviceUuid,
    equal_shares,
    name_of,
    share_key,
)
from dra_driver.devices.mig.partitions import partitions
from dra_driver.devices.model import Gpu, MigDevice
from dra_driver.devices.shares import ConsumedShare, Division, ShareStrategy
from dra_driver.errors import ConfigError, StateError
from dra_driver.sharing.base import Group, Unit
from dra_driver.sharing.limiters import Limiter
from dra_driver.sharing.share_limits import limits_of, memory_of_claim
from dra_driver.sharing.steps import ShareLimits

GPU, OTHER = make.gpu(0), make.gpu(1)
MIB = GPU.memory_bytes // 1024**2 if GPU.memory_bytes else 0
TEN = Division(count=10, strategy=ShareStrategy.MPS, served_as="nvidia.com/gpu", combines=True)
ONE_EACH = replace(TEN, combines=False)
SLICED = replace(TEN, strategy=ShareStrategy.TIME_SLICING)


def unit(
    index: int,
    request: str = "gpu",
    *,
    gpu: Gpu = GPU,
    division: Division = TEN,
    of: MigDevice | None = None,
) -> Unit:
    share = equal_shares(make.device(of or gpu).base, division)[index]
    return Unit(name=name_of(gpu, share), request=request, gpu=gpu, device=share)


def limits(*units: Unit, config: Any = None) -> dict[DeviceKey, ShareLimits]:
    group = Group(claim="uid", config=config or make.gpu_config(), units=units)
    return limits_of([group])


def key(index: int, gpu: Gpu = GPU) -> DeviceKey:
    return share_key(DeviceUuid(gpu.uuid), str(index))


def test_ten_tenants_have_the_memory_that_the_nvidia_driver_does_not_reserve() -> None:
    card = make.gpu(0, memory_bytes=81559 * 1024**2, memory_reserved_bytes=550 * 1024**2)
    found = {n: one for n in range(10) for one in limits(unit(n, gpu=card)).values()}
    assert [one.memory_mib for one in found.values()] == [8100] * 10


def test_eight_and_two_of_ten_shares_are_eighty_and_twenty_percent_of_sms_and_memory() -> None:
    large = limits(*(unit(n, "large") for n in range(8)))
    found = large | limits(unit(8, "small"), unit(9, "small"))
    assert found[key(0)] == found[key(7)]
    assert found[key(0)].active_thread_percentage == 80
    assert found[key(0)].memory_mib == MIB // 10 * 8
    assert found[key(9)].active_thread_percentage == 20
    assert found[key(9)].memory_mib == MIB // 10 * 2


def test_all_shares_of_a_gpu_are_all_of_its_sms_and_no_limit() -> None:
    found = limits(*(unit(n) for n in range(10)))
    assert {one.active_thread_percentage for one in found.values()} == {None}


@pytest.mark.parametrize(
    ("division", "capability"), [(SLICED, (9, 0)), (TEN, (6, 1))], ids=["in turns", "before Volta"]
)
def test_where_mps_limits_nothing_shares_have_all_sms(
    division: Division, capability: tuple[int, int]
) -> None:
    card = make.gpu(0, cuda_compute_capability=capability)
    (found,) = limits(unit(0, gpu=card, division=division)).values()
    assert (found.active_thread_percentage, found.memory_mib) == (None, MIB // 10)


def test_a_request_for_several_is_refused_where_the_config_says_so() -> None:
    with pytest.raises(ConfigError) as caught:
        limits(unit(0, division=ONE_EACH), unit(1, division=ONE_EACH))
    assert str(caught.value) == (
        "request gpu asks for 2 of nvidia.com/gpu, and on this node a request may have only one: "
        "its share config sets failRequestsGreaterThanOne; ask for 1"
    )


FIRST, SECOND = make.mig_device(0, "2g.20gb", 0), make.mig_device(0, "2g.20gb", 2)
CARD = make.gpu(0, mig=make.mig(FIRST, SECOND))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (unit(0), unit(0, gpu=OTHER)),
        (unit(0, gpu=CARD, of=FIRST), unit(0, gpu=CARD, of=SECOND)),
    ],
)
def test_a_request_cannot_have_shares_of_two_devices_under_mps(one: Unit, other: Unit) -> None:
    with pytest.raises(ConfigError) as caught:
        limits(one, other)
    assert str(caught.value) == (
        f'request gpu got shares of two devices under MPS, "{one.name}" and "{other.name}", and an '
        "MPS daemon serves only one: use a claim with `constraints: [{matchAttribute: "
        "gpu.nvidia.com/uuid}]`; a request for several in a container's limits belongs on a node "
        "with one divided device"
    )


def test_time_sliced_shares_of_a_request_may_be_of_several_gpus() -> None:
    found = limits(unit(0, division=SLICED), unit(1, division=SLICED, gpu=OTHER))
    assert [one.memory_mib for one in found.values()] == [MIB // 10, MIB // 10]


@pytest.mark.parametrize("names", [("a", "b"), ("container-0-request-0", "container-0-request-1")])
def test_a_container_cannot_have_shares_of_two_requests_under_mps(names: tuple[str, str]) -> None:
    first, second = names
    with pytest.raises(ConfigError) as caught:
        limits(unit(0, first), unit(1, second))
    assert str(caught.value) == (
        f"requests {first} and {second} both got shares under MPS, and a container with both would "
        "have the limits of only one: ask for all shares of a container in one request (`count`), "
        "and give each container a claim of its own"
    )


def test_each_container_with_limits_has_its_own_request_and_device() -> None:
    found = limits(
        unit(0, "container-0-request-0"),
        unit(1, "container-0-request-0"),
        unit(0, "container-1-request-0", gpu=OTHER),
    )
    assert [one.active_thread_percentage for one in found.values()] == [20, 20, 10]


@pytest.mark.parametrize(
    ("config", "division", "text"),
    [
        (
            make.gpu_config("MPS", defaultActiveThreadPercentage=5),
            TEN,
            "mpsConfig has no effect on request gpu",
        ),
        (
            make.gpu_config("MPS", defaultPinnedDeviceMemoryLimit="1Gi"),
            TEN,
            "is a share, and its size sets the limits; remove `mpsConfig`, and ask for less",
        ),
        (
            make.gpu_config("TimeSlicing", interval="Long"),
            TEN,
            "as the node's share config says: the claim's config cannot change it to TimeSlicing",
        ),
        (make.gpu_config("MPS"), SLICED, "all its tenants use by TimeSlicing"),
        (
            make.gpu_config("TimeSlicing", interval="Long"),
            SLICED,
            "interval Long cannot be set for request gpu",
        ),
    ],
)
def test_a_config_cannot_have_for_itself_what_holds_for_all_tenants(
    config: Any, division: Division, text: str
) -> None:
    with pytest.raises(ConfigError, match=re.escape(text)):
        limits(unit(0, division=division), config=config)


@pytest.mark.parametrize("interval", [None, "Default"])
def test_the_default_interval_is_what_shares_have(interval: str | None) -> None:
    settings = {} if interval is None else {"interval": interval}
    limits(unit(0, division=SLICED), config=make.gpu_config("TimeSlicing", **settings))


def test_where_compute_is_free_only_memory_is_divided() -> None:
    free = replace(TEN, free_compute=True)
    for config in (None, make.gpu_config("MPS")):
        (found,) = limits(unit(0, division=free), config=config).values()
        assert (found.active_thread_percentage, found.memory_mib) == (None, MIB // 10)


def part(
    share_id: str = "a",
    request: str = "gpu",
    strategy: ShareStrategy = ShareStrategy.MPS,
    gpu: Gpu = GPU,
    **amounts: int,
) -> Unit:
    share = ConsumedShare(share_id=share_id, strategy=strategy, **amounts)
    device = Device(base=make.place(gpu), share=share)
    return Unit(name=name_of(gpu, device), request=request, gpu=gpu, device=device)


def part_key(share_id: str = "a") -> DeviceKey:
    return share_key(DeviceUuid(GPU.uuid), share_id)


@pytest.mark.parametrize(
    ("memory", "cores", "wanted"),
    [
        (1024, 20, (1024, 20)),
        (1024, 0, (1024, None)),
        (0, 20, (None, 20)),
        (0, 0, (None, None)),
    ],
)
def test_consumed_capacity_is_the_limit_and_zero_is_none(
    memory: int, cores: int, wanted: Any
) -> None:
    found = limits(part(memory_mib=memory, cores=cores))[part_key()]
    assert (found.memory_mib, found.active_thread_percentage) == wanted
    assert (found.consumed_memory_mib, found.consumed_cores) == (memory, cores)
    assert found.count is None


def test_parts_of_one_request_are_one_larger_part_without_a_limit_if_one_has_none() -> None:
    found = limits(part("a", memory_mib=10, cores=20), part("b", memory_mib=5, cores=0))
    assert found[part_key("a")].memory_mib == found[part_key("b")].memory_mib == 15
    assert found[part_key("a")].active_thread_percentage is None


def test_a_request_for_equal_shares_and_parts_is_refused() -> None:
    with pytest.raises(ConfigError, match="equal ones, and a part of another device by capacity"):
        limits(unit(0), part(gpu=OTHER, strategy=ShareStrategy.TIME_SLICING))


def test_a_claim_uses_a_device_in_one_way() -> None:
    by_mps, in_turns = part("a", "one"), part("b", "two", ShareStrategy.TIME_SLICING)
    with pytest.raises(ConfigError) as caught:
        limits(by_mps, in_turns)
    assert str(caught.value) == (
        'requests one and two both got a part of device "gpu-0", one to be shared by MPS and '
        "one by TimeSlicing: write the same `sharing.strategy` in the configs of both"
    )


def test_a_share_of_a_mig_device_that_nobody_has_made_has_no_uuid() -> None:
    card = make.gpu(0, mig=make.mig())
    share = equal_shares(partitions(card)[0], TEN)[0]
    lost = Unit(name=name_of(card, share), request="gpu", gpu=card, device=share)
    with pytest.raises(StateError, match=f"a MIG device of {card.uuid} does not exist yet"):
        limits(lost)


def together(*units: Unit, by: Limiter = Limiter.OVER_LIMIT) -> int | None:
    return memory_of_claim(units, limits(*units), by)


def test_requests_of_a_claim_add_up_and_shares_of_a_request_count_once() -> None:
    sliced = ShareStrategy.TIME_SLICING
    parts = [
        part(name, request, sliced, memory_mib=mib)
        for name, request, mib in (("a", "one", 100), ("b", "one", 50), ("c", "two", 7))
    ]
    assert together(*parts) == together(*parts, by=Limiter.CONTROL_GROUPS) == 157
    assert together(*parts, by=Limiter.NOTHING) is None
    tenths = [unit(n, name, division=SLICED) for n, name in enumerate(("one", "one", "two"))]
    assert together(*tenths) == 3 * (MIB // 10)


def test_a_request_without_a_limit_has_none_or_by_control_groups_all_there_is() -> None:
    sliced = ShareStrategy.TIME_SLICING
    none, some = part("a", "one", sliced), part("b", "two", sliced, memory_mib=100)
    for units in ((none,), (none, some), (some, none)):
        assert together(*units) is None
        assert together(*units, by=Limiter.CONTROL_GROUPS) == MIB
    unknown = part("a", "one", sliced, make.gpu(2, memory_bytes=None), memory_mib=100)
    assert together(unknown, by=Limiter.CONTROL_GROUPS) == 100
