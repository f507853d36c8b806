"""The figures of a case, and a table for people besides the JSON."""

from collections.abc import Iterator, Mapping, Sequence
from statistics import median
from typing import Any

from bench.comparison import rows
from dra_driver.admin.output import aligned

STEPS = ("prepare", "prepare_again", "unprepare")

_HEAD = (
    "config",
    "callers",
    "prepared",
    "prepare p50/p99 ms",
    "÷ floor",
    "again ms",
    "÷ first",
    "unprepare ms",
    "CPU ms: prepare",
    "again",
    "unprepare",
    "prepare + unprepare",
    "claims per s",
)


def in_short(
    times: Mapping[str, Mapping[str, float | int]],
    cpu: Mapping[str, float],
    seconds: Mapping[str, float],
) -> dict[str, object]:
    """Return the figures of a case.

    They are the repeat in units of the first, the driver's CPU time, and how many claims are
    prepared and unprepared a second.

    Args:
        times: summaries of the steps' durations, by step.
        cpu: CPU time of the driver's process per call, in seconds, by step.
        seconds: time that passed per call of all callers, by step.
    """
    milliseconds = {step: round(used * 1000, 3) for step, used in cpu.items()}
    cycle = (cpu["prepare"] + cpu["unprepare"]) * 1000
    return {
        "again_to_first": round(times["prepare_again"]["p50_ms"] / times["prepare"]["p50_ms"], 2),
        "driver_cpu_ms": {**milliseconds, "prepare_and_unprepare": round(cycle, 3)},
        "claims_per_second": round(1 / (seconds["prepare"] + seconds["unprepare"]), 1),
    }


def lines(result: Mapping[str, Any]) -> Iterator[str]:
    """Yield the table of a run's cases, and the driver's other costs."""
    yield from aligned([_HEAD, *map(_cells, result["cases"])])
    start, memory = result["start_to_registered_s"], result["resident_memory_mib"]
    yield f"start to registered: {start['p50']} s, of it CPU time {start['cpu']} s"
    alone, after = (result["new_claim"][name]["p50_ms"] for name in ("alone", "after"))
    yield f"prepare of a new claim: {alone} ms, right after 100 others {after} ms"
    yield f"resident memory: {memory['idle']} MiB idle, {memory['peak']} MiB at most"
    yield f"CPU time, idle: {result['idle_cpu_percent']} % of a core"


def compared(results: Mapping[str, Sequence[Mapping[str, Any]]]) -> Iterator[str]:
    """Yield a table of each driver's figures, medians of its turns, ÷ those of the first."""
    columns = {
        name: {figure: median(each[figure] for each in figures) for figure in figures[0]}
        for name, taken in results.items()
        for figures in [[dict(_figures(taking)) for taking in taken]]
    }
    yield from aligned(rows(columns, next(iter(columns))))


def _figures(result: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    """Yield the figures of a run that tell one driver from another, by name."""
    for case in result["cases"]:
        said = f"{case['config']}, {case['callers']} callers, {case['prepared']} prepared"
        yield (
            f"{said}: CPU of prepare + unprepare, ms",
            case["driver_cpu_ms"]["prepare_and_unprepare"],
        )
        for step in STEPS:
            yield f"{said}: {step} p50, ms", case[step]["p50_ms"]
        yield f"{said}: prepare p99, ms", case["prepare"]["p99_ms"]
        yield f"{said}: claims prepared and unprepared per s", case["claims_per_second"]
    for when, said in (("alone", ""), ("after", " after 100 others")):
        yield f"prepare of a new claim{said}, ms", result["new_claim"][when]["p50_ms"]
    yield "start to registered, s", result["start_to_registered_s"]["p50"]
    yield "start to registered, CPU s", result["start_to_registered_s"]["cpu"]
    yield "CPU idle, % of a core", result["idle_cpu_percent"]
    yield "memory idle, MiB", result["resident_memory_mib"]["idle"]
    yield "memory at most, MiB", result["resident_memory_mib"]["peak"]


def _cells(case: Mapping[str, Any]) -> tuple[str, ...]:
    prepare, cpu = case["prepare"], case["driver_cpu_ms"]
    return (
        case["config"],
        str(case["callers"]),
        str(case["prepared"]),
        f"{prepare['p50_ms']:.2f} / {prepare['p99_ms']:.2f}",
        f"{prepare['p50_ms'] / case['yardsticks']['floor_ms']:.2f}",
        f"{case['prepare_again']['p50_ms']:.2f}",
        f"{case['again_to_first']:.2f}",
        f"{case['unprepare']['p50_ms']:.2f}",
        f"{cpu['prepare']:.2f}",
        f"{cpu['prepare_again']:.2f}",
        f"{cpu['unprepare']:.2f}",
        f"{cpu['prepare_and_unprepare']:.2f}",
        f"{case['claims_per_second']:.0f}",
    )
