"""Whatever the counters let the scheduler give out, no device is ever promised more than it has."""

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

import make
from dra_driver.claims.devices import recorded
from dra_driver.devices.kinds import GpuPart, NodeDevice, name_of, overlap
from dra_driver.devices.model import Gpu
from dra_driver.devices.shares import Division, Share, ShareStrategy, memory_of
from dra_driver.sharing.base import DeviceKey, Group, ShareUnit, key_uuid
from dra_driver.sharing.share_limits import ShareLimits, limits_of
from dra_driver.slices.project import Projection, projection
from dra_driver.slices.share_offer import ShareOffer, SharePlacement

MIB = 1024**2


@dataclass
class Scheduler:
    """Gives out published devices, each once, as long as the counters that it consumes suffice."""

    found: Projection
    free: set[int] = field(default_factory=set)
    used: Counter[tuple[str, str]] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.free = set(range(len(self.found.devices)))
        sets: Any = self.found.counter_sets
        self.most = {
            (each["name"], name): amount(value["value"])
            for each in sets
            for name, value in each["counters"].items()
        }

    def take(self, number: int) -> bool:
        wanted = self.wanted(number)
        if number not in self.free or any(
            self.used[key] + much > self.most[key] for key, much in wanted.items()
        ):
            return False
        self.free.discard(number)
        self.used.update(wanted)
        return True

    def give_back(self, number: int) -> None:
        self.free.add(number)
        self.used.subtract(self.wanted(number))

    def wanted(self, number: int) -> Counter[tuple[str, str]]:
        device: Any = self.found.devices[number]
        return Counter(
            {
                (each["counterSet"], name): amount(value["value"])
                for each in device.get("consumesCounters", ())
                for name, value in each["counters"].items()
            }
        )


def amount(text: str) -> int:
    units = {"Mi": MIB, "Gi": 1024 * MIB, "Ki": 1024}
    return int(text[:-2]) * units[text[-2:]] if text[-2:] in units else int(text)


cards = st.sampled_from([{"mig": make.mig()}, {}, {"memory_bytes": 15109 * MIB + 4096}])


@st.composite
def nodes(draw: st.DrawFn) -> Projection:
    gpus = [make.gpu(minor, **draw(cards)) for minor in range(draw(st.integers(1, 3)))]
    combines = draw(st.booleans())
    strategy = draw(st.sampled_from(ShareStrategy))
    together: tuple[Any, ...] = ()
    if combines and strategy is ShareStrategy.MPS and len(gpus) > 1:
        together = tuple(sorted(gpu.uuid for gpu in gpus))
    division = Division(
        count=draw(st.integers(2, 48)),
        strategy=strategy,
        served_as="nvidia.com/gpu",
        combines=combines,
        together=together,
    )
    divided = gpus if together else draw(st.lists(st.sampled_from(gpus), unique=True))
    share = ShareOffer(
        divisions={GpuPart(gpu=gpu.uuid): division for gpu in divided},
        placement=draw(st.sampled_from(SharePlacement)),
    )
    with_counters = draw(st.booleans())
    return projection(make.inventory(*gpus), share=share, with_counters=with_counters)


def limits(held: list[NodeDevice], requests: list[int]) -> dict[DeviceKey, ShareLimits]:
    """The limits of tenants who have shares: of request n those with that number."""
    units = [
        ShareUnit(name=name_of(one.gpu, one.device), request=str(n), gpu=one.gpu, share=one.device)
        for one, n in zip(held, requests, strict=True)
        if isinstance(one.device, Share)
    ]
    config = make.gpu_config()
    if not all(unit.share.division.combines for unit in units):
        units = [
            ShareUnit(name=one.name, request=one.name, gpu=one.gpu, share=one.share)
            for one in units
        ]
    group = Group(claim="uid", config=config, shares=tuple(units))
    return limits_of([group], lambda _: True)


@settings(deadline=None)
@given(st.data(), nodes())
def test_no_device_is_promised_more_than_it_has(data: st.DataObject, found: Projection) -> None:
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
    parts = [recorded(one.device).part for one in sources]
    for position, part in enumerate(parts):
        assert not overlap([part], parts[:position])
    requests = [data.draw(st.integers(0, 2)) for _ in held]
    check_limits(limits(sources, requests), {one.gpu.uuid: one.gpu for one in sources})


def check_limits(found: dict[DeviceKey, ShareLimits], gpus: dict[Any, Gpu]) -> None:
    """Tenants are told apart by what they were told: each request counts once for each GPU."""
    tenants = {(key_uuid(key), id(one.memory_mib)): one for key, one in found.items()}
    percent: Counter[str] = Counter()
    memory: Counter[str] = Counter()
    for (uuid, _), one in tenants.items():
        percent[uuid] += one.active_thread_percentage or 0
        memory[uuid] += one.memory_mib.get(uuid, 0)
    for uuid, gpu in gpus.items():
        assert percent[uuid] <= 100
        assert memory[uuid] * MIB <= (memory_of(gpu) or 0)


@given(nodes())
def test_every_share_of_a_device_can_be_given_out_at_once(found: Projection) -> None:
    scheduler = Scheduler(found)
    for number, source in enumerate(found.sources):
        if isinstance(source.device, Share):
            assert scheduler.take(number)
