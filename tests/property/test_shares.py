"""Whatever the counters let the scheduler give out, no device is ever promised more than it has."""

from collections import Counter
from typing import Any

from hypothesis import assume, given, settings
from hypothesis import strategies as st

import make
from dra_driver.devices.device import DeviceKey, Mig, NodeDevice, name_of, overlap, profile_of
from dra_driver.devices.model import Gpu, MigMode
from dra_driver.devices.shares import Division, EqualShare, ShareStrategy
from dra_driver.shares.divide import divide
from dra_driver.sharing.base import Group, Unit
from dra_driver.sharing.share_limits import limits_of
from dra_driver.sharing.shares import Shares
from dra_driver.sharing.steps import JoinDomain, ShareLimits
from dra_driver.slices.offer.shares import ShareOffer
from dra_driver.slices.project import Projection, projection
from resource_nvidia_com.device_plugin import Compute, NodeConfig, SharedBy, SharedResource
from scheduled import Scheduler

MIB = 1024**2


FACTS: list[dict[str, Any]] = [
    {"mig": make.mig()},
    {},
    {"memory_bytes": 15109 * MIB + 4096, "memory_reserved_bytes": 450 * MIB + 1},
    {"memory_bytes": 16 * 1024 * MIB, "cuda_compute_capability": (6, 0)},
]
LARGE, SMALL = "3g.40gb", "1g.10gb"


def gpu(minor: int, kind: int) -> Gpu:
    """A GPU of one of several kinds; the last one has MIG devices that an admin made."""
    if kind < len(FACTS):
        return make.gpu(minor, **FACTS[kind])
    devices = (make.mig_device(minor, SMALL, 0), make.mig_device(minor, LARGE, 4))
    return make.gpu(minor, mig=make.mig(*devices), mig_mode=MigMode.ENABLED)


chosen = st.one_of(
    st.just("all"),
    st.integers(1, 3),
    st.lists(st.integers(0, 2), min_size=1, unique=True).map(
        lambda indexes: tuple(map(str, indexes))
    ),
)


@st.composite
def node_configs(draw: st.DrawFn) -> NodeConfig:
    """What an admin may write: GPUs and MIG devices divided, by their names or by that of GPUs."""
    resources = [
        SharedResource(
            name="nvidia.com/gpu",
            served_as=draw(st.sampled_from(["nvidia.com/gpu", "nvidia.com/gpu.shared"])),
            devices=draw(chosen),
            replicas=draw(st.integers(2, 60)),
        )
    ]
    for profile in draw(st.lists(st.sampled_from([LARGE, SMALL]), unique=True)):
        name = f"nvidia.com/mig-{profile}"
        replicas = draw(st.integers(2, 20))
        resources.append(
            SharedResource(name=name, served_as=name, devices="all", replicas=replicas)
        )
    return NodeConfig(
        mig_strategy=draw(st.sampled_from([None, "single", "mixed"])),
        shared_by=draw(st.sampled_from(SharedBy)),
        fail_requests_greater_than_one=draw(st.booleans()),
        compute=draw(st.sampled_from(Compute)),
        resources=tuple(resources),
    )


@st.composite
def nodes(draw: st.DrawFn) -> Projection:
    """What is published of a node whose devices are divided as a config says."""
    kinds = draw(st.lists(st.integers(0, len(FACTS)), min_size=1, max_size=3))
    inventory = make.inventory(*(gpu(minor, kind) for minor, kind in enumerate(kinds)))
    divided = divide(draw(node_configs()), inventory)
    share = ShareOffer(
        divisions=divided.divisions,
        refused=divided.refused,
        serving=divided.serving,
        packed=draw(st.booleans()),
    )
    return projection(
        inventory,
        share=share,
        with_counters=draw(st.booleans()),
        memory_counters=draw(st.booleans()),
    )


def units_of(held: list[NodeDevice], requests: list[int]) -> list[Unit]:
    """The shares that tenants have, several of one request where the config and MPS allow it."""
    found = []
    for one, number in zip(held, requests, strict=True):
        share, name = one.device.share, name_of(one.gpu, one.device)
        if not isinstance(share, EqualShare):
            continue
        division, request = share.division, name
        if division.combines:
            is_mps = division.strategy is ShareStrategy.MPS
            of = one.device.base if is_mps else ""
            request = f"{number} {division.served_as} {of}"
        found.append(Unit(name=name, request=request, gpu=one.gpu, device=one.device))
    return found


def limits(units: list[Unit]) -> dict[DeviceKey, ShareLimits]:
    """The limits of the shares, each request's in a claim of its own."""
    found: dict[DeviceKey, ShareLimits] = {}
    for request in {unit.request for unit in units}:
        own = tuple(unit for unit in units if unit.request == request)
        group = Group(claim="uid", config=make.gpu_config(), units=own)
        found |= limits_of([group])
    return found


