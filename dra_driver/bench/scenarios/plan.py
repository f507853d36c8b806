"""A scenario on a card: its cases as strategies, and what each is compared with. Pure.

In: a `Scenario`, the card's memory, the MIG profiles, and a function that returns why a
strategy cannot be run. Out: a `Plan`. If a base cannot be run, such as the work alone on a GPU in
MIG mode, the case that the scenario names instead takes its place.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from msgspec import Struct
from pydantic import ValidationError

from dra_driver.bench.model import Relation, Study
from dra_driver.bench.scenarios.model import (
    CaseSpec,
    Limits,
    Scenario,
    TenantSpec,
    share_of,
)
from dra_driver.bench.strategies import (
    Part,
    Sharing,
    Strategy,
    is_plain,
    profile_size,
)
from dra_driver.errors import ConfigError


class Plan(Struct, frozen=True, kw_only=True):
    """What to run, in this order, and how the cases of a scenario belong together."""

    strategies: tuple[Strategy, ...]
    study: Study


def planned(
    name: str,
    scenario: Scenario,
    *,
    memory_mib: int | None,
    profiles: Mapping[str, int],
    obstacle: Callable[[Strategy], str],
) -> Plan:
    """Return the plan. Raises ConfigError if the scenario is not possible on this card."""
    named: dict[str, Strategy] = {}
    for case in scenario.cases:
        try:
            named[case.name] = strategy_of(scenario, case, memory_mib=memory_mib, profiles=profiles)
        except ValueError as error:
            raise ConfigError(f'scenario {name}: case "{case.name}": {reason(error)}') from error
    stand_ins = {
        case.name: case.instead
        for case in scenario.cases
        if case.instead and obstacle(named[case.name])
    }
    relations = _relations(scenario, named, stand_ins)
    needless = _needless(scenario, stand_ins, relations)
    chosen = [case.name for case in scenario.cases if case.name not in needless]
    return Plan(
        strategies=tuple(named[name] for name in chosen),
        study=Study(
            name=name,
            answers=scenario.answers,
            repetitions=scenario.repetitions,
            seed=scenario.seed,
            goals=scenario.goals,
            goal_ms=scenario.goal_ms,
            relations=tuple(relation for relation in relations if relation.case not in needless),
        ),
    )


def strategy_of(
    scenario: Scenario, case: CaseSpec, *, memory_mib: int | None, profiles: Mapping[str, int]
) -> Strategy:
    """Return a case as a strategy. Raises ValueError with what is wrong."""
    sharing = _sharing(case)
    tenants = _all_tenants(case, profiles)
    limits = [tenant.limits for tenant in tenants]
    if case.limits == "equal":
        parts = len(tenants)
        memory = None if memory_mib is None else max(1, memory_mib // parts)
        limits = [Limits(threads=max(1, 100 // parts), memory=memory)] * parts
    wanted = [_profile(tenant.profile, profiles) for tenant in tenants]
    own_limits = [(limit.threads, _memory(limit, memory_mib)) for limit in limits]
    # A value that all tenants have is a setting of the strategy, as an admin would set it.
    threads = memory = None
    if sharing is Sharing.MPS and len(set(own_limits)) == 1 and any(own_limits[0]):
        sharing = Sharing.MPS_LIMITS
        threads, memory = own_limits[0]
        own_limits = [(None, None)] * len(tenants)
    profile = wanted[0] if len(set(wanted)) == 1 else ""
    return Strategy(
        sharing=sharing,
        thread_percentage=threads,
        memory_mib=memory,
        profile=profile,
        name=case.name,
        parts=tuple(
            Part(
                role=tenant.role or tenant.work,
                work=scenario.work(tenant, memory_mib),
                thread_percentage=own_threads,
                memory_mib=own_memory,
                priority=tenant.priority,
                profile="" if profile else own_profile,
                gpus=tenant.gpus,
                after=tenant.after,
                launch=tenant.launch,
            )
            for tenant, own_profile, (own_threads, own_memory) in zip(
                tenants, wanted, own_limits, strict=True
            )
        ),
    )


def reason(error: ValueError) -> str:
    """Return what is wrong, without pydantic's own words around it."""
    if isinstance(error, ValidationError):
        return error.errors(include_url=False)[0]["msg"].removeprefix("Value error, ")
    return str(error)


