"""Simulated machines for the tests of NVML's contract, and pynvml bound to one of them."""

import contextlib
import ctypes
from collections.abc import Callable, Iterator
from pathlib import Path

import pynvml
import pytest

from dra_driver.simulator.driver_root import Options
from dra_driver.simulator.machine import Machine
from dra_driver.simulator.profile import Profile

MakeMachine = Callable[..., Machine]
Nvml = Callable[[Machine], contextlib.AbstractContextManager[None]]


@pytest.fixture
def make_machine(tmp_path: Path) -> MakeMachine:
    def make(profile: str | Profile = "a100x8", name: str = "root", **options: object) -> Machine:
        chosen = Options(**{"userspace": "stand-in", **options})  # type: ignore[arg-type]
        return Machine.create(tmp_path / name, profile, chosen)

    return make


@pytest.fixture
def machine(make_machine: MakeMachine) -> Machine:
    return make_machine()


@contextlib.contextmanager
def _initialised(machine: Machine) -> Iterator[None]:
    pynvml.nvmlLib = ctypes.CDLL(str(machine.library))
    pynvml._nvmlGetFunctionPointer_cache.clear()
    try:
        pynvml.nvmlInit()
        yield
    finally:
        while pynvml.nvmlLib.nvmlShutdown() == pynvml.NVML_SUCCESS:
            pass  # a test may have initialised more than once
        pynvml.nvmlLib = None
        pynvml._nvmlGetFunctionPointer_cache.clear()


@pytest.fixture
def nvml() -> Nvml:
    """Lets pynvml speak to a machine's library; each machine's is loaded beside the others."""
    return _initialised


@pytest.fixture
def session(machine: Machine, nvml: Nvml) -> Iterator[Machine]:
    """A machine with pynvml initialised on it."""
    with nvml(machine):
        yield machine
