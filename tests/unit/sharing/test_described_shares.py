"""What pods and people are told of shares, and which GPUs cannot be shared as they are set."""

from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

import make
from dra_driver.devices.shares import Division, Share, ShareStrategy
from dra_driver.errors import DeviceError, StateError
from dra_driver.mps.domain import DomainId
from dra_driver.mps.files import DomainPaths, MpsFiles
from dra_driver.sharing.base import DeviceUuid, Group, ShareUnit, SharingPlan, share_key
from dra_driver.sharing.enforcement import Backend, MemoryPart, part_json
from dra_driver.sharing.shares import Shares

GPU = make.gpu(0)
KEY = share_key(DeviceUuid(GPU.uuid), "3")
TENTH = Division(count=10, strategy=ShareStrategy.MPS, served_as="nvidia.com/gpu", combines=True)


class Server:
    """Where a supervisor's domains would be, and the compute mode that the GPU has."""

    def __init__(self, mode: int | None = 0) -> None:
        self.mode = mode

    def paths(self, domain: DomainId) -> DomainPaths:
        return MpsFiles(root=Path("/run/mps")).paths(domain)

    def compute_mode(self, _uuid: str) -> int | None:
        return self.mode


def strategy(server: Any) -> Shares:
    return Shares(
        server, server, server, lambda: 0.0, memory=make.limited_by_mps(), ready_seconds=1.0
    )


def plan(
    mode: int | None = 0, strategy_of_shares: ShareStrategy = ShareStrategy.MPS
) -> SharingPlan:
    division = replace(TENTH, strategy=strategy_of_shares)
    share = Share(of=GPU, index=3, division=division)
    unit = ShareUnit(name="gpu-0-share-3-of-10", request="a", gpu=GPU, share=share)
    config: Any = make.gpu_config(None)
    group = Group(claim="uid", name="default/claim", config=config, shares=(unit,))
    (made,) = strategy(Server(mode)).plan([group], 0.0)
    return made


def limited(by: Backend, why: str = "") -> SharingPlan:
    made = plan()
    memory = part_json(MemoryPart(by=by, of_device=by, why=why))
    return replace(made, changes={**made.changes, "memory": memory})


@pytest.mark.parametrize(
    ("mode", "name"),
    [(1, "EXCLUSIVE_THREAD"), (2, "PROHIBITED"), (3, "EXCLUSIVE_PROCESS"), (9, "9")],
)
def test_a_gpu_that_lets_no_second_process_in_is_refused_by_the_name_of_its_mode(
    mode: int, name: str
) -> None:
    with pytest.raises(DeviceError) as caught:
        plan(mode, ShareStrategy.TIME_SLICING)
    assert str(caught.value) == (
        f"the compute mode of {GPU.uuid} is {name}, in which processes cannot share it: set it "
        "back (nvidia-smi -i 0 -c DEFAULT)"
    )


@pytest.mark.parametrize("mode", [0, None])
def test_a_gpu_that_lets_all_in_or_has_no_modes_is_shared(mode: int | None) -> None:
    assert plan(mode, ShareStrategy.TIME_SLICING).strategy == "Shares"


@pytest.mark.parametrize(
    ("by", "field", "words", "enforced"),
    [
        (Backend.MPS, "pinnedMemoryMiB", "8192 MiB, enforced by MPS", "MPS"),
        (
            Backend.CONTROL_GROUPS,
            "memoryMiB",
            "8192 MiB, enforced by control groups (NVML)",
            "control groups (NVML)",
        ),
    ],
)
def test_a_limit_goes_by_what_enforces_it(
    by: Backend, field: str, words: str, enforced: str
) -> None:
    said = Shares.describe(limited(by), KEY)
    assert (said.settings["shares"], said.settings["of"]) == (1, 10)
    assert said.settings["enforcedBy"] == enforced
    assert {name for name in said.settings if name.endswith("emoryMiB")} == {field}
    assert said.settings[field] == 8192
    assert said.words.endswith(words)
    assert "whyNotBetter" not in said.settings


def test_where_nothing_limits_memory_this_is_said_and_why() -> None:
    said = Shares.describe(limited(Backend.NOTHING, why="the driver is too old"), KEY)
    assert said.words.endswith("nothing limits memory")
    assert said.settings["whyNotBetter"] == "the driver is too old"
    assert said.settings["enforcedBy"] is None
    assert not [name for name in said.settings if name.endswith("emoryMiB")]


def test_a_share_that_the_plan_does_not_know_is_named() -> None:
    other = share_key(DeviceUuid(GPU.uuid), "4")
    with pytest.raises(StateError, match=f"plan for shares does not know {other}"):
        Shares.describe(plan(), other)
