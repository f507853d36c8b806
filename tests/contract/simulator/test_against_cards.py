"""The simulated NVML answers as cards do: what the driver asks, held against recordings.

A recording has the return code of each call, and its value, as pynvml told them on a real GPU that
nobody used. docs/hardware.md says how and where they were made.
"""

import ctypes
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pynvml
import pytest
import yaml

from dra_driver.simulator.profile import CARDS, load
from tests.contract.simulator.conftest import MakeMachine, Nvml

FILES = sorted((Path(__file__).parents[2] / "data" / "hardware").glob("*.json"))

OF_THE_MACHINE = {
    "nvmlDeviceGetUUID": "every GPU has its own",
    "nvmlDeviceGetPersistenceMode": "a setting",
    "nvmlDeviceGetVirtualizationMode": "profiles do not say that a GPU is passed through",
    "nvmlDeviceGetAddressingMode": "that of the machine's kernel",
    "nvmlDeviceGetTotalEnergyConsumption": "counts on",
    "nvmlDeviceGetSupportedEventTypes": "clocks, power and others are not played",
    "nvmlDeviceGetMemoryInfo": "R580 keeps 480 MiB for itself, and R535 550 MiB",
}
"""Calls whose values differ, and why."""

NOT_SUPPORTED, NOT_FOUND = pynvml.NVML_ERROR_NOT_SUPPORTED, pynvml.NVML_ERROR_NOT_FOUND
INVALID = pynvml.NVML_ERROR_INVALID_ARGUMENT

OTHER_CODES = {
    # R580 knows the profile indexes up to 16, and the simulated library one more.
    ("nvmlDeviceGetGpuInstanceProfileInfo 17", INVALID): NOT_SUPPORTED,
    # Stricter here: without MIG mode there is nothing to be found in.
    ("nvmlDeviceGetGpuInstanceById", NOT_FOUND): NOT_SUPPORTED,
    # A clock that no card has.
    ("nvmlDeviceGetClockInfo", NOT_SUPPORTED): INVALID,
    # Not played.
    ("nvmlDeviceGetTotalEnergyConsumption", 0): pynvml.NVML_ERROR_FUNCTION_NOT_FOUND,
    # Stricter here: a card without links says 0, as a floating-point number.
    ("NVML_FI_DEV_NVSWITCH_CONNECTED_LINK_COUNT", 0): NOT_SUPPORTED,
}
"""Where the simulated NVML answers by another code: the call or field, the card's code, its own."""


def name_of(call: Mapping[str, Any]) -> str:
    """The field or call, with its argument where that is a MIG profile's index."""
    name: str = call.get("field", call["call"])
    return f"{name} {call['args'][0]}" if name.endswith("ProfileInfo") else name


def plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.decode()
    if isinstance(value, (ctypes.Structure, pynvml.c_nvmlMemory_t)):
        return {name: plain(getattr(value, name)) for name, *_ in value._fields_}
    if isinstance(value, (list, tuple)):
        return [plain(one) for one in value]
    return getattr(value, "value", value)


def answer(call: Mapping[str, Any]) -> dict[str, Any]:
    name = call["call"]
    words = [] if name.startswith("nvmlSystem") else [pynvml.nvmlDeviceGetHandleByIndex(0)]
    if "field" in call:
        (field,) = pynvml.nvmlDeviceGetFieldValues(*words, [getattr(pynvml, call["field"])])
        if field.nvmlReturn != pynvml.NVML_SUCCESS:
            return {"code": field.nvmlReturn}
        return {"code": 0, "type": field.valueType, "value": field.value.ullVal}
    try:
        return {"code": 0, "value": plain(getattr(pynvml, name)(*words, *call.get("args", ())))}
    except pynvml.NVMLError as error:
        return {"code": error.value}


def played(recording: Mapping[str, Any]) -> dict[str, Any]:
    """The profile of the recorded machine, with cards that lack what the recorded one lacked."""
    profile = dict(recording["profile"])
    for gpu in profile["gpus"]:
        card = yaml.safe_load((CARDS / f"{gpu['card']}.yaml").read_text())
        for fact in recording["without"]:
            del card[fact]
        profile.setdefault("cards", {})[gpu["card"]] = card
    return profile


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_the_simulated_nvml_answers_as_the_card_did(
    path: Path, make_machine: MakeMachine, nvml: Nvml, tmp_path: Path
) -> None:
    recording = json.loads(path.read_text())
    profile = tmp_path / "profile.yaml"
    profile.write_text(json.dumps(played(recording)))
    differ: list[str] = []
    with nvml(make_machine(load(str(profile)))):
        for call in recording["calls"]:
            said = answer(call)
            card = {key: value for key, value in call.items() if key in ("code", "type", "value")}
            if call["call"] in OF_THE_MACHINE:
                card.pop("value", None)
                said.pop("value", None)
            if isinstance(card.get("value"), dict):
                card["value"].pop("version", None)
                said.get("value", {}).pop("version", None)
            other = OTHER_CODES.get((name_of(call), card["code"]))
            if other is not None:
                card, said = {"code": other}, {"code": said["code"]}
            if said != card:
                differ.append(f"{call}: the simulated one says {said}")
    assert not differ, "\n".join(differ)


def test_nothing_is_excused_that_no_recording_has() -> None:
    recorded = [call for path in FILES for call in json.loads(path.read_text())["calls"]]
    codes = {(name_of(call), call["code"]) for call in recorded}
    assert set(OTHER_CODES) <= codes
    assert set(OF_THE_MACHINE) <= {call["call"] for call in recorded}
