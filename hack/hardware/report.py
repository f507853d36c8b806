"""What a run found, as JSON for programs and Markdown for people; without names of this very card.

UUIDs and serial numbers are left out unless a person asks for them: a report is to be passed on.
"""

import json
import platform
import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pynvml

from dra_driver.errors import DriverError
from dra_driver.host.files import write_whole
from hardware.card import Card
from hardware.questions import QUESTIONS
from hardware.run import Run

FORMAT = 1
_NAMES = re.compile(r"\b(GPU|MIG)-[0-9a-f]{8}-[0-9a-f-]{4,27}", re.IGNORECASE)
_HIDDEN = "left out"


def found(run: Run, *, identify: bool, interrupted: bool) -> dict[str, Any]:
    """Return all that a run found, as JSON has it."""
    report = {
        "format": FORMAT,
        "dra_driver": version("dra-driver"),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "answered_by": "simulator" if run.card.is_simulated else "card",
        "card": _card(run.card, identify=identify),
        "allowed": sorted(run.wishes.allow),
        "interrupted": interrupted,
        "as_before": not run.differences,
        "differences": run.differences,
        "steps": [
            {
                "name": one.step,
                "verdict": one.verdict,
                "reason": one.reason,
                "seconds": round(one.seconds, 3),
                "timings": {what: round(took, 3) for what, took in one.timings.items()},
                "evidence": one.evidence,
            }
            for one in run.outcomes
        ],
        "questions": _questions(run),
    }
    return report if identify else _without_names(report, _serial(run.card))


def _card(card: Card, *, identify: bool) -> dict[str, Any]:
    gpu, seen = card.gpu, card.inventory
    named = {"uuid": gpu.uuid, "serial": _serial(card)} if identify else {}
    cuda = seen.cuda_version or (0, 0)
    return {
        "name": gpu.product_name,
        "gpu_driver": seen.driver_version,
        "cuda": f"{cuda[0]}.{cuda[1]}",
        "kernel": platform.release(),
        "mig_mode": str(gpu.mig_mode),
        **named,
    }


def _serial(card: Card) -> str:
    try:
        with card.nvml() as library:
            return str(pynvml.nvmlDeviceGetSerial(library.handle(card.uuid)))
    except (pynvml.NVMLError, DriverError):
        return ""


def _questions(run: Run) -> list[dict[str, Any]]:
    by = {question: one for one in run.outcomes for question in one.answers}
    return [
        {
            "id": one.id,
            "question": one.text,
            "answer": by[one.id].answers[one.id] if one.id in by else None,
            "step": by[one.id].step if one.id in by else None,
            "seconds": round(by[one.id].seconds, 3) if one.id in by else None,
            "evidence": by[one.id].evidence if one.id in by else [],
            "simulator": one.simulated,
        }
        for one in QUESTIONS
    ]


def _without_names(value: Any, serial: str) -> Any:
    if isinstance(value, str):
        text = _NAMES.sub(lambda name: f"{name[1]}-…", value)
        return text.replace(serial, _HIDDEN) if serial else text
    if isinstance(value, Mapping):
        return {name: _without_names(one, serial) for name, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_without_names(one, serial) for one in value]
    return value


def page(report: Mapping[str, Any]) -> str:
    """Return a report in Markdown."""
    card, by = report["card"], report["answered_by"]
    simulated = " **(simulator: nothing of this is a card's word)**" if by == "simulator" else ""
    allowed = ", ".join(report["allowed"]) or "nothing"
    facts = (
        f"dra-driver {report['dra_driver']}, {report['date']}, CUDA {card['cuda']}, Linux"
        f" {card['kernel']}, MIG mode {card['mig_mode']}. Allowed to be changed: {allowed}."
    )
    state = "All is as it was before."
    if not report["as_before"]:
        state = f"**Not as before: {'; '.join(report['differences'])}.**"
    if report["interrupted"]:
        state += " **The run was interrupted.**"
    lines = [f"# {card['name']}, GPU driver {card['gpu_driver']}{simulated}", "", facts, "", state]
    lines += ["", f"| question | answer of the {by} | seconds |", "|---|---|---|"]
    for one in report["questions"]:
        lines.append(_row(one["question"], one["answer"] or "*not asked*", _number(one["seconds"])))
    lines += ["", "| step | | seconds | found |", "|---|---|---|---|"]
    for one in report["steps"]:
        lines.append(_row(one["name"], one["verdict"], _number(one["seconds"]), _details(one)))
    return "\n".join(lines) + "\n"


def _details(step: Mapping[str, Any]) -> str:
    took = [f"{what} {seconds:.2f} s" for what, seconds in step["timings"].items()]
    return "; ".join(filter(None, (step["reason"], *step["evidence"], ", ".join(took))))


def _row(*cells: str) -> str:
    return f"| {' | '.join(' '.join(cell.split()).replace('|', '/') for cell in cells)} |"


def _number(seconds: float | None) -> str:
    return "" if seconds is None else f"{seconds:.1f}"


def write(report: Mapping[str, Any], folder: Path, say: Callable[[str], None]) -> None:
    """Write both files. Raises StateError."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in (
        ("hardware.json", json.dumps(report, indent=1, ensure_ascii=False) + "\n"),
        ("hardware.md", page(report)),
    ):
        write_whole(folder / name, text.encode(), mode=0o644, durable=False)
        say(f"written: {folder / name}")
