"""Making and destroying MIG devices over a GPU in memory whose every step can be made to fail."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import pytest

import make
from dra_driver.devices.device import Mig, mig_at
from dra_driver.devices.mig.making import MigInstances
from dra_driver.devices.model import (
    BareInstance,
    GpuUuid,
    Instance,
    MigMode,
    MigUuid,
    Placement,
)
from dra_driver.errors import DeviceError, DriverError, HeldError, TransientError

GPU = make.gpu(0).uuid


@dataclass
class Card:
    """An H100. Steps whose names are in `failing` fail; all are remembered."""

    is_on: bool = False
    present: dict[int, Instance] = field(default_factory=dict)
    failing: dict[str, DriverError] = field(default_factory=dict)
    steps: list[str] = field(default_factory=list)

    def _step(self, name: str) -> None:
        self.steps.append(name)
        if name in self.failing:
            raise self.failing[name]

    def mode(self, gpu: GpuUuid) -> MigMode:
        return MigMode.ENABLED if self.is_on else MigMode.DISABLED

    def set_mode(self, gpu: GpuUuid, mode: MigMode) -> None:
        self._step("on" if mode is MigMode.ENABLED else "off")
        self.is_on = mode is MigMode.ENABLED

    def instances(self, gpu: GpuUuid) -> tuple[Instance, ...]:
        return tuple(self.present.values())

    def create_gpu_instance(self, gpu: GpuUuid, profile_id: int, placement: Placement) -> int:
        self._step("make gi")
        (profile,) = (one for one in make.H100_PROFILES if one.id == profile_id)
        self.present[7] = BareInstance(
            parent=gpu, profile=profile, placement=placement, gpu_instance=7
        )
        return 7

    def create_compute_instance(self, gpu: GpuUuid, gpu_instance: int) -> tuple[int, MigUuid]:
        self._step("make ci")
        bare = self.present[gpu_instance]
        device = make.mig_device(0, bare.profile.name, bare.placement.start, gpu_instance=7)
        self.present[gpu_instance] = device
        return 0, device.uuid

    def destroy_compute_instance(
        self, gpu: GpuUuid, gpu_instance: int, compute_instance: int
    ) -> None:
        self._step("destroy ci")
        was = self.present[gpu_instance]
        self.present[gpu_instance] = BareInstance(
            parent=gpu, profile=was.profile, placement=was.placement, gpu_instance=gpu_instance
        )

    def destroy_gpu_instance(self, gpu: GpuUuid, gpu_instance: int) -> None:
        self._step("destroy gi")
        del self.present[gpu_instance]


def on(card: Card) -> MigInstances:
    @contextmanager
    def lend() -> Iterator[Card]:
        yield card

    return MigInstances(lend)


def partition(profile: str = "3g.40gb", start: int = 4) -> Mig:
    device = make.mig_device(0, profile, start)
    return mig_at(GPU, device.profile, device.placement)


def bare(profile: str = "3g.40gb", start: int = 4, *inside: int) -> BareInstance:
    device = make.mig_device(0, profile, start)
    return BareInstance(
        parent=GPU,
        profile=device.profile,
        placement=device.placement,
        gpu_instance=7,
        compute_instances=inside,
    )


@pytest.mark.parametrize("step", ["make gi", "make ci"])
def test_whatever_fails_everything_is_as_before(step: str) -> None:
    card = Card(is_on=True, failing={step: TransientError("busy")})
    with pytest.raises(TransientError, match="busy"):
        on(card).make(partition())

    assert card.present == {}


def test_a_step_that_cannot_be_taken_back_does_not_hide_the_cause() -> None:
    failing = {"make ci": DeviceError("no room"), "destroy gi": TransientError("busy")}
    card = Card(is_on=True, failing=failing)
    with pytest.raises(DeviceError, match="no room"):
        on(card).make(partition())

    assert set(card.present) == {7}
    assert card.steps == ["make gi", "make ci", "destroy gi"]


def test_a_gpu_instance_left_by_a_crash_is_completed() -> None:
    card = Card(is_on=True, present={7: bare()})

    made = on(card).make(partition()).instance
    assert made is not None
    assert made.gpu_instance == 7
    assert card.steps == ["make ci"]


def test_a_gpu_instance_left_by_a_crash_stays_when_it_cannot_be_completed() -> None:
    card = Card(is_on=True, present={7: bare()}, failing={"make ci": TransientError("busy")})
    with pytest.raises(TransientError):
        on(card).make(partition())

    assert card.present == {7: bare()}


def test_a_gpu_instance_divided_by_hand_is_not_taken() -> None:
    card = Card(is_on=True, present={7: bare("3g.40gb", 4, 0, 1)})
    with pytest.raises(DeviceError, match="divided among several compute instances"):
        on(card).make(partition())

    assert card.steps == []


def test_destroying_can_be_repeated_from_wherever_it_stopped() -> None:
    card = Card(failing={"destroy gi": TransientError("in use")})
    on(card).make(partition())
    with pytest.raises(TransientError, match="in use"):
        on(card).destroy(partition().slot)
    card.failing.clear()
    on(card).destroy(partition().slot)
    on(card).destroy(partition().slot)

    assert card.present == {}
    assert card.steps.count("destroy ci") == 1


def test_another_device_at_the_same_place_is_not_destroyed() -> None:
    card = Card(is_on=True, present={7: bare("1g.20gb", 4)})
    on(card).destroy(partition("2g.20gb", 4).slot)

    assert set(card.present) == {7}


def test_a_refused_switch_gives_advice_without_visible_holders() -> None:
    card = Card(failing={"on": HeldError("in use", minor=3)})
    with pytest.raises(HeldError) as refused:
        on(card).set_mode(GPU, MigMode.ENABLED)
    assert refused.value.minor == 3
    assert str(refused.value) == (
        f"{GPU} (/dev/nvidia3) cannot be switched to MIG mode while others have it open, which "
        "are not visible from here; find them (fuser -v /dev/nvidia3 on the node; often"
        " DCGM, a display server, or nvidia-smi in a loop) and end these processes, or have no MIG"
        " devices made on this node (--mig existing)"
    )


def test_a_refused_switch_off_blames_no_setting() -> None:
    card = Card(is_on=True, failing={"off": HeldError("in use", minor=0)})
    with pytest.raises(HeldError, match=r"cannot be turned off while others .* processes$"):
        on(card).set_mode(GPU, MigMode.DISABLED)
