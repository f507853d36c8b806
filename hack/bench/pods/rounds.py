"""The course of a run: pods come and go, variant after variant, round after round.

In: a node whose driver logs at debug level, and a plan. Out: the life of every pod that counts. A
kubelet does some things once a second only, so a client that acts on what it has just seen would
always meet the same moment of that second: it waits a random part of it first.
"""

import random
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from testbed.api import Api
from testbed.commands import TestbedError, wait_until
from testbed.node import GpuNode
from testbed.pods import explain, make_namespace

from bench.pods.answers import Answered, answers
from bench.pods.report import Life
from bench.pods.variants import BASELINE, MIG, order, pod, template
from bench.pods.watching import Mark, Sightings, watching

NAMESPACE = "bench-pods"
_LOOK_S = 1.0
"""How often a kubelet looks at all containers (kubelet.go, genericPlegRelistPeriod)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What is measured. `warm_up` are rounds before those that count.

    `rest`: seconds that pods run before they are deleted. A kubelet still works on a pod for one or
    two of its looks after it runs, and would first finish that.
    """

    variants: tuple[str, ...]
    at_once: tuple[int, ...]
    rounds: int
    warm_up: int = 1
    rest: float = 2
    patience: float = 60
    """Seconds for the pods of one turn to run, and to go."""


def lives_of_pods(node: GpuNode, plan: Plan, tell: Callable[[str], None]) -> list[Life]:
    """Measure as planned; whatever happens, the pods are deleted in the end.

    Raises TestbedError if a pod did not run, or did not go; the text says which, and why.
    """
    with (
        _templates(node.cluster.api, plan.variants),
        watching(Path(node.cluster.env["KUBECONFIG"]), NAMESPACE) as sightings,
    ):
        course = Course(node, sightings, plan)
        for number in range(-plan.warm_up, plan.rounds):
            tell(f"round {number + 1} of {plan.rounds}" if number >= 0 else "warming up")
            for at_once in plan.at_once:
                for variant in order(plan.variants, number):
                    turn = Turn(variant=variant, at_once=at_once, number=number)
                    course.take(turn)
    said = answers(node.driver.events())
    return [
        Life(
            variant=turn.variant,
            at_once=turn.at_once,
            seen=sightings.of(name),
            program=course.programs[name],
            answered=said.get(sightings.of(name).claim, Answered()),
        )
        for turn in course.taken
        for name in turn.pods
        if turn.number >= 0
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """Some pods of one variant, all at once, in the round of a number; below zero is warm-up."""

    variant: str
    at_once: int
    number: int

    @property
    def pods(self) -> tuple[str, ...]:
        """Their names, which no other turn of the run has."""
        begin = f"{self.variant}-{self.at_once}-{self.number + 1}"
        return tuple(f"{begin}-{one}" for one in range(self.at_once))


@dataclass
class Course:
    """Pods that were made and deleted, and when their programs began, by name of the pod."""

    node: GpuNode
    sightings: Sightings
    plan: Plan
    taken: list[Turn] = field(default_factory=list)
    programs: dict[str, float] = field(default_factory=dict)

    def take(self, turn: Turn) -> None:
        """Make the pods of a turn, let them run, delete them, and wait until all is as before."""
        api = self.node.cluster.api
        _wait_a_part(_LOOK_S)
        with ThreadPoolExecutor(turn.at_once, thread_name_prefix="pod") as threads:
            list(threads.map(lambda name: self._create(turn.variant, name), turn.pods))
            self._wait(turn.pods, Mark.RUNNING)
            self.programs |= {name: self._began(name) for name in turn.pods}
            time.sleep(self.plan.rest)
            _wait_a_part(_LOOK_S)
            list(threads.map(self._delete, turn.pods))
            self._wait(turn.pods, Mark.GONE)
        wait_until(
            lambda: not api.all("ResourceClaim", NAMESPACE) and not self.node.place.left_over(),
            f"the claims of {', '.join(turn.pods)} to be taken back",
            timeout=self.plan.patience,
        )
        if turn.variant == MIG:
            wait_until(self._no_mig, "MIG mode to be off again", timeout=self.plan.patience)
        self.taken.append(turn)

    def _create(self, variant: str, name: str) -> None:
        self.node.cluster.api.create(pod(variant, name), NAMESPACE)
        self.sightings.mark(name, Mark.CREATED)

    def _delete(self, name: str) -> None:
        self.node.cluster.api.delete("Pod", name, NAMESPACE)
        self.sightings.mark(name, Mark.DELETED)

    def _began(self, name: str) -> float:
        def printed() -> str:
            return self.node.cluster.api.log(name, "ctr", NAMESPACE).strip()

        return float(wait_until(printed, f"what {name} prints", timeout=self.plan.patience))

    def _wait(self, names: Sequence[str], mark: Mark) -> None:
        late = self.sightings.wait(names, mark, self.plan.patience)
        if late:
            raise TestbedError(
                f"after {self.plan.patience:.0f} s not {mark}: {', '.join(late)}\n"
                + "\n".join(self._why(late))
                + f"\nthe driver's log ends with\n{self.node.driver.tail(10)}"
            )

    def _why(self, names: Iterable[str]) -> Iterator[str]:
        api = self.node.cluster.api
        for name in names:
            found = api.find("Pod", name, NAMESPACE)
            yield explain(api, found) if found else f"pod {name}: not there"

    def _no_mig(self) -> bool:
        settings = self.node.machine.settings().values()
        return all(gpu.mig_mode == "Disabled" for gpu in settings)


def check(node: GpuNode, plan: Plan) -> None:
    """Do nothing if the node can run what is planned.

    Raises TestbedError if it has too few GPUs, or no MPS programs.
    """
    gpus = len(node.machine.settings())
    most = max(plan.at_once)
    if most > gpus and set(plan.variants) != {BASELINE}:
        raise TestbedError(f"the node has {gpus} GPUs for {most} pods at once; use fewer --at-once")
    if "mps" in plan.variants and not node.can_run_mps:
        raise TestbedError("NVIDIA's MPS programs could not be had; use --variants without mps")


@contextmanager
def _templates(api: Api, variants: Iterable[str]) -> Iterator[None]:
    """Have a namespace with the templates of the variants; empty it in the end."""
    if api.find("Namespace", NAMESPACE) is None:
        make_namespace(api, NAMESPACE, timeout=60)
    try:
        for one in filter(None, map(template, variants)):
            api.create(one, NAMESPACE)
        yield
    finally:
        for left in api.all("Pod", NAMESPACE):
            api.delete("Pod", left["metadata"]["name"], NAMESPACE)
        api.delete_all("ResourceClaimTemplate", NAMESPACE)


def _wait_a_part(seconds: float) -> None:
    time.sleep(random.uniform(0, seconds))  # noqa: S311  # nothing secret
