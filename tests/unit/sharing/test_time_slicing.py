from typing import Any

import pytest
from msgspec.structs import replace

import make
from dra_driver.devices.device import DeviceKey
from dra_driver.devices.model import Gpu
from dra_driver.errors import ConfigError, DeviceError, TransientError
from dra_driver.sharing.base import Group, Unit
from dra_driver.sharing.steps import TimeSlice
from dra_driver.sharing.time_slicing import TimeSlicing, step_of_others
from resource_nvidia_com.v1beta1.mig import MigDeviceConfig
from resource_nvidia_com.v1beta1.names import Interval
from resource_nvidia_com.v1beta1.sharing import MigDeviceSharing, SharingStrategy

EXCLUSIVE_PROCESS = 3
GPU = make.gpu(1)


class Card:
    """One GPU's settings, and what refuses."""

    def __init__(self, mode: int | None = 0) -> None:
        self.mode = mode
        self.time_slices: list[int] = []
        self.says: int | None = 0
        self.recently: int | None = None
        self.has_slices = True
        self.refuse_slice: DeviceError | None = None
        self.refuse_mode: TransientError | None = None

    def set_time_slice(self, uuid: str, number: int, deadline: float) -> bool:
        if self.refuse_slice:
            raise self.refuse_slice
        if self.has_slices:
            self.time_slices.append(number)
        return self.has_slices

    def time_slice(self, uuid: str, deadline: float) -> int | None:
        return self.time_slices[-1] if self.time_slices else self.says

    def recent(self, uuid: str) -> int | None:
        return self.recently

    def compute_mode(self, uuid: str) -> int | None:
        if self.refuse_mode:
            raise self.refuse_mode
        return self.mode

    def set_compute_mode(self, uuid: str, mode: int) -> None:
        if self.refuse_mode:
            raise self.refuse_mode
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


def test_each_gpu_has_a_plan_of_its_own() -> None:
    card = Card(EXCLUSIVE_PROCESS)
    plans = TimeSlicing(card, card).plan([group(make.gpu(0), make.gpu(1)), group(make.gpu(2))], 0.0)
    assert [plan.gpus for plan in plans] == [(make.gpu(number).uuid,) for number in range(3)]
    assert card.time_slices == [0, 0, 0], "each is asked by setting what it has"
    assert plans[0] == TimeSlice(
        devices=(make.device(make.gpu(0)),),
        interval=Interval.LONG,
        found_interval=Interval.DEFAULT,
        found_mode=EXCLUSIVE_PROCESS,
        card=f"gpu-0 (NVIDIA H100 80GB HBM3, {make.gpu(0).uuid})",
    )


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


def test_a_card_without_time_slices_is_refused_when_planned() -> None:
    card = Card(EXCLUSIVE_PROCESS)
    card.has_slices = False
    strategy = TimeSlicing(card, card)
    for _ in range(2):
        with pytest.raises(
            ConfigError, match=r"interval Long cannot be set on gpu-1 .*: Not Supported"
        ):
            strategy.plan([group()], 0.0)
    assert strategy.plan([group(interval="Default")], 0.0)
    card.has_slices = True  # the driver was upgraded, say
    assert strategy.plan([group()], 0.0)


def test_a_card_that_refuses_only_when_set_keeps_its_compute_mode() -> None:
    card = Card(EXCLUSIVE_PROCESS)
    strategy, plan = planned(card)
    card.has_slices = False
    with pytest.raises(ConfigError, match=r"gpu-1 .*: Not Supported"):
        strategy.do(plan, 0.0)
    with pytest.raises(ConfigError, match=rf"{GPU.uuid}.*: Not Supported"):
        strategy.do(replace(plan, card=""), 0.0)
    assert card.mode == EXCLUSIVE_PROCESS


def test_a_card_is_asked_once_for_its_time_slices() -> None:
    card = Card()
    strategy, _ = planned(card)
    strategy.plan([group(), group(make.gpu(2), interval="Default")], 0.0)
    assert card.time_slices == [0]


@pytest.mark.parametrize("wanted", ["Default", "Short", "Long"])
def test_the_time_slice_that_was_there_is_put_back(wanted: str) -> None:
    card = Card()
    card.says = 2
    strategy, plan = planned(card, interval=wanted)
    strategy.do(plan, 0.0)
    strategy.undo(plan, 0.0)
    assert set(card.time_slices) == {2, {"Default": 0, "Short": 1, "Long": 3}[wanted]}
    assert card.time_slices[-1] == 2


def test_a_time_slice_that_is_there_already_is_neither_set_nor_reset() -> None:
    card = Card()
    card.says = 3
    strategy, plan = planned(card)
    strategy.do(plan, 0.0)
    strategy.undo(plan, 0.0)
    assert card.time_slices == []


