"""What tests have for a while: claims, an MPS supervisor, a control group, a MIG device."""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
from testbed.api import Object
from testbed.claims import gpu_config

from dra_driver.devices.device import Mig
from dra_driver.devices.driver_root.programs import MPS_CONTROL, find_program
from dra_driver.devices.model import MigMode
from dra_driver.devices.nvml.memory_limits import FIRST_DRIVER
from hardware.run import Run
from hardware.stage import Prepared

MEMORY_LIMIT_MIB, THREADS = 2048, 50
MPS = gpu_config(
    strategy="MPS",
    mpsConfig={
        "defaultActiveThreadPercentage": THREADS,
        "defaultPinnedDeviceMemoryLimit": f"{MEMORY_LIMIT_MIB}Mi",
    },
)


def whole(run: Run) -> str:
    """Return the name of the card as a device; skips if it is not offered as a whole."""
    if run.card.facts().mig_mode is MigMode.ENABLED:
        pytest.skip("the card is in MIG mode, and is not offered as a whole")
    return f"gpu-{run.card.gpu.minor}"


@contextmanager
def prepared(run: Run, devices: Sequence[str], config: Object | None = None) -> Iterator[Prepared]:
    """Prepare a claim; afterwards it is unprepared, and nothing of it is left."""
    stage = run.stage
    for name in devices:
        stage.wait_device(name)
    with run.timed("prepare"):
        claim = stage.prepare(devices, config)
    if not stage.place.cdi_files():
        pytest.fail("the claim is prepared, and there is no CDI spec")
    try:
        yield claim
    finally:
        with run.timed("unprepare"):
            stage.unprepare(claim)
    if left := stage.place.left_over():
        pytest.fail(f"after the claim's end there is still {', '.join(left)}")


@contextmanager
def supervised(run: Run) -> Iterator[None]:
    """Run an MPS supervisor beside the driver; skips if that is impossible."""
    if os.geteuid() != 0:
        pytest.skip("the MPS supervisor needs root")
    if find_program(run.card.root, MPS_CONTROL) is None:
        pytest.skip(f"{MPS_CONTROL} is not below {run.card.root}")
    run.stage.start_supervisor(sets_compute_mode=run.allows("compute-mode"))
    try:
        yield
    finally:
        run.stage.stop_supervisor()


def free_place(run: Run) -> Mig:
    """Return where a MIG device can be made; skips if it cannot."""
    place = run.card.free_place()
    if place is None:
        pytest.skip("the card has no MIG or no room for a MIG device, or its mode needs a reset")
    return place


@contextmanager
def own_group(run: Run) -> Iterator[Path]:
    """Make a control group whose memory can be limited; skips if that is impossible."""
    if run.group is None:
        pytest.skip("there are no control groups of cgroup v2 here")
    with run.card.nvml() as library:
        if not library.knows_memory_limits():
            version = library.driver_version()
            pytest.skip(f"the GPU driver {version} is older than R{FIRST_DRIVER}")
    try:
        run.group.mkdir(exist_ok=True)
    except OSError as error:
        pytest.skip(f"{run.group} cannot be made: {error.strerror}")
    yield run.group
