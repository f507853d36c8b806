from typing import Any

import pytest
from msgspec.structs import replace

import make
from dra_driver.devices.kinds import GpuPart
from dra_driver.devices.model import Gpu
from dra_driver.errors import ConfigError, DeviceError, TransientError
from dra_driver.sharing.base import DeviceUuid, Group, MigUnit, SharingPlan
from dra_driver.sharing.time_slicing import TimeSlicing, plan_of_others
from resource_nvidia_com.v1beta1.mig import MigDeviceConfig
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
    return Group(claim="uid", gpus=gpus or (GPU,), config=config)


def planned(card: Card, **facts: Any) -> tuple[TimeSlicing, SharingPlan]:
    strategy = TimeSlicing(card, card)
    (plan,) = strategy.plan([group(**facts)], 0.0)
    return strategy, plan


def test_each_gpu_has_a_plan_of_its_own() -> None:
    card = Card(EXCLUSIVE_PROCESS)
    plans = TimeSlicing(card, card).plan([group(make.gpu(0), make.gpu(1)), group(make.gpu(2))], 0.0)
    assert [plan.gpus for plan in plans] == [(make.gpu(number).uuid,) for number in range(3)]
    assert card.time_slices == [0, 0, 0], "each is asked by setting what it has"
    assert plans[0].changes == {
        "interval": "Long",
        "computeMode": EXCLUSIVE_PROCESS,
        "device": f"gpu-0 (NVIDIA H100 80GB HBM3, {make.gpu(0).uuid})",
        "foundInterval": "Default",
    }


def test_a_card_without_compute_modes_gets_none() -> None:
    card = Card(mode=None)
    strategy, plan = planned(card)
    strategy.apply(plan, 0.0)
    strategy.undo(plan, 0.0)
    assert card.mode is None


def test_a_compute_mode_that_somebody_else_has_set_stays() -> None:
    card = Card(EXCLUSIVE_PROCESS)
    strategy, plan = planned(card)
    strategy.apply(plan, 0.0)
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
        strategy.apply(plan, 0.0)
    del plan.changes["device"]  # type: ignore[attr-defined]
    with pytest.raises(ConfigError, match=rf"{GPU.uuid}.*: Not Supported"):
        strategy.apply(plan, 0.0)
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
    strategy.apply(plan, 0.0)
    strategy.undo(plan, 0.0)
    assert set(card.time_slices) == {2, {"Default": 0, "Short": 1, "Long": 3}[wanted]}
    assert card.time_slices[-1] == 2


def test_a_time_slice_that_is_there_already_is_neither_set_nor_reset() -> None:
    card = Card()
    card.says = 3
    strategy, plan = planned(card)
    strategy.apply(plan, 0.0)
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
    assert plan.changes["foundInterval"] == found


def test_a_time_slice_that_cannot_be_read_is_taken_for_the_default() -> None:
    card = Card()
    card.says = None
    for interval, slices in (("Long", [0, 3, 0]), ("Default", [0])):
        card.time_slices.clear()
        strategy, plan = planned(card, interval=interval)
        assert "foundInterval" not in plan.changes
        strategy.apply(plan, 0.0)
        strategy.undo(plan, 0.0)
        assert card.time_slices == slices


def test_a_plan_of_the_first_format_puts_the_default_back() -> None:
    card = Card()
    changes = {"interval": "Long", "computeMode": 0, "device": "gpu-1"}
    plan = SharingPlan(strategy="TimeSlicing", gpus=(GPU.uuid,), changes=changes)
    strategy = TimeSlicing(card, card)
    strategy.apply(plan, 0.0)
    strategy.undo(plan, 0.0)
    assert card.time_slices == [3, 0]


def test_what_a_former_claim_has_left_is_not_taken_for_an_admins() -> None:
    card = Card()
    card.says = 2
    strategy, owed = planned(card)
    strategy.apply(owed, 0.0)
    (plan,) = strategy.plan([replace(group(interval="Short"), owed=(owed,))], 0.0)
    strategy.apply(plan, 0.0)
    strategy.undo(plan, 0.0)
    assert card.time_slices == [2, 3, 1, 2]


def test_a_card_that_cannot_be_asked_is_not_planned_for() -> None:
    card = Card()
    card.refuse_slice = DeviceError("no answer")
    with pytest.raises(DeviceError, match="no answer"):
        planned(card)


def test_cards_without_preemption_are_refused_when_planned() -> None:
    old = make.gpu(1, cuda_compute_capability=(5, 2))
    strategy = TimeSlicing(Card(), Card())
    with pytest.raises(
        ConfigError, match=r"interval Long .*its architecture has no preemption; use"
    ):
        strategy.plan([group(old)], 0.0)
    assert strategy.plan([group(old, interval="Default")], 0.0)


def test_the_compute_mode_is_put_back_although_the_reset_fails() -> None:
    card = Card(EXCLUSIVE_PROCESS)
    strategy, plan = planned(card)
    strategy.apply(plan, 0.0)
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
    device = make.mig_device(1)
    group = Group(claim="uid", migs=(MigUnit(gpu=GPU, device=device),), config=config)
    (plan,) = strategy.plan([group], 0.0)
    assert (plan.strategy, plan.gpus) == ("TimeSlicing", ()), "no GPU is locked for it"
    assert plan.parts == (GpuPart(gpu=GPU.uuid, placement=device.placement),)
    strategy.apply(plan, 0.0)
    strategy.ensure(plan)
    strategy.undo(plan, 0.0)
    assert (card.time_slices, card.mode) == ([], EXCLUSIVE_PROCESS)
    assert strategy.describe(plan, DeviceUuid(device.uuid)).words == "no effect on MIG devices"


def test_a_time_slice_of_another_driver_is_undone_to_the_default_when_its_claim_ends() -> None:
    plan = plan_of_others(GPU.uuid, "gpu-1", make.gpu_config("TimeSlicing", interval="Long"))
    assert plan is not None
    card = Card()
    card.time_slices = [3]
    strategy = TimeSlicing(card, card)
    assert strategy.describe(plan, DeviceUuid(GPU.uuid)).words == "interval Long"
    strategy.undo(plan, 0.0)
    assert (card.time_slices, card.mode) == ([3, 0], 0)
    assert plan_of_others(GPU.uuid, "gpu-1", make.gpu_config("MPS")) is None
