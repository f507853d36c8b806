"""What pods and people are told of shares, and which GPUs cannot be shared as they are set."""

from typing import Any

import pytest
from msgspec.structs import replace

import make
from dra_driver.devices.device import equal_shares
from dra_driver.devices.shares import Division, ShareStrategy
from dra_driver.errors import DeviceError
from dra_driver.sharing.base import Group, Unit
from dra_driver.sharing.limiters import Limiter
from dra_driver.sharing.shares import Shares
from dra_driver.sharing.steps import Description, UseShares

GPU = make.gpu(0)
TENTH = Division(count=10, strategy=ShareStrategy.MPS, served_as="nvidia.com/gpu", combines=True)
SHARES = equal_shares(make.place(GPU), TENTH)


class Modes:
    """The compute mode that the GPU has."""

    def __init__(self, mode: int | None) -> None:
        self.mode = mode

    def compute_mode(self, _uuid: str) -> int | None:
        return self.mode


def plan(mode: int | None = 0, strategy_of_shares: ShareStrategy = ShareStrategy.MPS) -> UseShares:
    share = equal_shares(make.place(GPU), replace(TENTH, strategy=strategy_of_shares))[3]
    unit = Unit(name="gpu-0-share-3-of-10", request="a", gpu=GPU, device=share)
    config: Any = make.gpu_config(None)
    modes: Any = Modes(mode)
    group = Group(claim="uid", name="default/claim", config=config, units=(unit,))
    made = Shares(make.limited_by_mps(), modes).plan([group], 0.0)[0]
    assert isinstance(made, UseShares)
    return made


def described(by: Limiter) -> Description:
    return replace(plan(), limited_by=by).describe(SHARES[3])


@pytest.mark.parametrize(
    ("mode", "name"),
    [(1, "EXCLUSIVE_THREAD"), (2, "PROHIBITED"), (3, "EXCLUSIVE_PROCESS"), (9, "9")],
)
def test_an_exclusive_gpu_is_refused_with_its_mode(mode: int, name: str) -> None:
    with pytest.raises(DeviceError) as caught:
        plan(mode, ShareStrategy.TIME_SLICING)
    assert str(caught.value) == (
        f"the compute mode of {GPU.uuid} is {name}, in which processes cannot share it: set it "
        "back (nvidia-smi -i 0 -c DEFAULT)"
    )


@pytest.mark.parametrize("mode", [0, None])
def test_a_gpu_in_default_mode_or_without_modes_is_shared(mode: int | None) -> None:
    assert plan(mode, ShareStrategy.TIME_SLICING).name == "Shares"


@pytest.mark.parametrize(
    ("by", "field", "words", "enforced"),
    [
        (Limiter.MPS, "pinnedMemoryMiB", ("8192 MiB", "enforced by MPS"), "MPS"),
        (
            Limiter.CONTROL_GROUPS,
            "memoryMiB",
            ("8192 MiB", "enforced by control groups (NVML)"),
            "control groups (NVML)",
        ),
    ],
)
def test_a_limit_goes_by_what_enforces_it(
    by: Limiter, field: str, words: tuple[str, ...], enforced: str
) -> None:
    said = described(by)
    assert (said.settings["shares"], said.settings["of"]) == (1, 10)
    assert said.settings["enforcedBy"] == enforced
    assert {name for name in said.settings if name.endswith("emoryMiB")} == {field}
    assert said.settings[field] == 8192
    assert said.words[-2:] == words
    assert "whyNotBetter" not in said.settings


def test_unlimited_memory_is_reported_with_the_reason() -> None:
    said = plan(strategy_of_shares=ShareStrategy.TIME_SLICING).describe(SHARES[3])
    assert said.words[-1] == "nothing limits memory"
    assert "time-slicing divides no memory" in str(said.settings["whyNotBetter"])
    assert said.settings["enforcedBy"] is None
    assert not [name for name in said.settings if name.endswith("emoryMiB")]


def test_a_share_unknown_to_the_step_has_no_description() -> None:
    assert plan().describe(SHARES[4]) == Description()
