"""A report of measurements as a file: strict, with a version, and the same for every runner.

In: what a run found, or the JSON of one. Out: frozen values, or JSON. Unknown fields, invalid
numbers and other versions are refused. A report of simulated GPUs has no results, because no GPU
did any work. Ratios are computed from these values (bench/report/figures.py) and are not part of
them.
"""

import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, ValidationError, model_validator

from dra_driver.bench.strategies import Strategy
from dra_driver.bench.workload import Strict
from dra_driver.errors import StateError
from dra_driver.host.files import temporary_of

VERSION: Literal[1] = 1
_MOST_BYTES = 64 << 20

Amount = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=0)]
Percent = Annotated[float, Field(ge=0, le=100)]


class Card(Strict):
    """The device that did the work. What it does not report is None; clocks in MHz."""

    name: str
    uuid: str
    driver_version: str
    memory_mib: Count | None = None
    sm_clock_mhz: Count | None = None
    most_sm_clock_mhz: Count | None = None
    memory_clock_mhz: Count | None = None
    power_limit_watts: Amount | None = None
    compute_mode: str = ""
    is_simulated: bool = False


class Latency(Strict):
    """From a request's arrival to its end, in milliseconds.

    A request that was unfinished when its tenant ended counts with its waiting time until then.
    `count` is None if a user's own command does not say how many requests they cover.
    """

    p50_ms: Amount
    p99_ms: Amount
    count: Count | None = None
    unfinished: Count = 0


class Usage(Strict):
    """What NVML reports about the whole card during the work; None for what it does not report.

    `sm_percent` is the share of time in which any kernel ran, `memory_percent` that in which memory
    was read or written: neither says how much of the SMs or of the bandwidth was used.
    """

    sm_percent: Percent | None = None
    memory_percent: Percent | None = None
    memory_used_mib: Count | None = None
    energy_joules: Amount | None = None
    sm_clock_mhz: Count | None = None
    samples: Count = 0


class Result(Strict):
    """What one tenant did, from the moment at which all began.

    Attributes:
        throughput: units of work in a second.
        seconds: from its beginning to its end.
        late_seconds: how long after the common moment it began.
        context_seconds: how long it took to make its CUDA context.
        launch_seconds: from its start, as a process or pod, until it was ready to work.
        memory_refused_mib: what it asked for and did not get; None if nothing was refused.
        busy_sm_percent: how many SMs were busy, by GPM: of its GPU instance, or of the whole GPU.
        bandwidth_percent: how much of the memory's bandwidth was used, in the same way.
    """

    throughput: Amount
    unit: str
    seconds: Amount
    latency: Latency | None = None
    late_seconds: Amount = 0.0
    context_seconds: Amount | None = None
    launch_seconds: Amount | None = None
    memory_mib: Count | None = None
    memory_refused_mib: Count | None = None
    busy_sm_percent: Percent | None = None
    bandwidth_percent: Percent | None = None
    exit_status: int | None = None


class Tenant(Strict):
    """One of the tenants that worked together: a result, or why there is none."""

    number: Count
    result: Result | None = None
    failure: str = ""


class Case(Strict):
    """One strategy with its tenants.

    `measured`: there are results. `passed`: all ran, on simulated GPUs, which do no work.
    `skipped`: it was not tried. `failed`: it was, and there are no results. `reason` says why.
    `repetition` counts from 0; cases with the same one were run in one round.
    """

    strategy: Strategy
    repetition: Count = 0
    state: Literal["measured", "passed", "skipped", "failed"]
    reason: str = ""
    tenants: tuple[Tenant, ...] = ()
    usage: Usage | None = None
    seen: tuple[str, ...] = ()
    """What was found out about the strategy while it ran, such as the limits of an MPS daemon."""

    @model_validator(mode="after")
    def _results_where_measured(self) -> Self:
        has_results = any(tenant.result for tenant in self.tenants)
        if has_results != (self.state == "measured"):
            raise ValueError(f"a case that is {self.state} has results: {has_results}")
        if has_results and len(self.tenants) != self.strategy.tenants:
            raise ValueError(
                f"{len(self.tenants)} tenants are reported, but the strategy has"
                f" {self.strategy.tenants}"
            )
        if self.state in ("skipped", "failed") and not self.reason:
            raise ValueError(f"a case that is {self.state} has no reason")
        return self


