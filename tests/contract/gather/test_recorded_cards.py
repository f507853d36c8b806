"""What real cards answered is what their archives play, where shipped cards only come near.

The recordings (docs/hardware.md) have no placements of MIG profiles; these are the shipped cards'.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pynvml
import pytest

import gathering
from dra_driver import gathered
from dra_driver.simulator import profile as profiles
from dra_driver.simulator.archive import profile_of

FILES = sorted((Path(__file__).parents[2] / "data/hardware").glob("*.json"))
PROFILE_INFO, FIELDS = "nvmlDeviceGetGpuInstanceProfileInfo", "nvmlDeviceGetFieldValues"
NOT_PLAYED = {"nvmlDeviceGetTotalEnergyConsumption"}


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
def test_a_recorded_card_is_played_to_the_letter(file: Path, tmp_path: Path) -> None:
    recording = json.loads(file.read_text())
    name = recording["profile"]["gpus"][0]["card"]
    shipped = profiles.parse(json.dumps(recording["profile"]), origin="one.yaml")
    told = nvml_of(recording, shipped.cards[name])
    archive = tmp_path / "card.tar.gz"
    archive.write_bytes(gathered.pack({}, {gathered.NVML: told}))

    again = gathering.node(tmp_path, profile_of(archive)).gathered("--identify")

    found = gathered.unpack(again).documents[gathered.NVML]
    assert {call: found["system"][call] for call in told["system"]} == told["system"]
    (there,), (here,) = told["gpus"], found["gpus"]
    compared = there["calls"].keys() & here["calls"].keys() - {FIELDS, *NOT_PLAYED}
    assert len(compared) > 25
    for call in sorted(compared):
        assert alike(there["calls"][call], here["calls"][call]), call
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
