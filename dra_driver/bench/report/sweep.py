"""How small a share may be: the smallest case of a scenario that meets its goal. Pure.

In: a scenario's goal, the card's memory, cases that were run. Out: a `Sweep` with a claim and a
share config ready for use, which pass `dra-driver validate`. A share passes if every
tenant meets the goal while the whole GPU is divided into such shares, and if all larger shares
pass, too: a lucky step between two that fail is not an answer.
"""

from collections.abc import Iterator, Mapping, Sequence

import yaml

from dra_driver.admin.validate.card_needs import SELECTOR
from dra_driver.admin.validate.findings import check_manifest
from dra_driver.bench.model import Card, Case, Step, Study, Sweep
from dra_driver.bench.pods.manifests import claim_config, requests
from dra_driver.bench.report.figures import relation_of, results
from dra_driver.bench.strategies import Sharing, Strategy, profile_size
from dra_driver.devices.names import DRIVER_NAME
from dra_driver.errors import ConfigError
from dra_driver.kube.fields import mapping

_INTERRUPTED = "The run was interrupted, and larger shares were not tried: none is chosen."


def judged(
    study: Study,
    cases: Sequence[Case],
    *,
    card: Card,
    profiles: Mapping[str, int],
    interrupted: bool = False,
) -> Sweep | None:
    """Return which share is the smallest that meets the scenario's goal; None if it has none.

    Simulated GPUs have none either. Every case that is not a base is a step. An interrupted run
    chooses nothing, because larger shares were not tried.
    """
    if study.goal_ms is None or card.is_simulated:
        return None
    rounds: dict[Strategy, list[Case]] = {}
    for case in cases:
        if relation_of(study, case.strategy).group and case.state in ("measured", "failed"):
            rounds.setdefault(case.strategy, []).append(case)
    found = (_step(each, study.goal_ms, card.memory_mib, profiles) for each in rounds.values())
    taken = tuple(sorted(found, key=lambda step: step.share_percent))
    chosen = None if interrupted else _smallest(taken)
    return Sweep(
        goal_ms=study.goal_ms,
        steps=taken,
        chosen=None if chosen is None else chosen.strategy,
        claim="" if chosen is None else as_claim(chosen.strategy),
        share_config="" if chosen is None else as_share_config(chosen.strategy),
        note=_INTERRUPTED if interrupted else _note(taken, chosen),
    )


def as_claim(strategy: Strategy) -> str:
    """Return a claim for one share, as YAML; for all of them where they differ."""
    is_own = strategy.sharing in (Sharing.ALONE, Sharing.MIG) and len(set(strategy.profiles)) == 1
    asked = requests(strategy)[:1] if is_own else requests(strategy)
    names = [each["name"] for each in asked]
    devices: dict[str, object] = {"requests": asked}
    if len(names) == 1:
        asked[0]["name"] = names[0] = "gpu"
    elif strategy.sharing is Sharing.MIG:
        attribute = f"{DRIVER_NAME}/parentUUID"
        devices["constraints"] = [{"requests": names, "matchAttribute": attribute}]
    if (config := claim_config(strategy)) and strategy.sharing is not Sharing.MIG:
        for request in asked:
            selectors = [{"cel": {"expression": SELECTOR}}]
            request["exactly"] = {**mapping(request, "exactly"), "selectors": selectors}
    if config:
        devices["config"] = [{"requests": names, "opaque": config}]
    spec: dict[str, object] = {"devices": devices}
    thing = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaimTemplate" if is_own else "ResourceClaim",
        "metadata": {"name": "measured-share"},
        "spec": {"spec": spec} if is_own else spec,
    }
    return _checked("".join(_heads(strategy, names, is_own=is_own)) + _yaml(thing))


def _heads(strategy: Strategy, names: Sequence[object], *, is_own: bool) -> Iterator[str]:
    """Yield comments on how a claim is used."""
    if len(names) > 1:
        yield "# Name it in each pod, with the pod's request.\n"
    elif not is_own:
        yield f"# Name it in up to {strategy.tenants} pods: they share one GPU.\n"
    for client in dict.fromkeys(part for part in strategy.parts if part.is_client_of_mps):
        given = ", ".join(f"{name}={value}" for name, value in client.environment().items())
        yield f"# In the container of {client.role}: {given}\n"


def as_share_config(strategy: Strategy) -> str:
    """Return a node's share config that gives out such shares, as YAML."""
    if strategy.sharing is Sharing.MIG:
        head = f"# Pods ask for nvidia.com/mig-{strategy.profile}: 1; nothing is divided further.\n"
        return _checked(head + _yaml({"version": "v1", "flags": {"migStrategy": "mixed"}}))
    resources = [{"name": "nvidia.com/gpu", "replicas": strategy.tenants}]
    head = ""
    if strategy.sharing is Sharing.TIME_SLICING:
        sharing: dict[str, object] = {"timeSlicing": {"resources": resources}}
    else:
        free = {} if strategy.thread_percentage is not None else {"compute": "free"}
        sharing = {"mps": {**free, "resources": resources}}
        if strategy.memory_mib is None:
            head = f"# Limits memory too, which was not measured: 1/{strategy.tenants} for each.\n"
    return _checked(head + _yaml({"version": "v1", "sharing": sharing}))


def _step(
    rounds: Sequence[Case], goal_ms: float, memory_mib: int | None, profiles: Mapping[str, int]
) -> Step:
    found = [result for case in rounds for result in results(case)]
    worst = [
        result.latency.p99_ms if result.latency is not None else result.seconds * 1000
        for result in found
    ]
    strategy = rounds[0].strategy
    whole = len(found) == strategy.tenants * len(rounds)
    refused = any(result.memory_refused_mib is not None for result in found)
    return Step(
        strategy=strategy,
        share_percent=share_percent(strategy, memory_mib, profiles),
        worst_ms=max(worst, default=None),
        holds=whole and not refused and bool(worst) and max(worst) <= goal_ms,
    )


def share_percent(strategy: Strategy, memory_mib: int | None, profiles: Mapping[str, int]) -> float:
    """Return how large a part of the GPU a tenant of a strategy has, in percent."""
    if strategy.thread_percentage is not None:
        return float(strategy.thread_percentage)
    if strategy.memory_mib is not None and memory_mib:
        return round(min(100.0, 100 * strategy.memory_mib / memory_mib), 1)
    if strategy.profile:
        whole = max(profile_size(name) for name in (*profiles, strategy.profile))[0]
        return round(100 * profile_size(strategy.profile)[0] / whole, 1)
    return round(100 / strategy.tenants, 1)


def _smallest(tried: Sequence[Step]) -> Step | None:
    chosen = None
    for step in reversed(tried):
        if not step.holds:
            break
        chosen = step
    return chosen


def _note(tried: Sequence[Step], chosen: Step | None) -> str:
    if chosen is None:
        return (
            "No share meets the goal together with all larger ones: ask for less, or for a whole "
            "GPU."
        )
    below = tried[: tried.index(chosen)]
    if any(step.holds for step in below):
        return "A smaller share met it by chance, between larger ones that did not."
    return ""


def _yaml(thing: object) -> str:
    return yaml.safe_dump(thing, sort_keys=False, default_flow_style=False)


def _checked(text: str) -> str:
    if wrong := [
        finding for finding in check_manifest(text).findings if finding.severity == "error"
    ]:
        raise ConfigError(f"the results give no valid config: {wrong[0].text}")
    return text
