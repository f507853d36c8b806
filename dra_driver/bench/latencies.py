"""The latencies that a user's own command reports: text in one of three formats. Pure.

In: the command's output, or a file that it wrote. Out: `Figures`. The text is read strictly: a line
that does not fit the format is an error that quotes it, never a guess; unrelated lines are skipped.
Formats: a line of JSON; Prometheus' text exposition of a histogram (interpolated like
Prometheus' histogram_quantile) or of a summary; the CSV of perf_analyzer, in microseconds.
"""

import csv
import math
from collections import defaultdict
from collections.abc import Sequence
from typing import Annotated

from msgspec import Struct
from pydantic import Field, ValidationError

from dra_driver.bench.exposition import Sample, samples
from dra_driver.bench.model import Amount, Count, Latency, percentile
from dra_driver.bench.workload import LatencyForm, Strict
from dra_driver.errors import SetupError

_QUOTED = 160
_MILLISECONDS = {
    "_seconds": 1e3,
    "_milliseconds": 1.0,
    "_ms": 1.0,
    "_microseconds": 1e-3,
    "_us": 1e-3,
    "_nanoseconds": 1e-6,
    "_ns": 1e-6,
}
_RATE, _P50, _P99 = "Inferences/Second", "p50 latency", "p99 latency"


class Figures(Struct, frozen=True, kw_only=True):
    """Latencies, and optionally the throughput: units in a second."""

    latency: Latency
    throughput: float | None = None
    unit: str = "requests"


class _Line(Strict):
    throughput: Amount | None = None
    unit: str = "requests"


class _Percentiles(_Line):
    p50_ms: Amount
    p99_ms: Amount
    count: Annotated[int, Field(ge=1)]
    unfinished: Count = 0


class _Each(_Line):
    latencies_ms: Annotated[list[Amount], Field(min_length=1)]


def read(form: LatencyForm, text: str, metric: str = "") -> Figures:
    """Return the figures in a text of this format; `metric` names Prometheus' family.

    Raises SetupError if the text does not contain them.
    """
    match form:
        case LatencyForm.JSON:
            return _of_json(text)
        case LatencyForm.PROMETHEUS:
            return _of_prometheus(text, metric)
        case LatencyForm.PERF_ANALYZER:
            return _of_perf_analyzer(text)


def _of_json(text: str) -> Figures:
    objects = [line for line in text.splitlines() if line.startswith("{")]
    if not objects:
        raise SetupError(
            'there is no line of JSON; make it print one such as {"p50_ms": 8.1, "p99_ms": 12.5,'
            ' "count": 1200} or {"latencies_ms": [8.0, 8.2]}'
        )
    line = objects[-1]
    kind = _Each if "latencies_ms" in line else _Percentiles
    try:
        said = kind.model_validate_json(line)
    except ValidationError as error:
        fault = error.errors(include_url=False)[0]
        where = ".".join(map(str, fault["loc"]))
        raise _unreadable(line, f"{where}: {fault['msg']}" if where else fault["msg"]) from error
    if isinstance(said, _Each):
        each = said.latencies_ms
        latency = Latency(
            p50_ms=percentile(each, 0.5), p99_ms=percentile(each, 0.99), count=len(each)
        )
    elif said.p99_ms < said.p50_ms:
        raise _unreadable(line, "p99_ms is less than p50_ms")
    else:
        latency = Latency.model_validate(said.model_dump(exclude={"throughput", "unit"}))
    return Figures(latency=latency, throughput=said.throughput, unit=said.unit)


def _of_prometheus(text: str, metric: str) -> Figures:
    scale = next((by for end, by in _MILLISECONDS.items() if metric.endswith(end)), None)
    if scale is None:
        raise SetupError(
            f"the unit of {metric} is not known: its name ends with none of"
            f" {', '.join(_MILLISECONDS)}"
        )
    every = samples(text, (metric, f"{metric}_bucket", f"{metric}_count"))
    buckets = [each for each in every if each.name == f"{metric}_bucket"]
    quantiles = [each for each in every if each.name == metric and "quantile" in each.labels]
    if buckets:
        return _of_histogram(metric, buckets, scale)
    if quantiles:
        counts = [each for each in every if each.name == f"{metric}_count"]
        return _of_summary(metric, quantiles, counts, scale)
    raise SetupError(
        f"there is no histogram and no summary {metric}: no line begins with {metric}_bucket{{ or"
        f" {metric}{{quantile="
    )


