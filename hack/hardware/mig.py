"""Undocumented parts of MIG: what keeps a mode from changing, and the names of devices."""

from testbed.holder import having_open

from dra_driver.devices.device import Device, Mig
from dra_driver.devices.mig.partitions import partitions
from dra_driver.devices.model import Gpu, MigFacts, MigMode
from dra_driver.errors import DeviceError, HeldError
from hardware.run import Run, step
from hardware.steps import LeftOut


def _mig_of(card: Gpu) -> MigFacts:
    if card.mig is None or not card.mig.profiles:
        raise LeftOut("the card has no MIG")
    return card.mig


@step(
    "mig-mode-while-open",
    "switches the MIG mode, alone and beside another process",
    changes="mig-mode",
    asks="mig-open",
)
def mode_while_open(run: Run) -> None:
    """Switch the MIG mode while another process has NVML open, and while none has."""
    card = run.card.facts()
    _mig_of(card)
    if card.mig_instances:
        raise LeftOut("the card has MIG devices, which a change of its mode would destroy")
    run.stop_stage()  # the driver has NVML open, too
    is_on = card.mig_mode is MigMode.ENABLED
    other = MigMode.DISABLED if is_on else MigMode.ENABLED
    with run.timed("alone"):
        alone = _switched(run, other)
    run.reached("switched")
    run.card.mig.set_mode(card.uuid, card.mig_mode)
    with having_open(run.card.library), run.timed("beside another"):
        beside = _switched(run, other)
    run.note(f"alone: {alone or 'it changed'}")
    run.note(f"beside another process with NVML open: {beside or 'it changed'}")
    if alone:
        run.answer("mig-open", f"It does not change at once in any case: {_why(alone)}.")
    elif beside:
        run.answer("mig-open", "No: NVML says that the card is in use. Alone it changes at once.")
    else:
        run.answer("mig-open", "Yes: it changes at once, as it does alone.")


def _why(said: str) -> str:
    return "this card needs a reset" if "by a reset" in said else said


def _switched(run: Run, mode: MigMode) -> str:
    """Switch the mode; return why it did not change, empty if it did."""
    try:
        run.card.mig.set_mode(run.card.uuid, mode)
    except (DeviceError, HeldError) as error:
        return str(error)
    return ""


@step(
    "mig-device-names", "makes a MIG device twice in one place", changes="mig-mode", asks="mig-uuid"
)
def device_names(run: Run) -> None:
    place = free_place(run.card.facts())
    run.stop_stage()
    uuids = []
    for number in ("first", "second"):
        run.makes(place)
        run.reached(f"about to be made, {number} time,")
        with run.timed(f"made, {number} time"):
            uuids.append(str(Device(base=run.card.mig.make(place)).uuid))
        run.makes(place, uuid=uuids[-1])
        run.reached(f"made, {number} time,")
        with run.timed(f"destroyed, {number} time"):
            run.card.mig.destroy(place.slot)
        run.destroyed(place)
        run.reached(f"destroyed, {number} time,")
    form = "MIG- and 32 digits" if len(uuids[0]) == len("MIG-") + 36 else "MIG-GPU-…/instance ids"
    same = "the same" if uuids[0] == uuids[1] else "another"
    run.answer("mig-uuid", f"{form}; made again in the same place it has {same} UUID.")


def free_place(card: Gpu) -> Mig:
    """Return the first partition of one slice that can be made; LeftOut if none can."""
    if _mig_of(card).needs_reset and card.mig_mode is not MigMode.ENABLED:
        raise LeftOut(
            "its MIG mode changes only by a reset: turn it on yourself, then run this again"
        )
    small = [part for part in partitions(card) if part.profile.startswith("1g.")]
    taken = {instance.placement.start for instance in card.mig_instances}
    # The places that a larger one leaves are not computed here.
    is_simple = all(instance.placement.size == 1 for instance in card.mig_instances)
    place = next((each for each in small if each.placement.start not in taken), None)
    if place is None or not is_simple:
        raise LeftOut("the card has no room for a MIG device")
    return place
