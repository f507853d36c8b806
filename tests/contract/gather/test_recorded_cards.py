"""From what real cards answered comes a profile, on which they answer so again.

The recordings (docs/hardware.md) have no placements of MIG profiles; these are the shipped cards'.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pynvml
import pytest

import gathering
from dra_driver.admin.gather.profile import profile_of
from dra_driver.admin.gather.reading import NVML, Missing
from dra_driver.simulator import profile as profiles

FILES = sorted((Path(__file__).parents[2] / "data/hardware").glob("*.json"))
PROFILE_INFO, FIELDS = "nvmlDeviceGetGpuInstanceProfileInfo", "nvmlDeviceGetFieldValues"
OTHERWISE = {
    "nvmlDeviceGetTotalEnergyConsumption": "the simulated library does not have it",
    "nvmlDeviceGetMemoryInfo": "what is used is of the moment",
    "nvmlDeviceGetPersistenceMode": "a setting",
    "nvmlDeviceGetEnforcedPowerLimit": "the recordings have no other limit",
    "nvmlDeviceGetVirtualizationMode": "profiles do not say that a GPU is passed through",
    "nvmlDeviceGetSupportedEventTypes": "clocks, power and others are not simulated",
    "nvmlDeviceGetCurrentClocksThrottleReasons": "of the moment",
    "nvmlDeviceGetProcessUtilization": "of the moment",
}
"""Calls that are answered in another way, and why."""


def answer_of(call: Mapping[str, Any]) -> dict[str, Any]:
    return {key: call[key] for key in ("code", "value") if key in call}


def nvml_of(recording: Mapping[str, Any], card: profiles.Card) -> dict[str, Any]:
    """A recording as gather writes it."""
    places = {
        profile.id: [[s, profile.size] for s in profile.starts] for profile in card.mig.profiles
    }  # type: ignore[union-attr]
    calls: dict[str, Any] = {}
    system, cuts, fields = {}, [], []
    for call in recording["calls"]:
        name, args, answer = call["call"], call.get("args", []), answer_of(call)
        if name.startswith("nvmlSystem"):
            system[name] = answer
        elif name == PROFILE_INFO:
            value = answer.get("value")
            if value is not None:
                value["name"] = value["name"].removeprefix("MIG ")
            cut = {"index": args[0], f"{PROFILE_INFO}V": answer}
            found = places.get(value["id"]) if value else None
            cut["nvmlDeviceGetGpuInstancePossiblePlacements_v2"] = {"code": 0, "value": found}
            cuts.append(cut)
        elif name == FIELDS:
            fields.append({"field": getattr(pynvml, call["field"]), **answer})
        elif name == "nvmlDeviceGetPciInfo":
            calls[f"{name}_v3"] = answer
        elif "RunningProcesses" not in name:
            calls[f"{name}({args[0]})" if args else name] = answer
    calls[FIELDS] = {"code": 0, "value": fields}
    return {"system": system, "gpus": [{"index": 0, "calls": calls, "migProfiles": cuts}]}


@pytest.mark.parametrize("file", FILES, ids=lambda path: path.stem)
def test_a_card_answers_as_the_recorded_one(file: Path, tmp_path: Path) -> None:
    recording = json.loads(file.read_text())
    name = recording["profile"]["gpus"][0]["card"]
    shipped = profiles.parse(json.dumps(recording["profile"]), origin="one.yaml")
    told = nvml_of(recording, shipped.cards[name])
    missing = Missing()
    made = profiles.parse(profile_of(told, {}, {}, missing), origin="made.yaml")
    assert missing.listed() == []

    again = gathering.node(tmp_path, made).gathered("--identify")

    found = gathering.unpack(again).documents[NVML]
    assert {call: found["system"][call] for call in told["system"]} == told["system"]
    (there,), (here,) = told["gpus"], found["gpus"]
    compared = there["calls"].keys() & here["calls"].keys() - {FIELDS, *OTHERWISE}
    assert len(compared) >= 20
    calls = [(call, there["calls"][call], here["calls"][call]) for call in sorted(compared)]
    assert [call for call in calls if not alike(*call[1:])] == []
    totals = [gpu["calls"]["nvmlDeviceGetMemoryInfo"]["value"]["total"] for gpu in (there, here)]
    assert totals[0] == totals[1]
    fields = {one["field"]: one for one in here["calls"][FIELDS]["value"]}
    known = [one for one in there["calls"][FIELDS]["value"] if one["field"] in fields]
    assert len(known) >= 6
    assert known == [fields[one["field"]] for one in known]
    infos = [one[f"{PROFILE_INFO}V"] for one in here["migProfiles"]]
    assert sum("value" in info for info in infos) == len(shipped.cards[name].mig.profiles)  # type: ignore[union-attr]


def alike(there: Mapping[str, Any], here: Mapping[str, Any]) -> bool:
    """Whether two answers are the same, as far as both tell."""
    one, other = (answer.get("value") for answer in (there, here))
    if isinstance(one, dict) and isinstance(other, dict):
        one, other = ({key: v[key] for key in one.keys() & other.keys()} for v in (one, other))
    return (there["code"], one) == (here["code"], other)
