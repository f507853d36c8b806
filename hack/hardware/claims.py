"""Steps that prepare and unprepare a claim of each kind, by the driver's socket."""

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from testbed.api import Object
from testbed.claims import gpu_config

from dra_driver.devices.device import Device, name_of
from dra_driver.devices.driver_root.programs import MPS_CONTROL, find_program
from dra_driver.devices.model import MigDevice, MigMode
from hardware.mig import free_place
from hardware.run import Run, step
from hardware.stage import Prepared
from hardware.steps import Change, LeftOut, Unexpected

MEMORY_LIMIT_MIB, THREADS = 2048, 50
MPS = gpu_config(
    strategy="MPS",
    mpsConfig={
        "defaultActiveThreadPercentage": THREADS,
        "defaultPinnedDeviceMemoryLimit": f"{MEMORY_LIMIT_MIB}Mi",
    },
)
_SHORT = gpu_config(strategy="TimeSlicing", timeSlicingConfig={"interval": "Short"})
_SHARES = """\
version: v1
sharing: {HOW: {failRequestsGreaterThanOne: true, resources: [{name: nvidia.com/gpu, replicas: 4}]}}
"""


def whole(run: Run) -> str:
    """Return the name of the card as a device; LeftOut if it is not offered as a whole."""
    if run.card.facts().mig_mode is MigMode.ENABLED:
        raise LeftOut("the card is in MIG mode, and is not offered as a whole")
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
        raise Unexpected("the claim is prepared, and there is no CDI spec")
    try:
        run.reached("prepared")
        yield claim
    finally:
        with run.timed("unprepare"):
            stage.unprepare(claim)
    if left := stage.place.left_over():
        raise Unexpected(f"after the claim's end there is still {', '.join(left)}")


@step("claim-gpu", "prepares and unprepares a claim for the card")
def gpu(run: Run) -> None:
    with prepared(run, [whole(run)]) as claim:
        run.note(f"CDI devices: {len(claim.cdi_devices)}")
        with run.timed("prepare again"):
            run.stage.kubelet.must_prepare(claim.name)


@step(
    "claim-time-slicing", "prepares a claim that sets the time-slice to Short", changes="time-slice"
)
def time_slicing(run: Run) -> None:
    before = run.card.settings().time_slice
    with prepared(run, [whole(run)], _SHORT):
        if (number := run.card.time_slice()) not in (1, None):
            raise Unexpected(f"the time-slice is {number} while the claim has it Short (1)")
        run.note("the time-slice is Short while the claim is prepared" if number else
                 "the time-slice cannot be read")  # fmt: skip
    if (now := run.card.time_slice()) not in (0, None):
        raise Unexpected(f"the time-slice was {before}, and is {now} after the claim's end")


@step("claim-share", "prepares one for a quarter of the card, by time-slicing")
def share(run: Run) -> None:
    _share(run, "timeSlicing")


@step(
    "claim-share-mps",
    "prepares a claim for a quarter of the card by MPS",
    changes="mps",
    also="compute-mode",
)
def share_by_mps(run: Run) -> None:
    with supervised(run):
        _share(run, "mps")


def _share(run: Run, how: str) -> None:
    name = f"{whole(run)}-single-share-0-of-4"
    stage = run.stage
    stage.shares.write_text(_SHARES.replace("HOW", how))
    try:
        with run.timed("divided"):
            stage.wait_device(name)
        with prepared(run, [name]):
            pass
    finally:
        stage.shares.write_text("version: v1\n")


@contextmanager
def supervised(run: Run) -> Iterator[None]:
    """Run an MPS supervisor beside the driver; LeftOut if that is impossible."""
    if os.geteuid() != 0:
        raise LeftOut("the MPS supervisor needs root")
    if find_program(run.card.root, MPS_CONTROL) is None:
        raise LeftOut(f"{MPS_CONTROL} is not below {run.card.root}")
    run.stage.start_supervisor(sets_compute_mode=run.allows(Change.COMPUTE_MODE))
    try:
        yield
    finally:
        run.stage.stop_supervisor()


@step("claim-mps", "prepares a claim under MPS with limits", changes="mps", also="compute-mode")
def mps(run: Run) -> None:
    name = whole(run)
    with supervised(run), prepared(run, [name], MPS):
        if run.allows(Change.COMPUTE_MODE):
            mode = run.card.settings().compute_mode
            run.note(
                f"the compute mode is {mode} while the claim is prepared (3 is EXCLUSIVE_PROCESS)"
            )
            if mode not in (3, None):
                raise Unexpected(f"the compute mode is {mode} under MPS, not 3")


@step("claim-mig", "prepares a claim for a MIG device that the driver makes", changes="mig-mode")
def mig(run: Run) -> None:
    card = run.card.facts()
    place = free_place(card)
    is_on = card.mig_mode is MigMode.ENABLED
    run.stage.set_driver(MIG="on-demand")
    run.makes(place)
    before = time.monotonic()
    with prepared(run, [name_of(card, Device(base=place))]):
        run.note(f"{place.profile} was made in {time.monotonic() - before:.1f} s"
                 f"{'' if is_on else ', MIG mode included'}")  # fmt: skip
        there = {instance.slot: instance for instance in run.card.facts().mig_instances}
        if not isinstance(made := there.get(place.slot), MigDevice):
            raise Unexpected("the claim is prepared, and NVML does not list its MIG device")
        run.makes(place, uuid=made.uuid)
    if place.slot in {instance.slot for instance in run.card.facts().mig_instances}:
        raise Unexpected("the claim has ended, and its MIG device is still there")
    run.destroyed(place)