def division_of(unit: Unit) -> Division:
    assert unit.device.division is not None
    return unit.device.division


def total_mib(unit: Unit) -> int:
    """The memory of the device that tenants can have, in MiB."""
    gpu, base = unit.gpu, unit.device.base
    if isinstance(base, Mig):
        return profile_of(gpu, base).memory_bytes // MIB
    return ((gpu.memory_bytes or 0) - gpu.memory_reserved_bytes) // MIB


def percent_of(unit: Unit, taken: int) -> int | None:
    """The percentage of SMs that so many shares are; None where nothing limits them."""
    division = division_of(unit)
    is_mps = division.strategy is ShareStrategy.MPS
    if not is_mps or division.free_compute or unit.gpu.cuda_compute_capability < (7, 0):
        return None
    return max(1, 100 * taken // division.count)


def wanted(units: list[Unit]) -> tuple[int | None, dict[str, int]]:
    """What the process of a request is to be limited to that has these shares."""
    taken = Counter(unit.uuid for unit in units)
    firsts = {unit.uuid: unit for unit in units}
    percents = {percent_of(unit, taken[uuid]) for uuid, unit in firsts.items()}
    least = (
        None if None in percents else min(percent for percent in percents if percent is not None)
    )
    memory = {
        str(uuid): total_mib(unit) // division_of(unit).count * taken[uuid]
        for uuid, unit in firsts.items()
    }
    return None if least == 100 else least, memory


@settings(deadline=None)
@given(st.data(), nodes())
def test_no_device_is_promised_more_than_it_has(data: st.DataObject, found: Projection) -> None:
    assume(found.devices)
    scheduler = Scheduler(found)
    held: list[int] = []
    for number in data.draw(
        st.lists(st.integers(0, len(found.devices) - 1), min_size=1, max_size=60)
    ):
        if number in held:
            held.remove(number)
            scheduler.give_back(number)
        elif scheduler.take(number):
            held.append(number)
    sources = [found.sources[number] for number in held]
    devices = [source.device for source in sources]
    for position, one in enumerate(devices):
        assert not overlap([one], devices[:position])
    requests = [data.draw(st.integers(0, 2)) for _ in held]
    check_limits(units_of(sources, requests))


@given(st.data(), nodes())
def test_the_counter_of_memory_keeps_nothing_away_that_others_let_in(
    data: st.DataObject, found: Projection
) -> None:
    assume(found.devices)
    all_counters, others = Scheduler(found), Scheduler(found, ignoring="memory")
    for number in data.draw(st.lists(st.integers(0, len(found.devices) - 1), max_size=60)):
        assert all_counters.take(number) == others.take(number)


def check_limits(units: list[Unit]) -> None:
    """Each request has what its shares are worth, and all together no more than there is."""
    found = limits(units)
    requests: dict[str, list[Unit]] = {}
    for unit in units:
        requests.setdefault(unit.request, []).append(unit)
    percent: Counter[str] = Counter()
    memory: Counter[str] = Counter()
    for members in requests.values():
        least, mib = wanted(members)
        for unit in members:
            limit = found[unit.key]
            found_now = (limit.active_thread_percentage, limit.memory_mib)
            assert found_now == (least, mib[unit.uuid])
        percent.update(dict.fromkeys(mib, least or 0))
        memory.update(mib)
    for unit in units:
        assert percent[unit.uuid] <= 100
        assert memory[unit.uuid] <= total_mib(unit)


@given(nodes())
def test_a_daemon_for_single_shares_gives_each_client_one_nth(found: Projection) -> None:
    never: Any = None
    sharing = Shares(make.limited_by_mps(), never)
    for unit in units_of(list(found.sources), [0] * len(found.sources)):
        division = division_of(unit)
        if division.combines or division.strategy is not ShareStrategy.MPS:
            continue
        group = Group(claim="uid", config=make.gpu_config(), units=(unit,))
        _, join = sharing.plan([group], 0.0)
        assert isinstance(join, JoinDomain)
        domain = join.wanted
        (device,) = domain.devices
        old = unit.gpu.cuda_compute_capability < (7, 0)
        assert device.uuid == unit.uuid
        assert device.pinned_memory_mib == (None if old else total_mib(unit) // division.count)
        assert domain.active_thread_percentage == percent_of(unit, 1)


@given(nodes())
def test_every_share_of_a_device_can_be_given_out_at_once(found: Projection) -> None:
    scheduler = Scheduler(found)
    for number, source in enumerate(found.sources):
        if isinstance(source.device.share, EqualShare):
            assert scheduler.take(number)
