"""Measurements compared: percentiles, ratios to the same work alone, fairness. Pure.

Everything is a ratio to what a scenario compares its cases with, usually one tenant alone on a
whole GPU, so that figures of different machines can be compared. Each tenant is compared with the
one with its role there, in the same round.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial

from msgspec import Struct
from msgspec.structs import replace

from dra_driver.bench.model import Case, Relation, Result, Study, Tenant
from dra_driver.bench.strategies import Strategy


def fairness(amounts: Sequence[float]) -> float | None:
    """Return Jain's index: 1 if all have the same, 1/n if one of n has all.

    None if all have nothing.
    """
    squares = sum(amount * amount for amount in amounts)
    if squares == 0:
        return None
    return sum(amounts) ** 2 / (len(amounts) * squares)


class Comparison(Struct, frozen=True, kw_only=True):
    """A case compared with the work alone, as ratios; None if one of the two has no such figure.

    Attributes:
        total_throughput: of all tenants together.
        least_throughput: of the tenant that got least.
        run_time: of the slowest tenant for the same amount of work.
        p50: the largest median latency of a tenant; `p99` is the same for the 99th percentile.
        context: the longest time to make a CUDA context.
        energy_per_work: energy of the card for a unit of work.
        isolation: what neighbours cost: the 99th percentile, or the run time, as a ratio to that of
            the same share without neighbours.
        fairness: Jain's index of throughputs; `memory_fairness` of the memory that tenants had.
    """

    total_throughput: float | None = None
    least_throughput: float | None = None
    run_time: float | None = None
    p50: float | None = None
    p99: float | None = None
    context: float | None = None
    energy_per_work: float | None = None
    isolation: float | None = None
    fairness: float | None = None
    memory_fairness: float | None = None


def results(case: Case) -> tuple[Result, ...]:
    """Return the results of a case's tenants."""
    return tuple(tenant.result for tenant in case.tenants if tenant.result is not None)


def bases(cases: Sequence[Case], case: Case, study: Study) -> tuple[Case, ...]:
    """Return the cases of the same round that one is compared with."""
    relation = relation_of(study, case.strategy)
    own = () if relation.group else (case.strategy.name,)
    return _measured(cases, case.repetition, (*relation.against, *own))


def undisturbed(cases: Sequence[Case], case: Case, study: Study) -> tuple[Case, ...]:
    """Return the cases of the same round and shares without neighbours."""
    return _measured(cases, case.repetition, relation_of(study, case.strategy).undisturbed)


def relation_of(study: Study, strategy: Strategy) -> Relation:
    """Return what a case of a scenario is compared with."""
    relations = (relation for relation in study.relations if relation.case == strategy.name)
    return next(relations, Relation(case=strategy.name))


def _measured(cases: Sequence[Case], repetition: int, names: Sequence[str]) -> tuple[Case, ...]:
    measured = {
        case.strategy.name: case
        for case in cases
        if case.repetition == repetition and case.state == "measured"
    }
    return tuple(measured[name] for name in names if name in measured)


def of_role(case: Case, role: str) -> tuple[Tenant, ...]:
    """Return the tenants of a case that have a role."""
    return tuple(tenant for tenant in case.tenants if case.strategy.role(tenant.number) == role)


def compared(
    case: Case,
    measures: Sequence[Case],
    *,
    neighbourless: Sequence[Case] = (),
    role: str | None = None,
) -> Comparison:
    """Return how a case compares with others.

    Each tenant is compared with the first that has its role, or does its work; one without a result
    counts as 0. With a role, only tenants with that role count.
    """
    tenants = case.tenants if role is None else of_role(case, role)
    own = [tenant.result for tenant in tenants if tenant.result is not None]
    if not own:
        return Comparison()
    base = {tenant.number: _base(measures, case.strategy, tenant.number) for tenant in tenants}
    shares = [_progress(tenant, base[tenant.number]) for tenant in tenants]
    known = [share for share in shares if share is not None]
    memory = [float(result.memory_mib) for result in own if result.memory_mib is not None]
    got = known if len(known) == len(shares) else [_throughput_of(tenant) for tenant in tenants]
    just_own = Comparison(
        fairness=fairness(got),
        memory_fairness=fairness(memory) if memory else None,
        isolation=_isolation(case, neighbourless, tenants),
    )
    if len(known) != len(shares):
        return just_own
    ratios = partial(_worst_ratio, tenants, base)
    is_one_work = len(case.strategy.roles) == 1
    return replace(
        just_own,
        total_throughput=sum(known),
        least_throughput=min(known),
        run_time=None if not min(known) else 1 / min(known),
        p50=ratios(lambda result: _latency(result, "p50_ms")),
        p99=ratios(lambda result: _latency(result, "p99_ms")),
        context=ratios(lambda result: result.context_seconds),
        energy_per_work=_energy_ratio(case, measures) if is_one_work else None,
    )