@pytest.mark.parametrize(
    ("recently", "wanted", "found"),
    [
        (None, "Long", "Medium"),
        (0, "Long", "Default"),
        (1, "Long", "Short"),
        (0, "Default", "Default"),
        (3, "Default", "Long"),
        (3, "Long", "Medium"),
    ],
)
def test_only_the_default_is_taken_to_stand_because_it_did_a_moment_ago(
    recently: int | None, wanted: str, found: str
) -> None:
    card = Card()
    card.recently, card.says = recently, 2
    _, plan = planned(card, interval=wanted)
    assert plan.found_interval == found


def test_a_time_slice_that_cannot_be_read_is_taken_for_the_default() -> None:
    card = Card()
    card.says = None
    for interval, slices in (("Long", [0, 3, 0]), ("Default", [0])):
        card.time_slices.clear()
        strategy, plan = planned(card, interval=interval)
        assert plan.found_interval is None
        strategy.do(plan, 0.0)
        strategy.undo(plan, 0.0)
        assert card.time_slices == slices


def test_where_it_is_not_known_what_stood_before_the_default_is_put_back() -> None:
    card = Card()
    plan = TimeSlice(devices=(make.device(GPU),), interval=Interval.LONG, card="gpu-1")
    strategy = TimeSlicing(card, card)
    strategy.do(plan, 0.0)
    strategy.undo(plan, 0.0)
    assert card.time_slices == [3, 0]


def test_what_a_former_claim_has_left_is_not_taken_for_an_admins() -> None:
    card = Card()
    card.says = 2
    strategy, owed = planned(card)
    strategy.do(owed, 0.0)
    gpus = (GPU, make.gpu(2))
    plan, beside = strategy.plan([replace(group(*gpus, interval="Short"), owed=(owed,))], 0.0)
    assert isinstance(plan, TimeSlice)
    assert isinstance(beside, TimeSlice)
    assert beside.found_interval == "Long", "nothing is owed there"
    strategy.do(plan, 0.0)
    strategy.undo(plan, 0.0)
    assert card.time_slices == [2, 3, 3, 1, 2]


def test_a_card_that_cannot_be_asked_is_not_planned_for() -> None:
    card = Card()
    card.refuse_slice = DeviceError("no answer")
    with pytest.raises(DeviceError, match="no answer"):
        planned(card)


def test_cards_without_preemption_are_refused_when_planned() -> None:
    old = make.gpu(1, cuda_compute_capability=(5, 2))
    strategy = TimeSlicing(Card(), Card())
    with pytest.raises(
        ConfigError, match=r"interval Long .*its architecture has no preemption; use .*'7\.0\.0'"
    ):
        strategy.plan([group(old)], 0.0)
    assert strategy.plan([group(old, interval="Default")], 0.0)


def test_the_compute_mode_is_put_back_although_the_reset_fails() -> None:
    card = Card(EXCLUSIVE_PROCESS)
    strategy, plan = planned(card)
    strategy.do(plan, 0.0)
    card.refuse_slice = DeviceError("no")
    with pytest.raises(DeviceError, match="no"):
        strategy.undo(plan, 0.0)
    assert card.mode == EXCLUSIVE_PROCESS


def test_a_gpu_that_does_not_say_its_mode_is_not_planned_for() -> None:
    card = Card()
    card.refuse_mode = TransientError("being opened")
    with pytest.raises(TransientError, match="being opened"):
        planned(card)


def test_on_a_mig_device_there_is_nothing_to_do_but_to_say_so() -> None:
    config = MigDeviceConfig(sharing=MigDeviceSharing(strategy=SharingStrategy.TIME_SLICING))
    card = Card(EXCLUSIVE_PROCESS)
    strategy = TimeSlicing(card, card)
    device = make.device(make.mig_device(1))
    unit = Unit(name="mig", request="mig", gpu=GPU, device=device)
    (plan,) = strategy.plan([Group(claim="uid", units=(unit,), config=config)], 0.0)
    assert isinstance(plan, TimeSlice)
    assert (plan.name, plan.gpus) == ("TimeSlicing", ()), "no GPU is locked for it"
    assert plan.devices == (device,)
    strategy.do(plan, 0.0)
    strategy.ensure(plan)
    strategy.undo(plan, 0.0)
    assert (card.time_slices, card.mode) == ([], EXCLUSIVE_PROCESS)
    assert plan.describe(unit.key).words == ("no effect on MIG devices",)


def test_a_time_slice_of_another_driver_is_undone_to_the_default_when_its_claim_ends() -> None:
    plan = step_of_others(GPU.uuid, "gpu-1", make.gpu_config("TimeSlicing", interval="Long"))
    assert plan is not None
    card = Card()
    card.time_slices = [3]
    strategy = TimeSlicing(card, card)
    assert plan.describe(DeviceKey(GPU.uuid)).words == ("interval Long",)
    strategy.undo(plan, 0.0)
    assert (card.time_slices, card.mode) == ([3, 0], 0)
    assert step_of_others(GPU.uuid, "gpu-1", make.gpu_config("MPS")) is None