class Step(Strict):
    """One step of a sweep: how large the share was, in percent, and whether it met the goal."""

    strategy: Strategy
    share_percent: Percent
    worst_ms: Amount | None
    holds: bool


class Sweep(Strict):
    """Steps from the smallest share to the largest, and the smallest one that meets the goal."""

    goal_ms: Amount
    steps: tuple[Step, ...]
    chosen: Strategy | None = None
    claim: str = ""
    share_config: str = ""
    note: str = ""


Figure = Literal[
    "throughput", "least", "p50", "p99", "time", "isolation", "fairness", "memory fairness"
]
"""What a strategy can be best at; each is explained beside the report's columns."""


class Goal(Strict):
    """What a strategy should be good at; with a role, for tenants of that role."""

    figure: Figure
    role: str = ""


class Relation(Strict):
    """What a case is compared with, by the names of cases.

    Attributes:
        against: the base of ratios; for each tenant the first tenant with its role, or its work.
        undisturbed: those with the same shares and no neighbours, chosen in the same way.
        group: only cases of one group are ranked against each other.
    """

    case: str
    against: tuple[str, ...] = ()
    undisturbed: tuple[str, ...] = ()
    group: str = ""


class Study(Strict):
    """What a scenario asks, and how its cases belong together.

    With `goal_ms`, it seeks the smallest share whose tenants' 99th percentile is at most this.
    """

    name: str
    answers: str
    repetitions: Annotated[int, Field(ge=1)] = 1
    seed: int = 1
    goals: tuple[Goal, ...] = ()
    goal_ms: Amount | None = None
    relations: tuple[Relation, ...] = ()


class Report(Strict):
    """A whole run; the parts of its strategies contain their workloads."""

    version: Literal[1] = VERSION
    made_at: str
    where: Literal["processes", "pods"]
    dra_driver: str
    study: Study
    card: Card
    cases: tuple[Case, ...]
    sweep: Sweep | None = None
    interrupted: bool = False

    @model_validator(mode="after")
    def _nothing_of_simulated_gpus(self) -> Self:
        measured = [case for case in self.cases if case.state == "measured"]
        if self.card.is_simulated and (measured or self.sweep):
            raise ValueError("simulated GPUs do no work, so they have no results")
        return self


def percentile(values: Sequence[float], share: float) -> float:
    """Return the smallest value that at least this share (0 to 1) of all do not exceed."""
    if not values:
        raise ValueError("no values")
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def mean_of(values: Iterable[float | None]) -> float | None:
    """Return the mean of the known values; None if there are none."""
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def write_report(report: Report, path: Path) -> None:
    """Write a report as JSON, whole or not at all."""
    try:
        new = Path(temporary_of(path))
        new.write_text(report.model_dump_json(indent=2) + "\n", encoding="utf-8")
        new.replace(path)
    except OSError as error:
        raise StateError(f"{path} cannot be written: {error.strerror}") from error


def read_report(path: Path) -> Report:
    """Read a report."""
    try:
        with path.open("rb") as file:
            content = file.read(_MOST_BYTES + 1)
    except OSError as error:
        raise StateError(f"{path} cannot be read: {error.strerror}") from error
    if len(content) > _MOST_BYTES:
        raise StateError(f"{path} is larger than {_MOST_BYTES >> 20} MiB, so it is not a report")
    try:
        return Report.model_validate_json(content)
    except ValidationError as error:
        fault = error.errors(include_url=False)[0]
        where = ".".join(str(part) for part in fault["loc"]) or "the file"
        raise StateError(
            f"{path} is not a report of version {VERSION}: {where}: {fault['msg']}; make it again "
            "with `dra-driver bench`"
        ) from error
