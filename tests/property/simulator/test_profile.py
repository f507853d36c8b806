"""Any valid profile survives being written and read, and fits the state file."""

import string
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from dra_driver.simulator import hardware, profile, state
from dra_driver.simulator.layout import Fact, Text
from dra_driver.simulator.profile import Card, Gpu, NvSwitch, Profile
from dra_driver.simulator.state import Driver, State

SHIPPED = {
    name: card for shipped in profile.names() for name, card in profile.load(shipped).cards.items()
}
TEXTS = st.text(string.ascii_letters + string.digits + " -_.:#'\"", min_size=1, max_size=90)


@st.composite
def cards(draw: st.DrawFn) -> Card:
    template = draw(st.sampled_from(sorted(SHIPPED)))
    total = draw(st.integers(2, 2**24))
    changes = {
        "name": draw(TEXTS),
        "board_part_number": draw(st.none() | TEXTS),
        "ecc": draw(st.none() | st.booleans()),
        "time_slicing": draw(st.booleans()),
        "serial_number": draw(st.booleans()),
        "memory": {"total_mib": total, "reserved_mib": draw(st.integers(0, total - 1))},
    }
    return Card.model_validate(SHIPPED[template].model_dump() | changes)


@st.composite
def machines(draw: st.DrawFn) -> Profile:
    known = {f"card-{number}": draw(cards()) for number in range(draw(st.integers(1, 3)))}
    count = draw(st.integers(0, 32))
    minors = draw(st.permutations(range(64)))
    buses = draw(st.lists(st.integers(1, 254), min_size=count, max_size=count, unique=True))
    gpus = [
        Gpu(
            card=draw(st.sampled_from(sorted(known))),
            pci=f"0000:{bus:02x}:00.0",
            minor=minor,
            numa_node=draw(st.integers(-1, 7)),
            bridges=[f"0000:{bus - 1:02x}:01.0"],
        )
        for bus, minor in zip(buses, minors, strict=False)
    ]
    switch = NvSwitch(device_id="0x22a3", addresses=["0000:ff:00.0"], fabric=True)
    return Profile(
        name=draw(st.from_regex(r"[a-z0-9]{1,20}", fullmatch=True)),
        description=draw(TEXTS),
        driver_version=draw(st.sampled_from(["535.261.03", "580.95.05", "610.1"])),
        cuda_version=f"{draw(st.integers(10, 13))}.{draw(st.integers(0, 9))}",
        nvswitch=draw(st.none() | st.just(switch)),
        cards=known,
        gpus=gpus,
    )


@given(machines())
@settings(deadline=None)
def test_a_profile_is_read_back_as_it_was_written(machine: Profile) -> None:
    assert profile.parse(profile.dump(machine), origin="anything") == machine


@given(machine=machines())
@settings(deadline=None)
def test_the_state_holds_every_gpu_of_any_profile(
    machine: Profile, tmp_path_factory: object
) -> None:
    gpus = hardware.gpus_of(machine, "seed")
    assert len({gpu.uuid for gpu in gpus}) == len(gpus)
    path = Path(tmp_path_factory.mktemp("state")) / "state"  # type: ignore[attr-defined]
    driver = Driver(version=machine.driver_version, cuda_version=12020, library_folder="lib")
    state.create(
        path, driver, [hardware.facts_of(gpu, machine, machine.driver_version) for gpu in gpus]
    )
    with State(path) as now:
        for gpu in gpus:
            assert now.slot_of(gpu.uuid) == gpu.slot
            assert now.text(gpu.slot, Text.NAME) == gpu.card.name
            assert now.fact(gpu.slot, Fact.MINOR) == gpu.minor
            assert now.fact(gpu.slot, Fact.MEMORY_TOTAL) == gpu.card.memory.total_mib << 20
            assert (now.fact(gpu.slot, Fact.TIME_SLICE) is None) is not gpu.card.time_slicing
