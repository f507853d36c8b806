"""The figures of a case, and a table for people besides the JSON."""

from collections.abc import Iterator, Mapping, Sequence
from statistics import median
from typing import Any

from bench.comparison import rows
from bench.timings import Steps, summary
from dra_driver.admin.output import aligned

STEPS = ("prepare", "prepare_again", "unprepare")

_HEAD = (
    "config",
    "callers",
    "prepared",
    "prepare p50/p99 ms",
    "÷ floor",
    "by themselves",
    "claims per s",
    "CPU ms",
    "again ms",
    "unprepare ms",
)


def in_short(together: Steps, free: Steps) -> dict[str, object]:
    """Return the figures of a case: of callers that start `together`, and of independent ones."""
    return {
        **dict(zip(STEPS, map(summary, together.times), strict=True)),
        "cpu_ms": dict(zip(STEPS, (round(used * 1000, 3) for used in together.used), strict=True)),
        "by_themselves": {
            "prepare": summary(free.times[0]),
            "unprepare": summary(free.times[1]),
            "cpu_ms": round(free.used[0] * 1000, 3),
            "claims_per_second": round(1 / free.seconds[0], 1),
        },
    }


def lines(result: Mapping[str, Any]) -> Iterator[str]:
    """Yield the table of a run's cases, and the driver's other costs."""
    yield from aligned([_HEAD, *map(_cells, result["cases"])])
    start, memory = result["start_to_registered_s"], result["resident_memory_mib"]
    yield f"start to registered: {start['p50']} s, of it CPU time {start['cpu']} s"
    yield f"prepare after a calm second: {_of(result['after_calm'])} ms"
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
        free = case["by_themselves"]
        for step in STEPS:
            yield f"{said}: {step} p50, ms", case[step]["p50_ms"]
        yield f"{said}: prepare p99, ms", case["prepare"]["p99_ms"]
        yield f"{said}, by themselves: prepare p50, ms", free["prepare"]["p50_ms"]
        yield f"{said}, by themselves: prepare p99, ms", free["prepare"]["p99_ms"]
        yield f"{said}, by themselves: claims per s", free["claims_per_second"]
        yield f"{said}, by themselves: CPU of prepare + unprepare, ms", free["cpu_ms"]
    yield "prepare after a calm second p50, ms", result["after_calm"]["p50_ms"]
    yield "start to registered, s", result["start_to_registered_s"]["p50"]
    yield "start to registered, CPU s", result["start_to_registered_s"]["cpu"]
    yield "CPU idle, % of a core", result["idle_cpu_percent"]
    yield "memory idle, MiB", result["resident_memory_mib"]["idle"]
    yield "memory at most, MiB", result["resident_memory_mib"]["peak"]


def _cells(case: Mapping[str, Any]) -> tuple[str, ...]:
    free = case["by_themselves"]
    return (
        case["config"],
        str(case["callers"]),
        str(case["prepared"]),
        _of(case["prepare"]),
        f"{case['prepare']['p50_ms'] / case['yardsticks']['floor_ms']:.2f}",
        _of(free["prepare"]),
        f"{free['claims_per_second']:.0f}",
        f"{free['cpu_ms']:.2f}",
        f"{case['prepare_again']['p50_ms']:.2f}",
        f"{case['unprepare']['p50_ms']:.2f}",
    )


def _of(figures: Mapping[str, float]) -> str:
    return f"{figures['p50_ms']:.2f} / {figures['p99_ms']:.2f}"
