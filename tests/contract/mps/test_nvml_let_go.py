"""The supervisor has NVML open for moments only: it stands in nobody's way for a MIG mode."""

import subprocess
from collections.abc import Iterator

import pytest

from dra_driver.devices.model import GpuUuid, MigMode
from dra_driver.devices.nvml import NvmlLibrary, find_library
from worlds import child
from worlds.configs import PATIENCE
from worlds.mps import MpsDomains


@pytest.fixture
def supervisor(mps: MpsDomains) -> Iterator[None]:
    """A supervisor in a process of its own."""
    process = child.start("supervise", mps.root, "never", stdout=subprocess.DEVNULL)
    yield
    process.kill()
    process.wait(PATIENCE)


@pytest.mark.usefixtures("supervisor")
def test_a_mig_mode_changes_while_the_supervisor_serves_a_claim(mps: MpsDomains) -> None:
    domain = mps.domain("claim", 0)
    mps.ready(domain)
    library = NvmlLibrary(find_library(mps.machine.driver_root))
    library.open()
    try:
        library.mig.set_mode(GpuUuid(mps.uuid(1)), MigMode.ENABLED)
        mps.gone(domain)
        library.mig.set_mode(GpuUuid(mps.uuid(0)), MigMode.ENABLED)
    finally:
        library.close()
    assert mps.compute_modes() == {}
