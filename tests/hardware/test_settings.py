"""Steps about the card's facts and settings: inventory (against nvidia-smi), slices, modes."""

from collections.abc import Iterator
from xml.etree import ElementTree as ET

import pytest
from testbed.commands import run as program
from testbed.commands import wait_until

from dra_driver.devices.model import Gpu, MigMode
from dra_driver.mps.supervisor.compute_modes import EXCLUSIVE_PROCESS
from hardware.run import Run

_SLICE_READ = "Can the time-slice be read?"
_SLICE_KEPT = "Is a time-slice read back as it was set?"
_COMPUTE_MODE = "Does EXCLUSIVE_PROCESS take effect at once?"

_SLICES = ("Default", "Short", "Medium", "Long")


def test_inventory(run: Run) -> None:
    """Compare what the driver knows about each GPU with nvidia-smi's XML."""
    card = run.card
    told = _smi_facts(run)
    seen = card.inventory
    with_driver = {"driver": str(seen.driver_version), "gpus": str(len(seen.gpus) + len(seen.sick))}
    wrong = list(_differences("machine", with_driver, told.pop("machine")))
    for gpu in seen.gpus:
        wrong += _differences(f"GPU {gpu.index}", _own_facts(gpu), told.get(gpu.uuid, {}))
    if wrong:
        pytest.fail("; ".join(wrong))
    facts = len(_own_facts(seen.gpus[0]))
    run.note(f"{len(seen.gpus)} GPUs, {facts} facts each, are as `nvidia-smi -q -x` has them")


def _own_facts(gpu: Gpu) -> dict[str, str]:
    memory = "" if gpu.memory_bytes is None else f"{gpu.memory_bytes >> 20} MiB"
    modes = {MigMode.ENABLED: "Enabled", MigMode.DISABLED: "Disabled"}
    persistence = {True: "Enabled", False: "Disabled", None: "N/A"}
    return {
        "product_name": gpu.product_name,
        "minor_number": str(gpu.minor),
        "pci/pci_bus_id": gpu.pci_address,
        "fb_memory_usage/total": memory,
        "mig_mode/current_mig": modes.get(gpu.mig_mode, "N/A"),
        "persistence_mode": persistence[gpu.is_persistent],
        "product_architecture": gpu.architecture,
    }


def _smi_facts(run: Run) -> dict[str, dict[str, str]]:
    card = run.card
    library = {} if card.root.samefile("/") else {"LD_PRELOAD": str(card.library)}
    said = program((card.nvidia_smi, "-q", "-x"), env={"LC_ALL": "C", **library}, timeout=60)
    try:
        root = ET.fromstring(said)  # noqa: S314  # NVIDIA's own program
    except ET.ParseError:
        pytest.skip("the nvidia-smi here is a stand-in, which knows no -q -x")
    by_uuid = {
        "machine": {
            "driver": root.findtext("driver_version", ""),
            "gpus": root.findtext("attached_gpus", ""),
        }
    }
    for gpu in root.iter("gpu"):
        facts = {name: gpu.findtext(name, "") for name in _own_facts(card.gpu)}
        place = facts["pci/pci_bus_id"].lower()
        facts["pci/pci_bus_id"] = place[-12:]  # its domain has four digits more here
        by_uuid[gpu.findtext("uuid", "")] = facts
    return by_uuid


def _differences(what: str, ours: dict[str, str], theirs: dict[str, str]) -> Iterator[str]:
    for name, value in ours.items():
        if theirs.get(name, "nothing") != value:
            yield f"{what}: {name} is {value} for the driver, {theirs.get(name)} for nvidia-smi"


def test_slices(run: Run) -> None:
    """Start the driver, and wait until every GPU that it knows is published."""
    if run.card.inventory.sick:
        run.note(f"{len(run.card.inventory.sick)} GPUs cannot be described")
    with run.timed("driver started and registered"):
        stage = run.stage
    expected = {f"gpu-{gpu.minor}" for gpu in run.card.inventory.gpus if _is_whole(gpu)}
    with run.timed("published after that"):
        wait_until(
            lambda: expected <= {device["name"] for device in stage.devices()},
            f"{', '.join(sorted(expected))} in slices",
            timeout=60,
            interval=0.05,
        )
    names = [device["name"] for device in stage.devices()]
    parts = sum("-mig-" in name for name in names)
    run.note(f"{len(names) - parts} whole GPUs and {parts} parts are published")


def _is_whole(gpu: Gpu) -> bool:
    return gpu.mig_mode is not MigMode.ENABLED


def test_read_time_slice(run: Run) -> None:
    """It reads the time-slice."""
    with run.timed("nvidia-smi compute-policy -l"):
        number = run.card.time_slice()
    if number is None:
        run.answer(_SLICE_READ, "No: nvidia-smi compute-policy -l does not say it.")
    else:
        run.answer(_SLICE_READ, f"Yes: nvidia-smi compute-policy -l says {_SLICES[number]}.")


@pytest.mark.changes("time-slice")
def test_set_time_slice(run: Run) -> None:
    """It sets each time-slice and reads it back."""
    before, said = run.card.time_slice(), []
    for number in (1, 2, 3, 0):
        with run.timed(f"set {_SLICES[number]}"):
            if not run.card.set_time_slice(number):
                pytest.skip("the card has no time-slices")
        slice_ = run.card.time_slice()
        said.append("nothing" if slice_ is None else _SLICES[slice_])
    run.note(f"set were Short, Medium, Long and Default, read {', '.join(said)}")
    wanted = ["Short", "Medium", "Long", "Default"]
    run.answer(
        _SLICE_KEPT,
        "Yes: each of the four is read back as it was set."
        if said == wanted
        else f"No: Short, Medium, Long, Default are read back as {', '.join(said)}.",
    )
    if before is None:
        run.note("it could not be read before, and is left at Default")


@pytest.mark.changes("compute-mode")
def test_set_compute_mode(run: Run) -> None:
    """It sets EXCLUSIVE_PROCESS and reads it back."""
    with run.card.nvml() as library:
        if library.compute_mode(run.card.uuid) is None or not _is_whole(run.card.gpu):
            pytest.skip("the card has no compute mode to set, or is in MIG mode")
        with run.timed("set EXCLUSIVE_PROCESS"):
            library.set_compute_mode(run.card.uuid, EXCLUSIVE_PROCESS)
        mode = library.compute_mode(run.card.uuid)
    told = "Yes: it" if mode == EXCLUSIVE_PROCESS else f"No: mode {mode}"
    run.answer(_COMPUTE_MODE, f"{told} is read back, without a reset.")