def _throughput_of(tenant: Tenant) -> float:
    return tenant.result.throughput if tenant.result else 0.0


def _progress(tenant: Tenant, base: Result | None) -> float | None:
    return None if base is None else _ratio(_throughput_of(tenant), base.throughput)


def _base(measures: Sequence[Case], strategy: Strategy, number: int) -> Result | None:
    """Return the result that a tenant is compared with."""
    base = _base_tenant(measures, strategy, number)
    return None if base is None else base[1].result


def _base_tenant(
    measures: Sequence[Case], strategy: Strategy, number: int
) -> tuple[Case, Tenant] | None:
    """Return the tenant that one is compared with: the first of its role, else of its work."""
    role, work = strategy.role(number), strategy.parts[number].work
    have = [(case, each) for case in measures for each in case.tenants if each.result is not None]
    for case, tenant in have:
        if case.strategy.role(tenant.number) == role:
            return case, tenant
    for case, tenant in have:
        if case.strategy.parts[tenant.number].work == work:
            return case, tenant
    return None


def _worst_ratio(
    tenants: Sequence[Tenant],
    base: Mapping[int, Result | None],
    figure: Callable[[Result], float | None],
) -> float | None:
    """Return the largest ratio of a figure to that of the base, over tenants that have both."""
    ratios = []
    for tenant in tenants:
        measure = base[tenant.number]
        if tenant.result is not None and measure is not None:
            ratios.append(_ratio(figure(tenant.result), figure(measure)))
    return max((ratio for ratio in ratios if ratio is not None), default=None)


def _isolation(
    case: Case, neighbourless: Sequence[Case], tenants: Sequence[Tenant]
) -> float | None:
    """Return the cost of neighbours: the worst ratio of latency or run time to that without them.

    Only for tenants that a case without neighbours has, too.
    """
    ratios = []
    for tenant in tenants:
        base = _base(neighbourless, case.strategy, tenant.number)
        if base is None or tenant.result is None:
            continue
        if tenant.result.latency and base.latency:
            ratios.append(_ratio(tenant.result.latency.p99_ms, base.latency.p99_ms))
        else:
            ratios.append(_ratio(base.throughput, tenant.result.throughput))
    return max((ratio for ratio in ratios if ratio is not None), default=None)


def _energy_ratio(case: Case, measures: Sequence[Case]) -> float | None:
    base = _base_tenant(measures, case.strategy, case.tenants[0].number)
    return None if base is None else _ratio(energy_per_work(case), energy_per_work(base[0]))


def throughput(told: Sequence[Result]) -> float:
    """Return what tenants did together in a second."""
    return sum(result.throughput for result in told)


def energy_per_work(case: Case) -> float | None:
    """Return the joules of the whole card for a unit of work."""
    done = sum(result.throughput * result.seconds for result in results(case))
    if case.usage is None or case.usage.energy_joules is None or not done:
        return None
    return case.usage.energy_joules / done


def _latency(result: Result, name: str) -> float | None:
    return None if result.latency is None else float(getattr(result.latency, name))


def worst_latency(told: Sequence[Result], name: str) -> float | None:
    """Return the largest latency of a tenant, in ms."""
    known = [float(getattr(each.latency, name)) for each in told if each.latency is not None]
    return max(known, default=None)


def _ratio(value: float | None, base: float | None) -> float | None:
    return None if value is None or not base else value / base
