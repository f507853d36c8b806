"""The part of `dra-driver status` on health: GPUs that are not well, why, and what to do.

A record of another boot says nothing of now.
"""

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

from msgspec import Struct, field

from dra_driver.admin.table import aligned
from dra_driver.devices.health.debounce import GpuCondition, in_force
from dra_driver.devices.health.record import HealthRecord, read_health
from dra_driver.errors import StateError


class HealthNotes(Struct, frozen=True, kw_only=True):
    """What the record says, or why it cannot be read."""

    record: HealthRecord = field(default_factory=lambda: HealthRecord(boot_id=""))
    problem: str | None = None


def read_notes(directory: Path, boot_id: str) -> HealthNotes:
    """Return what is wrong with GPUs in this boot, as the driver's directory has it."""
    try:
        found = read_health(directory)
    except StateError as error:
        return HealthNotes(problem=str(error))
    if found is None or found.boot_id != boot_id:
        return HealthNotes()
    return HealthNotes(record=found)


def lines(notes: HealthNotes) -> list[str]:
    """Return it for people; nothing if all is well."""
    rows = [_row(name, one) for _, name, one in _wrong(notes)]
    if not rows and notes.problem is None:
        return []
    problem = [] if notes.problem is None else [f"  not known: {notes.problem}"]
    table = [f"  {line}" for line in aligned(rows)] if rows else []
    return ["", "Sick GPUs:", *table, *problem]


def as_json(notes: HealthNotes) -> dict[str, object]:
    """Return it for programs."""
    return {
        "problem": notes.problem,
        "conditions": [
            {
                "gpu": uuid,
                "device": name,
                "gpuInstance": None if one.instance is None else one.instance.gpu_instance,
                "cause": str(one.finding.cause),
                "value": one.finding.value,
                "severity": str(one.finding.severity),
                "since": _time(one.since),
                "reason": one.finding.reason,
                "remedy": str(one.finding.remedy),
            }
            for uuid, name, one in _wrong(notes)
        ],
    }


def _wrong(notes: HealthNotes) -> Iterator[tuple[str, str, GpuCondition]]:
    gpus = sorted(notes.record.gpus.items(), key=lambda item: (item[1].index, item[0]))
    for uuid, gpu in gpus:
        for one in in_force(gpu.conditions):
            yield uuid, gpu.name, one


def _row(name: str, one: GpuCondition) -> tuple[str, ...]:
    where = name if one.instance is None else f"{name}, GPU instance {one.instance.gpu_instance}"
    since = datetime.fromtimestamp(one.since, tz=UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    return where, str(one.finding.severity), f"since {since}", one.finding.text


def _time(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, tz=UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
