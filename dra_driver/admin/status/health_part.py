"""The part of `dra-driver status` on health: sick GPUs, why they are sick, and what to do.

A record of another boot is ignored.
"""

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

from msgspec import Struct, field

from dra_driver.admin.output import aligned
from dra_driver.devices.health.debounce import GpuCondition, in_force
from dra_driver.devices.health.record import HealthRecord, read_health
from dra_driver.errors import StateError


class HealthNotes(Struct, frozen=True, kw_only=True):
    """The record's content, or why it cannot be read."""

    record: HealthRecord = field(default_factory=lambda: HealthRecord(boot_id=""))
    problem: str | None = None


def read_notes(directory: Path, boot_id: str) -> HealthNotes:
    """Return what is wrong with GPUs in this boot, from the driver's directory."""
    try:
        record = read_health(directory)
    except StateError as error:
        return HealthNotes(problem=str(error))
    if record is None or record.boot_id != boot_id:
        return HealthNotes()
    return HealthNotes(record=record)


def lines(notes: HealthNotes) -> list[str]:
    """Return lines for people; none if all is well."""
    rows = [_row(name, wrong) for _, name, wrong in _wrong(notes)]
    if not rows and notes.problem is None:
        return []
    problem = [] if notes.problem is None else [f"  not known: {notes.problem}"]
    table = [f"  {line}" for line in aligned(rows)] if rows else []
    return ["", "Sick GPUs:", *table, *problem]


def as_json(notes: HealthNotes) -> dict[str, object]:
    """Return the same for programs."""
    return {
        "problem": notes.problem,
        "conditions": [
            {
                "gpu": uuid,
                "device": name,
                "gpuInstance": None if ill.instance is None else ill.instance.gpu_instance,
                "cause": str(ill.finding.cause),
                "value": ill.finding.value,
                "severity": str(ill.finding.severity),
                "since": datetime.fromtimestamp(ill.since, tz=UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
                "reason": ill.finding.reason,
                "remedy": ill.finding.remedy.words,
            }
            for uuid, name, ill in _wrong(notes)
        ],
    }


def _wrong(notes: HealthNotes) -> Iterator[tuple[str, str, GpuCondition]]:
    gpus = sorted(notes.record.gpus.items(), key=lambda item: (item[1].index, item[0]))
    for uuid, gpu in gpus:
        for ill in in_force(gpu.conditions):
            yield uuid, gpu.name, ill


def _row(name: str, ill: GpuCondition) -> tuple[str, ...]:
    where = name if ill.instance is None else f"{name}, GPU instance {ill.instance.gpu_instance}"
    since = datetime.fromtimestamp(ill.since, tz=UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    return where, str(ill.finding.severity), f"since {since}", ill.finding.text
