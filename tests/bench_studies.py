"""Reports of scenarios, made up: no GPU did any of this. For tests of what reports look like."""

import random

from bench_reports import CARD, report, result
from dra_driver.bench.model import Case, Report, Tenant
from dra_driver.bench.scenarios.plan import planned
from dra_driver.bench.scenarios.read import find_scenario
from dra_driver.bench.strategies import Strategy

H100 = {"1g.10gb": 7, "2g.20gb": 3, "3g.40gb": 2, "7g.80gb": 1}
ALONE = {"light": (20.0, 11.0), "heavy": (9000.0, 5.0)}
"""By role the throughput and the 99th percentile that are made up for it alone."""

BESIDE = {
    "time-slicing": {"light": (0.93, 9.0), "heavy": (0.62, 2.0)},
    "MPS": {"light": (1.0, 2.6), "heavy": (0.88, 1.4)},
    "MPS, 70 % of the SMs for heavy": {"light": (1.0, 1.9), "heavy": (0.71, 1.5)},
    "MPS, 30 % of the SMs for heavy": {"light": (1.0, 1.3), "heavy": (0.31, 3.1)},
    "MPS, heavy below normal priority": {"light": (1.0, 1.6), "heavy": (0.83, 1.5)},
    "MIG 3g each": {"light": (1.0, 2.3), "heavy": (0.42, 2.4)},
}
"""By strategy and role the ratios that are made up."""


UNITS = {
    "inference": ("requests", 20.0),
    "compute": ("GFLOP", 41000.0),
    "bandwidth": ("GB", 2800.0),
    "memory": ("GB", 2700.0),
}
"""By kind of work what it is counted in, and what is made up for it alone."""


def study(*, repetitions: int = 3, noise: float = 0.03, **changed: object) -> Report:
    """A report of `light-beside-heavy`, with figures that are made up."""
    name, scenario = find_scenario("light-beside-heavy")
    scenario = scenario.model_copy(update={"repetitions": repetitions})
    plan = planned(name, scenario, memory_mib=81559, profiles=H100, obstacle=lambda _: "")
    dice = random.Random(1)  # noqa: S311
    cases = tuple(
        _case(strategy, repetition, dice, noise)
        for repetition in range(repetitions)
        for strategy in plan.strategies
    )
    facts = {"where": "processes", "study": plan.study, "card": CARD}
    return report(**{**facts, "cases": cases, **changed})


def _case(strategy: Strategy, repetition: int, dice: random.Random, noise: float) -> Case:
    tenants = []
    for number, part in enumerate(strategy.parts):
        throughput, p99 = ALONE[part.role]
        times, wait = BESIDE.get(strategy.name, {}).get(part.role, (1.0, 1.0))
        shaken = dice.uniform(1 - noise, 1 + noise)
        unit = "requests" if part.role == "light" else "GFLOP"
        tenants.append(
            Tenant(number=number, result=result(throughput * times, p99 * wait * shaken, unit=unit))
        )
    return Case(strategy=strategy, repetition=repetition, state="measured", tenants=tuple(tenants))
