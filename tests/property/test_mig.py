"""What the counters allow NVML does: any claims that come and go, on every kind of card."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import packing
from dra_driver.devices.device import Mig
from dra_driver.devices.mig.making import MigInstances
from dra_driver.devices.mig.partitions import partition_named
from dra_driver.devices.model import Gpu
from dra_driver.devices.names import MigName, parse_device_name
from dra_driver.simulator import profile as profiles
from dra_driver.simulator.machine import Machine
from dra_driver.slices.project import Projection, projection
from sampling import examples
from worlds.session import session_on

CARDS = ["a100x8", "a100-80x8", "a30x4", "h100x8", "h200x8", "b200x8", "rtxpro6000x8"]


@contextmanager
def mig_on(folder: Path, card: str) -> Iterator[tuple[MigInstances, Gpu, Projection]]:
    """A simulated card in MIG mode: what makes instances, the card, and what is published of it."""
    at_once = profiles.load(card).model_copy(update={"mig_change_ms": 0})
    machine = Machine.create(folder, at_once)
    session = session_on(machine)
    uuid = session.look().gpus[0].uuid
    if not machine.set_mig_mode(uuid, enabled=True):
        machine.reset_gpu(uuid)
    inventory = session.look()
    gpu = inventory.gpus[0]
    yield MigInstances(session.mig), gpu, projection(inventory)
    session.close()


@pytest.fixture(scope="module", params=CARDS)
def card(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[MigInstances, Gpu, Projection]]:
    with mig_on(tmp_path_factory.mktemp("card") / "m", request.param) as found:
        yield found


def place(gpu: Gpu, name: str) -> Mig | None:
    """The partition that a device name means on this GPU; None for those of other GPUs."""
    said = parse_device_name(name)
    if not isinstance(said, MigName) or said.minor != gpu.minor:
        return None
    return partition_named(gpu, said.profile_id, said.start)


@settings(
    max_examples=examples(30),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(data=st.data())
def test_every_allocation_that_the_counters_allow_can_be_made(
    card: tuple[MigInstances, Gpu, Projection], data: st.DataObject
) -> None:
    mig, gpu, published = card
    offers = [(offer, place(gpu, offer.name)) for offer in packing.offers(published)]
    possible = [(offer, where) for offer, where in offers if where is not None]
    name = possible[0][0].counter_set
    (counter_set,) = (one for one in published.counter_sets if one["name"] == name)
    left = packing.amounts(counter_set["counters"])  # type: ignore[arg-type]
    held: dict[str, tuple[packing.Offer, Mig]] = {}
    try:
        for _ in range(data.draw(st.integers(min_value=1, max_value=25))):
            fitting: list[Any] = [
                each
                for each in possible
                if each[0].name not in held and packing.fits(left, each[0])
            ]
            if held and (not fitting or data.draw(st.integers(0, 2)) == 0):
                gone = data.draw(st.sampled_from(sorted(held)))
                offer, where = held.pop(gone)
                mig.destroy(where.slot)
                packing.take(left, offer, -1)
            elif fitting:
                offer, where = data.draw(st.sampled_from(fitting))
                device = mig.make(where)
                assert (device.profile_id, device.placement) == (where.profile_id, where.placement)
                held[offer.name] = offer, where
                packing.take(left, offer, 1)
            covered = [
                number for _, part in held.values() for number in part.placement.memory_slices
            ]
            assert len(covered) == len(set(covered))
    finally:
        for _, where in held.values():
            mig.destroy(where.slot)
