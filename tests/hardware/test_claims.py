"""Claims of each kind, prepared and unprepared by the driver's socket; and CUDA on this host."""

import time

import pytest
from testbed.claims import gpu_config

from dra_driver.devices.device import Device, name_of
from dra_driver.devices.model import MigDevice, MigMode
from hardware.claims import MPS, free_place, prepared, supervised, whole
from hardware.client import Client, built, environment
from hardware.run import Run

_SHORT = gpu_config(strategy="TimeSlicing", timeSlicingConfig={"interval": "Short"})
_SHARES = """\
version: v1
sharing: {HOW: {failRequestsGreaterThanOne: true, resources: [{name: nvidia.com/gpu, replicas: 4}]}}
"""


def test_claim_gpu(run: Run) -> None:
    """It prepares and unprepares a claim for the card."""
    with prepared(run, [whole(run)]) as claim:
        run.note(f"CDI devices: {len(claim.cdi_devices)}")
        with run.timed("prepare again"):
            run.stage.kubelet.must_prepare(claim.name)


@pytest.mark.changes("time-slice")
def test_claim_time_slicing(run: Run) -> None:
    """It prepares a claim that sets the time-slice to Short."""
    before = run.card.settings().time_slice
    with prepared(run, [whole(run)], _SHORT):
        if (number := run.card.time_slice()) not in (1, None):
            pytest.fail(f"the time-slice is {number} while the claim has it Short (1)")
        run.note("the time-slice is Short while the claim is prepared" if number else
                 "the time-slice cannot be read")  # fmt: skip
    if (now := run.card.time_slice()) not in (before, 0, None):
        pytest.fail(f"the time-slice was {before}, and is {now} after the claim's end")


def test_claim_share(run: Run) -> None:
    """It prepares one for a quarter of the card, by time-slicing."""
    _share(run, "timeSlicing")


@pytest.mark.changes("mps", also=["compute-mode"])
def test_claim_share_mps(run: Run) -> None:
    """It prepares a claim for a quarter of the card by MPS."""
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


@pytest.mark.changes("mps", also=["compute-mode"])
def test_claim_mps(run: Run) -> None:
    """It prepares a claim under MPS with limits."""
    name = whole(run)
    with supervised(run), prepared(run, [name], MPS):
        if run.allows("compute-mode"):
            mode = run.card.settings().compute_mode
            run.note(
                f"the compute mode is {mode} while the claim is prepared (3 is EXCLUSIVE_PROCESS)"
            )
            if mode not in (3, None):
                pytest.fail(f"the compute mode is {mode} under MPS, not 3")


@pytest.mark.changes("mig-mode")
def test_claim_mig(run: Run) -> None:
    """It prepares a claim for a MIG device that the driver makes."""
    card = run.card.facts()
    place = free_place(run)
    is_on = card.mig_mode is MigMode.ENABLED
    run.stage.set_driver(MIG="on-demand")
    before = time.monotonic()
    with prepared(run, [name_of(card, Device(base=place))]):
        run.note(f"{place.profile} was made in {time.monotonic() - before:.1f} s"
                 f"{'' if is_on else ', MIG mode included'}")  # fmt: skip
        there = {instance.slot: instance for instance in run.card.facts().mig_instances}
        if not isinstance(there.get(place.slot), MigDevice):
            pytest.fail("the claim is prepared, and NVML does not list its MIG device")
    if place.slot in {instance.slot for instance in run.card.facts().mig_instances}:
        pytest.fail("the claim has ended, and its MIG device is still there")


def test_computes(run: Run) -> None:
    """Make a context, run a kernel and take memory, as a process of this host."""
    path, env = built(run.folder), environment(run)
    with run.timed("context, kernel and memory"), Client(path, env) as client:
        for name, value in client.said.facts.items():
            run.note(f"{name.replace('_', ' ')}: {value}")
        client.said.check(is_simulated=run.card.is_simulated)
