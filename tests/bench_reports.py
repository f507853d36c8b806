"""Reports of benchmarks, made up: no GPU did any of this. For tests of what reports look like."""

from collections.abc import Iterable

from dra_driver.bench.model import (
    Card,
    Case,
    Latency,
    Relation,
    Report,
    Result,
    Step,
    Study,
    Sweep,
    Tenant,
    Usage,
    percentile,
)
from dra_driver.bench.strategies import Part, Sharing, Strategy
from dra_driver.bench.workload import Workload, WorkloadKind

CARD = Card(
    name="Made-up GPU 80GB",
    uuid="GPU-00000000-0000-0000-0000-000000000000",
    driver_version="580.95.05",
    memory_mib=81559,
    sm_clock_mhz=345,
    most_sm_clock_mhz=1980,
    memory_clock_mhz=2619,
    power_limit_watts=700.0,
    compute_mode="Default",
)
SERVICE = Workload(kind=WorkloadKind.INFERENCE)
SIMULATED = CARD.model_copy(update={"is_simulated": True})


def strategy(
    sharing: Sharing, tenants: int = 1, work: Workload = SERVICE, **fields: object
) -> Strategy:
    """A strategy whose tenants are alike."""
    parts = (Part(role="service", work=work),) * tenants
    facts = {"sharing": sharing, "name": f"{tenants} by {sharing}", "parts": parts, **fields}
    return Strategy.model_validate(facts)


ALONE = strategy(Sharing.ALONE, name="alone")


def result(throughput: float, p99: float, **fields: object) -> Result:
    latencies = [p99 * share / 100 for share in range(1, 101)]
    latency = Latency(p50_ms=percentile(latencies, 0.5), p99_ms=p99, count=400)
    facts = {
        "unit": "requests",
        "seconds": 20.0,
        "context_seconds": 0.21,
        "launch_seconds": 1.4,
        "memory_mib": 12,
        **fields,
    }
    return Result.model_validate({"throughput": throughput, "latency": latency, **facts})


def case(of: Strategy, each: list[float], p99: float, busy: float) -> Case:
    return Case(
        strategy=of,
        state="measured",
        tenants=tuple(
            Tenant(number=number, result=result(got, p99)) for number, got in enumerate(each)
        ),
        usage=Usage(
            sm_percent=busy,
            memory_percent=busy / 3,
            memory_used_mib=2000,
            energy_joules=4000.0 + 60 * busy,
            sm_clock_mhz=1755,
            samples=80,
        ),
    )


def cases() -> tuple[Case, ...]:
    found = [case(ALONE, [20.0], 11.0, 14.0)]
    for number, p99 in ((2, 24.0), (4, 61.0), (8, 190.0)):
        uneven = [19.5 - 0.9 * at * (number / 8) for at in range(number)]
        found.append(
            case(strategy(Sharing.TIME_SLICING, number), uneven, p99, min(99.0, 14.0 * number))
        )
        found.append(
            case(strategy(Sharing.MPS, number), [19.9] * number, p99 / 2, min(96.0, 12.5 * number))
        )
        limits = {"thread_percentage": 100 // number, "memory_mib": 81559 // number}
        limited = strategy(Sharing.MPS_LIMITS, number, **limits)
        found.append(case(limited, [20.0] * number, p99 / 2.6, min(95.0, 12.0 * number)))
    mig = strategy(Sharing.MIG, 7, profile="1g.10gb", name="7 by MIG 1g.10gb")
    found.append(case(mig, [19.2] * 7, 44.0, 0.0).model_copy(update={"usage": None}))
    return tuple(found)


def sweep() -> Sweep:
    steps = []
    for percent, worst in ((5, 210.0), (10, 88.0), (20, 41.0), (25, 30.0), (50, 17.0), (100, 11.0)):
        tenants = 100 // percent
        limits = {"thread_percentage": percent, "name": f"{tenants} by MPS with {percent} %"}
        limited = strategy(Sharing.MPS_LIMITS, tenants, **limits)
        steps.append(
            Step(strategy=limited, share_percent=percent, worst_ms=worst, holds=worst <= 50)
        )
    return Sweep(goal_ms=50.0, steps=tuple(steps), chosen=steps[2].strategy)


def asked(strategies: Iterable[Strategy], **fields: object) -> Study:
    """A scenario of these, each compared with one tenant alone."""
    relations = [
        Relation(
            case=each.name,
            against=(ALONE.name,),
            group="" if each == ALONE else f"{each.tenants} tenants",
        )
        for each in dict.fromkeys(strategies)
    ]
    return Study.model_validate(
        {"name": "made up", "answers": "Which?", "relations": tuple(relations), **fields}
    )


def report(**fields: object) -> Report:
    facts = {
        "made_at": "2026-11-22T12:00:00+00:00",
        "where": "pods",
        "dra_driver": "0.1.0",
        "card": CARD,
        "cases": cases(),
        **fields,
    }
    facts.setdefault("study", asked(each.strategy for each in facts["cases"]))  # type: ignore[attr-defined]
    return Report.model_validate(facts)