def _of_histogram(metric: str, buckets: Sequence[Sample], scale: float) -> Figures:
    """Add up the buckets of all label sets, and interpolate."""
    below: dict[float, float] = defaultdict(float)
    for bucket in buckets:
        try:
            below[float(bucket.labels["le"])] += bucket.value
        except (KeyError, ValueError) as error:
            raise _unreadable(bucket.line, "its label le is not a number") from error
    bounds = sorted(below)
    counts = [below[bound] for bound in bounds]
    if bounds[-1] != math.inf or counts != sorted(counts) or not math.isfinite(counts[-1]):
        raise SetupError(f"{metric} is not a histogram: its buckets do not grow up to le=+Inf")
    if not counts[-1]:
        raise SetupError(f"{metric} has counted nothing")

    def quantile(share: float) -> float:
        rank = share * counts[-1]
        at = next(at for at, count in enumerate(counts) if count >= rank)
        if bounds[at] == math.inf:
            raise SetupError(
                f"more than {1 - share:.0%} of {metric} is above its largest bucket,"
                f" {bounds[at - 1] if at else 0:g}: give it larger ones"
            )
        lower, fewer = (bounds[at - 1], counts[at - 1]) if at else (0.0, 0.0)
        return (lower + (bounds[at] - lower) * (rank - fewer) / (counts[at] - fewer)) * scale

    count = int(counts[-1])
    return Figures(latency=Latency(p50_ms=quantile(0.5), p99_ms=quantile(0.99), count=count))


def _of_summary(
    metric: str, quantiles: Sequence[Sample], counts: Sequence[Sample], scale: float
) -> Figures:
    values: dict[float, float] = {}
    for quantile in quantiles:
        try:
            share = float(quantile.labels["quantile"])
        except ValueError as error:
            raise _unreadable(quantile.line, "its label quantile is not a number") from error
        if share in values:
            raise _unreadable(
                quantile.line, "a second label set: quantiles of two summaries cannot be combined"
            )
        if not (math.isfinite(quantile.value) and quantile.value >= 0):
            raise _unreadable(quantile.line, "its value is not a latency")
        values[share] = quantile.value * scale
    if missing := [share for share in (0.5, 0.99) if share not in values]:
        raise SetupError(f'{metric} has no quantile="{missing[0]:g}"')
    if len(counts) != 1:
        raise SetupError(f"{metric}_count occurs {len(counts)} times, not once")
    if not (math.isfinite(counts[0].value) and counts[0].value >= 1):
        raise _unreadable(counts[0].line, "it has counted nothing")
    count = int(counts[0].value)
    return Figures(latency=Latency(p50_ms=values[0.5], p99_ms=values[0.99], count=count))


def _of_perf_analyzer(text: str) -> Figures:
    lines = [line for line in text.splitlines() if line.strip()]
    head = next((at for at, line in enumerate(lines) if f",{_RATE}," in line), None)
    if head is None:
        raise SetupError(
            f"there is no line of perf_analyzer's head with {_RATE}: name its file with -f"
        )
    names = next(csv.reader([lines[head]]))
    rows = [line for line in lines[head + 1 :] if line.count(",") == len(names) - 1]
    if len(rows) != 1:
        raise SetupError(
            f"perf_analyzer's table has {len(rows)} rows, not one: measure one concurrency or"
            f" request rate; its head is {_quoted(lines[head])}"
        )
    row = dict(zip(names, next(csv.reader(rows)), strict=True))
    try:
        rate, p50, p99 = (float(row[name]) for name in (_RATE, _P50, _P99))
        latency = Latency(p50_ms=p50 / 1e3, p99_ms=p99 / 1e3)
    except (KeyError, ValueError) as error:
        raise _unreadable(rows[0], f"{_RATE}, {_P50} or {_P99} is missing") from error
    if not (math.isfinite(rate) and rate >= 0):
        raise _unreadable(rows[0], f"{_RATE} is not a rate")
    return Figures(latency=latency, throughput=rate, unit="inferences")


def _unreadable(line: str, why: str) -> SetupError:
    return SetupError(f"{why}: {_quoted(line)}")


def _quoted(line: str) -> str:
    return repr(line if len(line) <= _QUOTED else line[:_QUOTED] + "…")
