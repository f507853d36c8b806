"""What a run found, as JSON for programs and Markdown for people, without identities of the card.

UUIDs and serial numbers are left out unless a person asks for them, because reports are shared.
"""

import json
import platform
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pynvml

from dra_driver.errors import DriverError, StateError
from dra_driver.host.files import write_whole
from hardware.card import Card
from hardware.every_step import STEPS
from hardware.questions import QUESTIONS
from hardware.run import Run
from hardware.steps import Outcome

FORMAT = 1
_NAMES = re.compile(r"\b(GPU|MIG)-[0-9a-f]{8}-[0-9a-f-]{4,27}", re.IGNORECASE)
_HIDDEN = "left out"


def found(
    run: Run, *, identify: bool, interrupted: bool = True, has_ended: bool = False
) -> dict[str, Any]:
    """Return all that a run found, or has found so far, for JSON."""
    report = {
        "format": FORMAT,
        "dra_driver": version("dra-driver"),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "answered_by": "simulator" if run.card.is_simulated else "card",
        "card": _card(run.card, identify=identify),
        "allowed": sorted(run.wishes.allow),
        "interrupted": interrupted,
        "as_before": not run.differences if has_ended else None,
        "differences": run.differences,
        "steps": [
            {
                "name": outcome.step,
                "verdict": outcome.verdict,
                "reason": outcome.reason,
                "seconds": round(outcome.seconds, 3),
                "timings": {what: round(took, 3) for what, took in outcome.timings.items()},
                "evidence": outcome.evidence,
            }
            for outcome in run.outcomes
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


@cache
def _serial(card: Card) -> str:
    try:
        with card.nvml() as library:
            return str(pynvml.nvmlDeviceGetSerial(library.handle(card.uuid)))
    except (pynvml.NVMLError, DriverError):
        return ""


def _questions(run: Run) -> list[dict[str, Any]]:
    steps = {question: step.name for step in STEPS for question in step.asks}
    taken = {outcome.step: outcome for outcome in run.outcomes}
    return [
        {
            "id": question.id,
            "question": question.text,
            "step": steps[question.id],
            "simulator": question.simulated,
            **_answer(question.id, taken.get(steps[question.id], Outcome(step=""))),
        }
        for question in QUESTIONS
    ]


def _answer(question: str, outcome: Outcome) -> dict[str, Any]:
    answer = outcome.answers.get(question)
    return {
        "answer": answer,
        "why_not": outcome.reason if answer is None else "",
        "seconds": None if answer is None else round(outcome.seconds, 3),
        "evidence": outcome.evidence,
    }


def _without_names(value: Any, serial: str) -> Any:
    if isinstance(value, str):
        text = _NAMES.sub(lambda name: f"{name[1]}-…", value)
        return text.replace(serial, _HIDDEN) if serial else text
    if isinstance(value, Mapping):
        return {name: _without_names(member, serial) for name, member in value.items()}
    if isinstance(value, (list, tuple)):
        return [_without_names(member, serial) for member in value]
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
    if report["as_before"] is None:
        state = "**It has not ended: `make hardware RESTORE=1` puts back what it has changed.**"
    elif not report["as_before"]:
        state = f"**Not as before: {'; '.join(report['differences'])}.**"
    if report["interrupted"] and report["as_before"] is not None:
        state += " **The run was interrupted.**"
    lines = [f"# {card['name']}, GPU driver {card['gpu_driver']}{simulated}", "", facts, "", state]
    lines += ["", f"| question | answer of the {by} | seconds |", "|---|---|---|"]
    for question in report["questions"]:
        answer = question["answer"] or f"*no answer: {question['why_not'] or 'it was not asked'}*"
        lines.append(_row(question["question"], answer, _number(question["seconds"])))
    lines += ["", "| step | | seconds | found |", "|---|---|---|---|"]
    for step in report["steps"]:
        lines.append(_row(step["name"], step["verdict"], _number(step["seconds"]), _details(step)))
    return "\n".join(lines) + "\n"


def _details(step: Mapping[str, Any]) -> str:
    took = [f"{what} {seconds:.2f} s" for what, seconds in step["timings"].items()]
    return "; ".join(filter(None, (step["reason"], *step["evidence"], ", ".join(took))))


def _row(*cells: str) -> str:
    return f"| {' | '.join(' '.join(cell.split()).replace('|', '/') for cell in cells)} |"


def _number(seconds: float | None) -> str:
    return "" if seconds is None else f"{seconds:.1f}"


def write(report: Mapping[str, Any], folder: Path) -> list[Path]:
    """Write both files, and return them. Raises StateError."""
    written = []
    for name, text in (
        ("hardware.json", json.dumps(report, indent=1, ensure_ascii=False) + "\n"),
        ("hardware.md", page(report)),
    ):
        try:
            folder.mkdir(parents=True, exist_ok=True)
            write_whole(folder / name, text.encode(), mode=0o644, durable=True)
        except OSError as error:
            raise StateError(
                f"the report cannot be written to {folder}: {error.strerror}; name another folder"
                " by --report"
            ) from error
        written.append(folder / name)
    return written
