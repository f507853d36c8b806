"""What was measured, compared: percentiles, ratios to the same work alone, fairness. Pure.

Everything is a ratio to one tenant alone on a whole GPU of the same run, so that figures of
different machines can be compared.
"""

from collections.abc import Sequence

from dra_driver.admin.bench.model import Case, Report, Result
from dra_driver.admin.bench.strategies import Sharing, Strategy
from dra_driver.dataclass import dataclass


def fairness(amounts: Sequence[float]) -> float | None:
    """Return Jain's index: 1 where all have the same, 1/n where one of n has all.

    None where nobody has anything.
    """
    squares = sum(amount * amount for amount in amounts)
    if squares == 0:
        return None
    return sum(amounts) ** 2 / (len(amounts) * squares)


@dataclass(frozen=True, slots=True, kw_only=True)
class InContainers:
    """A strategy as pods against the same as processes; None where one has no such figure.

    Attributes:
        throughput: of all tenants together, as ratio.
        p50: the largest median latency of a tenant, as ratio; `p99` likewise.
        context: the longest making of a CUDA context, as ratio.
        launch_seconds: how much longer until the last tenant was ready to work.
    """

    strategy: Strategy
    throughput: float | None
    p50: float | None
    p99: float | None
    context: float | None
    launch_seconds: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """A case against the work alone, as ratios; None where one of the two has no such figure.

    Attributes:
        total_throughput: of all tenants together.
        least_throughput: of the tenant that got least.
        run_time: of the slowest tenant for the same amount of work.
        p50: the largest median latency of a tenant; `p99` likewise.
        context: the longest making of a CUDA context.
        energy_per_work: energy of the card for a unit of work.
        fairness: Jain's index of throughputs; `memory_fairness` of the memory that tenants had.
    """

    total_throughput: float | None = None
    least_throughput: float | None = None
    run_time: float | None = None
    p50: float | None = None
    p99: float | None = None
    context: float | None = None
    energy_per_work: float | None = None
    fairness: float | None = None
    memory_fairness: float | None = None


def results(case: Case) -> tuple[Result, ...]:
    """Return the results of a case's tenants."""
    return tuple(one.result for one in case.tenants if one.result is not None)


def alone(cases: Sequence[Case]) -> Case | None:
    """Return the case that all others are compared with."""
    for case in cases:
        if case.strategy.sharing is Sharing.ALONE and case.state == "measured":
            return case
    return None


def compared(case: Case, measure: Case | None) -> Comparison:
    """Return how a case does against the work alone; a tenant without result got nothing."""
    own = results(case)
    if not own:
        return Comparison()
    got = [one.result.throughput if one.result else 0.0 for one in case.tenants]
    memory = [float(one.memory_mib) for one in own if one.memory_mib is not None]
    just_own = Comparison(
        fairness=fairness(got), memory_fairness=fairness(memory) if memory else None
    )
    if measure is None or not results(measure):
        return just_own
    (one_alone,) = results(measure)
    least = _ratio(min(got), one_alone.throughput)
    return Comparison(
        total_throughput=_ratio(sum(got), one_alone.throughput),
        least_throughput=least,
        run_time=None if not least else 1 / least,
        p50=_ratio(_worst_latency(own, "p50_ms"), _worst_latency((one_alone,), "p50_ms")),
        p99=_ratio(_worst_latency(own, "p99_ms"), _worst_latency((one_alone,), "p99_ms")),
        context=_ratio(_worst_context(own), one_alone.context_seconds),
        energy_per_work=_ratio(energy_per_work(case), energy_per_work(measure)),
        fairness=just_own.fairness,
        memory_fairness=just_own.memory_fairness,
    )


def in_containers(pods: Report, processes: Report) -> tuple[InContainers, ...]:
    """Return what containers cost: for each strategy that both reports have results of.

    Nothing for two works, or for cards of two kinds: what differs is not the container then.
    """
    if pods.work != processes.work or pods.card.name != processes.card.name:
        return ()
    bare = {case.strategy: results(case) for case in processes.cases if results(case)}
    found = []
    for case in pods.cases:
        own, other = results(case), bare.get(case.strategy, ())
        if not own or not other:
            continue
        launches = (_slowest_launch(own), _slowest_launch(other))
        found.append(
            InContainers(
                strategy=case.strategy,
                throughput=_ratio(_throughput(own), _throughput(other)),
                p50=_ratio(_worst_latency(own, "p50_ms"), _worst_latency(other, "p50_ms")),
                p99=_ratio(_worst_latency(own, "p99_ms"), _worst_latency(other, "p99_ms")),
                context=_ratio(_worst_context(own), _worst_context(other)),
                launch_seconds=None
                if launches[0] is None or launches[1] is None
                else launches[0] - launches[1],
            )
        )
    return tuple(found)


def _throughput(found: Sequence[Result]) -> float:
    return sum(one.throughput for one in found)


def _slowest_launch(found: Sequence[Result]) -> float | None:
    return max(
        (one.launch_seconds for one in found if one.launch_seconds is not None), default=None
    )


def energy_per_work(case: Case) -> float | None:
    """Return the joules of the whole card for a unit of work."""
    done = sum(one.throughput * one.seconds for one in results(case))
    if case.usage is None or case.usage.energy_joules is None or not done:
        return None
    return case.usage.energy_joules / done


def _worst_latency(found: Sequence[Result], name: str) -> float | None:
    values = [float(getattr(one.latency, name)) for one in found if one.latency is not None]
    return max(values, default=None)


def _worst_context(found: Sequence[Result]) -> float | None:
    return max((one.context_seconds for one in found if one.context_seconds), default=None)


def _ratio(value: float | None, base: float | None) -> float | None:
    return None if value is None or not base else value / base