def _sharing(case: CaseSpec) -> Sharing:
    if case.sharing is not None:
        return Sharing(case.sharing)
    if any(tenant.profile for tenant in case.tenants):
        return Sharing.MIG
    if len(case.tenants) == 1 and case.tenants[0].count == 1:
        return Sharing.ALONE
    raise ValueError("it has several tenants: set `sharing`, which says how they share a GPU")


def _all_tenants(case: CaseSpec, profiles: Mapping[str, int]) -> list[TenantSpec]:
    """Return the tenants one by one."""
    counted = [tenant for tenant in case.tenants if tenant.count != "rest"]
    rest = [tenant for tenant in case.tenants if tenant.count == "rest"]
    if len(rest) > 1 or any(each.profile != rest[0].profile for each in counted if rest):
        raise ValueError("`count: rest` is for one kind of tenants, and all have one MIG profile")
    if rest and not rest[0].profile:
        raise ValueError("`count: rest` is for MIG devices: name a profile")
    taken = sum(int(each.count) for each in counted)
    tenants = []
    for spec in case.tenants:
        fit = profiles.get(_profile(spec.profile, profiles), 0)
        number = max(1, fit - taken) if spec.count == "rest" else int(spec.count)
        tenants += [spec] * number
    return tenants


def _profile(wanted: str, profiles: Mapping[str, int]) -> str:
    """Return the MIG profile that fits; if there is none, what was asked for."""
    if not wanted or "." in wanted:
        return wanted
    plain = sorted((profile for profile in profiles if is_plain(profile)), key=profile_size)
    if wanted.endswith("g"):
        plain = [name for name in plain if name.startswith(f"{wanted}.")]
    if not plain:
        return wanted
    return plain[-1] if wanted == "largest" else plain[0]


def _memory(limits: Limits, memory_mib: int | None) -> int | None:
    if isinstance(limits.memory, str):
        return share_of(limits.memory, memory_mib)
    return limits.memory


def _relations(
    scenario: Scenario, strategies: Mapping[str, Strategy], stand_ins: Mapping[str, str]
) -> list[Relation]:
    """Return what each case is compared with; a base is compared with itself."""
    groups = _groups(strategies)
    bases = {
        name
        for case in scenario.cases
        for name in (*_against(scenario, case), *case.undisturbed, *_instead(stand_ins, case))
    }
    return [
        Relation(
            case=case.name,
            against=tuple(stand_ins.get(name, name) for name in _against(scenario, case)),
            undisturbed=case.undisturbed,
            group="" if case.name in bases and not case.group else case.group or groups[case.name],
        )
        for case in scenario.cases
    ]


def _against(scenario: Scenario, case: CaseSpec) -> tuple[str, ...]:
    return scenario.against if case.against is None else case.against


def _instead(stand_ins: Mapping[str, str], case: CaseSpec) -> tuple[str, ...]:
    return (stand_ins[case.name],) if case.name in stand_ins else ()


def _needless(
    scenario: Scenario, stand_ins: Mapping[str, str], relations: Sequence[Relation]
) -> set[str]:
    """Return the stand-ins of cases that can be run."""
    spare = {case.instead for case in scenario.cases if case.instead}
    used = {name for relation in relations for name in (*relation.against, *relation.undisturbed)}
    return spare - used - set(stand_ins.values())


def _groups(strategies: Mapping[str, Strategy]) -> dict[str, str]:
    """Return the group of each case: cases whose tenants do the same are in one group."""
    works: dict[str, Counter[tuple[str, str]]] = {
        name: Counter((part.role, part.work.described()) for part in strategy.parts)
        for name, strategy in strategies.items()
    }
    return {
        name: " + ".join(f"{number} {role} ({work})" for (role, work), number in counts.items())
        for name, counts in works.items()
    }
