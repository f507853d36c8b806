"""Compute modes while domains come to a GPU and leave it."""

import pytest

from dra_driver.errors import DeviceError
from dra_driver.mps.domain import DomainId
from dra_driver.mps.supervisor.compute_modes import (
    DEFAULT,
    EXCLUSIVE_PROCESS,
    ComputeModes,
    NvmlModes,
)

ONE, TWO = DomainId("one"), DomainId("two")
GPU, OTHER = "GPU-1", "GPU-2"
PROHIBITED = 2


class PlayedModes(NvmlModes):
    """The compute modes of GPUs; None is a card that has none."""

    def __init__(self) -> None:
        self.modes: dict[str, int | None] = dict.fromkeys((GPU, OTHER), DEFAULT)
        self.writes = 0
        self.refuses = False
        self.is_open = False

    def compute_mode(self, uuid: str) -> int | None:
        if self.refuses:
            raise DeviceError("refused")
        self.is_open = True
        return self.modes[uuid]

    def set_compute_mode(self, uuid: str, mode: int) -> None:
        if self.refuses:
            raise DeviceError("refused")
        self.writes += 1
        self.modes[uuid] = mode

    def close(self) -> None:
        self.is_open = False


def played() -> PlayedModes:
    return PlayedModes()


def enter(modes: ComputeModes, domain: DomainId, uuid: str = GPU) -> int | None:
    found = modes.acquire(domain, uuid)
    modes.set_exclusive(uuid)
    return found


def test_the_driver_may_be_missing_until_a_domain_comes() -> None:
    adapter = played()
    adapter.refuses = True
    modes = ComputeModes(adapter)
    with pytest.raises(DeviceError):
        modes.acquire(ONE, GPU)
    adapter.refuses = False
    assert modes.acquire(ONE, GPU) == DEFAULT


def test_nvml_stays_open_for_the_second_of_two_users() -> None:
    adapter = played()
    modes = ComputeModes(adapter)
    with modes.using():
        with modes.using():
            enter(modes, ONE)
        assert adapter.is_open
    assert not adapter.is_open


def test_modes_found_by_an_earlier_supervisor_are_restored() -> None:
    adapter = played()
    adapter.modes[GPU] = EXCLUSIVE_PROCESS
    modes = ComputeModes(adapter)
    modes.remember(ONE, {GPU: DEFAULT})
    assert enter(modes, TWO) == DEFAULT
    modes.release(TWO, GPU)
    assert adapter.modes[GPU] == EXCLUSIVE_PROCESS
    modes.release(ONE, GPU)
    assert adapter.modes[GPU] == DEFAULT


def test_a_domain_that_uses_a_gpu_already_writes_nothing() -> None:
    adapter = played()
    modes = ComputeModes(adapter)
    assert [enter(modes, ONE), enter(modes, ONE)] == [DEFAULT, DEFAULT]
    assert adapter.writes == 1


def test_a_gpu_that_was_exclusive_before_stays_so() -> None:
    adapter = played()
    adapter.modes[GPU] = EXCLUSIVE_PROCESS
    modes = ComputeModes(adapter)
    enter(modes, ONE)
    modes.release(ONE, GPU)
    assert (adapter.modes[GPU], adapter.writes) == (EXCLUSIVE_PROCESS, 0)


def test_a_mode_that_somebody_set_meanwhile_stays() -> None:
    adapter = played()
    modes = ComputeModes(adapter)
    enter(modes, ONE)
    adapter.modes[GPU] = PROHIBITED
    modes.release(ONE, GPU)
    assert adapter.modes[GPU] == PROHIBITED


def test_a_card_without_compute_modes_has_nothing_to_record() -> None:
    adapter = played()
    adapter.modes[GPU] = None
    assert ComputeModes(adapter).acquire(ONE, GPU) is None
