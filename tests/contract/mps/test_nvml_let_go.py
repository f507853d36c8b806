"""The supervisor has NVML open for moments only, and that of the driver that runs."""

import subprocess
from collections.abc import Iterator

import pytest

import driver_layouts
from dra_driver.devices.model import GpuUuid, MigMode
from dra_driver.devices.nvml.library import NvmlLibrary, find_library
from dra_driver.mps.supervisor.compute_modes import EXCLUSIVE_PROCESS
from driver_layouts import OLD
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


def test_an_older_driver_that_an_upgrade_left_behind_is_not_loaded(
    mps: MpsDomains, request: pytest.FixtureRequest
) -> None:
    root = mps.machine.driver_root
    driver_layouts.install(root, driver_layouts.RPM_FOLDER, version=OLD)
    request.getfixturevalue("supervisor")
    domain = mps.domain("claim", 0)
    mps.ready(domain)
    assert mps.compute_modes() == {0: EXCLUSIVE_PROCESS}
    links = sorted(mps.files.paths(domain.id).libraries.iterdir())
    assert {"libcuda.so.1", "libnvidia-ml.so.1"} <= {link.name for link in links}
    assert not [link for link in links if OLD in str(link.readlink())]
    mps.gone(domain)
