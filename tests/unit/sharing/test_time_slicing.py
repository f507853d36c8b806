from typing import Any

import pytest

import make
from dra_driver.devices.model import Gpu
from dra_driver.errors import ConfigError
from dra_driver.sharing.base import Group, Unit
from dra_driver.sharing.steps import TimeSlice
from dra_driver.sharing.time_slicing import TimeSlicing
from resource_nvidia_com.v1beta1.names import Interval

EXCLUSIVE_PROCESS = 3
GPU = make.gpu(1)


class Card:
    """One GPU's settings."""

    def __init__(self, mode: int | None = 0) -> None:
        self.mode = mode
        self.time_slices: list[int] = []

    def set_time_slice(self, uuid: str, number: int, deadline: float) -> bool:
        self.time_slices.append(number)
        return True

    def time_slice(self, uuid: str, deadline: float) -> int | None:
        return self.time_slices[-1] if self.time_slices else 0

    def recent(self, uuid: str) -> int | None:
        return None

    def compute_mode(self, uuid: str) -> int | None:
        return self.mode

    def set_compute_mode(self, uuid: str, mode: int) -> None:
        self.mode = mode


def group(*gpus: Gpu, interval: str = "Long") -> Group:
    config = make.gpu_config("TimeSlicing", interval=interval)
    units = tuple(
        Unit(name=f"gpu-{gpu.minor}", request="gpu", gpu=gpu, device=make.device(gpu))
        for gpu in gpus or (GPU,)
    )
    return Group(claim="uid", units=units, config=config)


def planned(card: Card, **facts: Any) -> tuple[TimeSlicing, TimeSlice]:
    strategy = TimeSlicing(card, card)
    (plan,) = strategy.plan([group(**facts)], 0.0)
    assert isinstance(plan, TimeSlice)
    return strategy, plan


def test_a_card_without_compute_modes_gets_none() -> None:
    card = Card(mode=None)
    strategy, plan = planned(card)
    strategy.do(plan, 0.0)
    strategy.undo(plan, 0.0)
    assert card.mode is None


def test_a_compute_mode_that_somebody_else_has_set_stays() -> None:
    card = Card(EXCLUSIVE_PROCESS)
    strategy, plan = planned(card)
    strategy.do(plan, 0.0)
    card.mode = 2
    strategy.undo(plan, 0.0)
    assert card.mode == 2


def test_a_card_is_asked_once_for_its_time_slices() -> None:
    card = Card()
    strategy, _ = planned(card)
    strategy.plan([group(), group(make.gpu(2), interval="Default")], 0.0)
    assert card.time_slices == [0]


def test_an_unknown_earlier_time_slice_becomes_the_default() -> None:
    card = Card()
    plan = TimeSlice(devices=(make.device(GPU),), interval=Interval.LONG, card="gpu-1")
    strategy = TimeSlicing(card, card)
    strategy.do(plan, 0.0)
    strategy.undo(plan, 0.0)
    assert card.time_slices == [3, 0]


def test_cards_without_preemption_are_refused_when_planned() -> None:
    old = make.gpu(1, cuda_compute_capability=(5, 2))
    strategy = TimeSlicing(Card(), Card())
    with pytest.raises(
        ConfigError, match=r"interval Long .*its architecture has no preemption; use .*'7\.0\.0'"
    ):
        strategy.plan([group(old)], 0.0)
    assert strategy.plan([group(old, interval="Default")], 0.0)
    assert strategy.plan([group(make.gpu(1, cuda_compute_capability=(6, 0)))], 0.0)
