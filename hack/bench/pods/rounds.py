"""The course of a run: pods come and go, variant after variant, round after round.

In: a node whose driver logs at debug level, and a plan. Out: how long the start and the end of
every pod that counts took. A kubelet does some things only once a second, so a client that reacts
at once would always hit the same moment of that second: it first waits a random part of a second.
"""

import random
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

from testbed.api import Api, Object
from testbed.commands import TestbedError, wait_until
from testbed.node import GpuNode
from testbed.pods import STAY, claim_uids, explaining, make_namespace

from bench.pods.plugin import serving
from bench.pods.report import CLAIMED, CPU, END, SCHEDULED, START, Life
from bench.pods.variants import MIG, order, pod, template
from bench.timings import cpu_seconds

NAMESPACE = "bench-pods"
_PATIENCE_S = 60.0
"""Seconds for the pods of one turn to run, and to end."""

_LONG_S = 600.0
_CLIENTS = 8
_LOOK_S = 0.01
_KUBELETS_LOOK_S = 1.0
"""How often a kubelet looks at all containers (kubelet.go, genericPlegRelistPeriod)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What is measured. `warm_up` are rounds before those that count.

    `rest`: seconds that pods run before they are deleted. A kubelet still works on a pod for one or
    two of its looks after it runs, and would first finish that. `patience` is in seconds.
    """

    variants: tuple[str, ...]
    at_once: tuple[int, ...]
    rounds: int
    warm_up: int = 1
    rest: float = 2
    patience: float = _PATIENCE_S
    queued: int = 0
    """Pods that are made together after all rounds, for each variant, and end immediately."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """A pod as a client of the API server saw it; `took` is in milliseconds."""

    variant: str
    at_once: int
    claims: Sequence[str]
    took: Mapping[str, float]


def lives_of_pods(node: GpuNode, plan: Plan, tell: Callable[[str], None]) -> list[Life]:
    """Measure as planned; whatever happens, the pods are deleted at the end.

    Raises TestbedError if a pod did not run, or did not end; the text says which, and why.
    """
    seen: list[Seen] = []
    with _templates(node.cluster.api, plan.variants):
        for number in range(-plan.warm_up, plan.rounds):
            tell(f"round {number + 1} of {plan.rounds}" if number >= 0 else "warming up")
            for at_once in plan.at_once:
                for variant in order(plan.variants, number):
                    names = [f"{variant}-{at_once}-{number + 1}-{nth}" for nth in range(at_once)]
                    with serving(node, variant) as pid:
                        taken = _take(node, plan, variant, names, pid)
                    seen += taken if number >= 0 else []
    took, refused = answers(node.driver.events())
    return [
        Life(
            variant=run.variant,
            at_once=run.at_once,
            took={**run.took, **{k: v for uid in run.claims for k, v in took.get(uid, {}).items()}},
            refused=sum(refused[uid] for uid in run.claims),
        )
        for run in seen
    ]


def answers(lines: Iterable[Object]) -> tuple[dict[str, dict[str, float]], Counter[str]]:
    """Return how long the driver took for claims, and how often it refused, by UID.

    Of repeated calls the first success counts. In: its log at debug level; out: milliseconds of
    `prepare` and `unprepare`.
    """
    took: dict[str, dict[str, float]] = {}
    refused: Counter[str] = Counter()
    for line in lines:
        if line["event"] == "claim answered":
            took.setdefault(line["claim_uid"], {}).setdefault(
                line["operation"], line["seconds"] * 1000
            )
        elif line["event"] in {"claim not prepared", "claim not unprepared"}:
            refused[line["claim_uid"]] += 1
    return took, refused


def queues(node: GpuNode, plan: Plan) -> dict[str, float]:
    """Make more pods than there are GPUs; return the seconds until all have ended, by variant."""
    took, api = {}, node.cluster.api
    with _templates(api, plan.variants):
        for variant in plan.variants if plan.queued else ():
            names = [f"{variant}-queued-{nth}" for nth in range(plan.queued)]
            with serving(node, variant), ThreadPoolExecutor(_CLIENTS) as threads:
                began = time.perf_counter()
                list(threads.map(partial(_create, api, variant, script="true"), names))
                ended = _when(api, names, "end", {END: _has_ended}, _LONG_S)[END]
                took[variant] = max(ended.values()) - began
                list(threads.map(partial(_delete, api), names))
                wait_until(
                    lambda: not api.all("ResourceClaim", NAMESPACE) and not node.place.left_over(),
                    "the queue's claims to be taken back",
                    timeout=_LONG_S,
                )
    return took


def _take(node: GpuNode, plan: Plan, variant: str, names: Sequence[str], server: int) -> list[Seen]:
    """Make pods at once, let them run, delete them, and wait until everything is as before.

    `server` is the process that gives them GPUs.
    """
    api, used = node.cluster.api, cpu_seconds(server)
    _wait_a_part(_KUBELETS_LOOK_S)
    with ThreadPoolExecutor(len(names), thread_name_prefix="pod") as threads:
        created = list(threads.map(partial(_create, api, variant), names))
        seen = _when(api, names, "run", _STEPS, plan.patience)
        claims = [claim_uids(api, api.get("Pod", name, NAMESPACE)) for name in names]
        time.sleep(plan.rest)
        _wait_a_part(_KUBELETS_LOOK_S)
        deleted = list(threads.map(partial(_delete, api), names))
        gone = _when(api, names, "go", {END: lambda seen: seen is None}, plan.patience)[END]
    wait_until(
        lambda: not api.all("ResourceClaim", NAMESPACE) and not node.place.left_over(),
        f"the claims of {', '.join(names)} to be taken back",
        timeout=plan.patience,
    )
    if variant == MIG:
        wait_until(lambda: _has_no_mig(node), "MIG mode to be off again", timeout=plan.patience)
    used = cpu_seconds(server) - used
    return [
        Seen(
            variant=variant,
            at_once=len(names),
            claims=claims[place],
            took={
                **{
                    step: (moments[name] - created[place]) * 1000
                    for step, moments in seen.items()
                    if name in moments
                },
                END: (gone[name] - deleted[place]) * 1000,
                CPU: used * 1000 / len(names),
            },
        )
        for place, name in enumerate(names)
    ]


def _create(api: Api, variant: str, name: str, script: str = STAY) -> float:
    api.create(pod(variant, name, script), NAMESPACE)
    return time.perf_counter()


def _delete(api: Api, name: str) -> float:
    api.delete("Pod", name, NAMESPACE)
    return time.perf_counter()


def _when(
    api: Api,
    names: Sequence[str],
    what: str,
    steps: Mapping[str, Callable[[Object | None], bool]],
    patience: float,
) -> dict[str, dict[str, float]]:
    """Wait until the last of the steps has happened to all pods.

    Return when each step of each pod was first seen; steps that have not happened are left out.
    """
    moments: dict[str, dict[str, float]] = {step: {} for step in steps}

    def look() -> bool:
        pods = {each["metadata"]["name"]: each for each in api.all("Pod", NAMESPACE)}
        for step, happened in steps.items():
            for name in names:
                if name not in moments[step] and happened(pods.get(name)):
                    moments[step][name] = time.perf_counter()
        return len(moments[step]) == len(names)

    with explaining(api, NAMESPACE, names):
        wait_until(look, f"{', '.join(names)} to {what}", timeout=patience, interval=_LOOK_S)
    return moments


def _runs(seen: Object | None) -> bool:
    statuses = (seen or {}).get("status", {}).get("containerStatuses", [])
    return any("running" in status.get("state", {}) for status in statuses)


def _has_claim(seen: Object | None) -> bool:
    return bool((seen or {}).get("status", {}).get("resourceClaimStatuses"))


def _is_scheduled(seen: Object | None) -> bool:
    return "nodeName" in (seen or {}).get("spec", {})


_STEPS = {CLAIMED: _has_claim, SCHEDULED: _is_scheduled, START: _runs}


def _has_ended(seen: Object | None) -> bool:
    return seen is not None and seen["status"].get("phase") == "Succeeded"


def _has_no_mig(node: GpuNode) -> bool:
    return all(gpu.mig_mode == "Disabled" for gpu in node.machine.settings().values())


def check(node: GpuNode, plan: Plan) -> None:
    """Check that the node can run what is planned. Raises TestbedError without MPS programs."""
    if "mps" in plan.variants and not node.can_run_mps:
        raise TestbedError("NVIDIA's MPS programs are not available; use --variants without mps")


@contextmanager
def _templates(api: Api, variants: Iterable[str]) -> Iterator[None]:
    """Make a namespace with the templates of the variants; empty it at the end."""
    if api.find("Namespace", NAMESPACE) is None:
        make_namespace(api, NAMESPACE, timeout=60)
    try:
        for made in filter(None, map(template, variants)):
            api.create(made, NAMESPACE)
        yield
    finally:
        for left in api.all("Pod", NAMESPACE):
            api.delete("Pod", left["metadata"]["name"], NAMESPACE)
        api.delete_all("ResourceClaimTemplate", NAMESPACE)


def _wait_a_part(seconds: float) -> None:
    time.sleep(random.uniform(0, seconds))  # noqa: S311  # nothing secret
