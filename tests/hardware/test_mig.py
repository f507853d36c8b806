"""Undocumented parts of MIG: what keeps a mode from changing, and the names of devices."""

import pytest
from testbed.holder import having_open

from dra_driver.devices.device import Device
from dra_driver.devices.model import MigMode
from dra_driver.errors import DeviceError, HeldError
from hardware.claims import free_place
from hardware.run import Run

_MIG_OPEN = "Does the MIG mode change while another process has NVML open?"
_MIG_UUID = "What names do MIG devices have, and does one that is made again have the same?"


@pytest.mark.changes("mig-mode")
def test_mig_mode_while_open(run: Run) -> None:
    """Switch the MIG mode while another process has NVML open, and while none has."""
    card = run.card.facts()
    if card.mig is None or not card.mig.profiles:
        pytest.skip("the card has no MIG")
    if card.mig_instances:
        pytest.skip("the card has MIG devices, which a change of its mode would destroy")
    run.stop_stage()  # the driver has NVML open, too
    is_on = card.mig_mode is MigMode.ENABLED
    other = MigMode.DISABLED if is_on else MigMode.ENABLED
    with run.timed("alone"):
        alone = _switched(run, other)
    run.card.mig.set_mode(card.uuid, card.mig_mode)
    with having_open(run.card.library), run.timed("beside another"):
        beside = _switched(run, other)
    run.note(f"alone: {alone or 'it changed'}")
    run.note(f"beside another process with NVML open: {beside or 'it changed'}")
    if alone:
        run.answer(_MIG_OPEN, f"It does not change at once in any case: {_why(alone)}.")
    elif beside:
        run.answer(_MIG_OPEN, "No: NVML says that the card is in use. Alone it changes at once.")
    else:
        run.answer(_MIG_OPEN, "Yes: it changes at once, as it does alone.")


def _why(said: str) -> str:
    return "this card needs a reset" if "by a reset" in said else said


def _switched(run: Run, mode: MigMode) -> str:
    """Switch the mode; return why it did not change, empty if it did."""
    try:
        run.card.mig.set_mode(run.card.uuid, mode)
    except (DeviceError, HeldError) as error:
        return str(error)
    return ""


@pytest.mark.changes("mig-mode")
def test_mig_device_names(run: Run) -> None:
    """It makes a MIG device twice in one place."""
    place = free_place(run)
    run.stop_stage()
    run.card.mig.set_mode(place.gpu, MigMode.ENABLED)
    uuids = []
    for number in ("first", "second"):
        with run.timed(f"made, {number} time"):
            uuids.append(str(Device(base=run.card.mig.make(place)).uuid))
        with run.timed(f"destroyed, {number} time"):
            run.card.mig.destroy(place.slot)
    form = "MIG- and 32 digits" if len(uuids[0]) == len("MIG-") + 36 else "MIG-GPU-…/instance ids"
    same = "the same" if uuids[0] == uuids[1] else "another"
    run.answer(_MIG_UUID, f"{form}; made again in the same place it has {same} UUID.")
