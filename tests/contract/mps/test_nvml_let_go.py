"""The supervisor has NVML open for moments only: it stands in nobody's way for a MIG mode."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from dra_driver.devices.model import GpuUuid, MigMode
from dra_driver.devices.nvml import NvmlLibrary, find_library
from mps_world import PATIENCE, World

CHILD = Path(__file__).with_name("child.py")


@pytest.fixture
def supervisor(world: World) -> Iterator[None]:
    """A supervisor in a process of its own."""
    process = subprocess.Popen(
        [sys.executable, CHILD, world.root, "never"], stdout=subprocess.DEVNULL
    )
    yield
    process.kill()
    process.wait(PATIENCE)


@pytest.mark.usefixtures("supervisor")
def test_a_mig_mode_changes_while_the_supervisor_serves_a_claim(world: World) -> None:
    domain = world.domain("claim", 0)
    world.ready(domain)
    library = NvmlLibrary(find_library(world.machine.driver_root))
    library.open()
    try:
        library.mig.set_mode(GpuUuid(world.uuid(1)), MigMode.ENABLED)
        world.gone(domain)
        library.mig.set_mode(GpuUuid(world.uuid(0)), MigMode.ENABLED)
    finally:
        library.close()
    assert world.modes()[0] == 0
