"""Runs a plan's rounds on a node, repairs everything after each, and checks the invariants."""

import json
import re
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import NoReturn

from testbed.api import ApiStatusError
from testbed.commands import TestbedError, wait_until
from testbed.disk import SmallDisk
from testbed.node import GpuNode, put_share_config

from chaos import look as looks
from chaos.greed import Memory
from chaos.holds import Look, ProcessSeen, Wanted, judge, judge_containers
from chaos.plan import Event, Round
from chaos.strikes import ENDS, Strikes
from chaos.troubles import GREEDY
from chaos.workloads import DIVISIONS, NAMESPACE, claims_of, config, division_of, objects, pods_of

SETTLE = 240.0
"""Seconds until everything has to hold after all was mended: a refused kubelet tries again after a
minute and a half, and so does a container that failed several times."""

_LOST = 30.0
"""Seconds after which an unpublished share will not be published, if nobody has other shares."""

_LOOK_EVERY = 2.0

_DIFFERS = re.compile(r"[0-9a-f]{8}-[0-9a-f-]{27}|[\w-]*\d[\w.-]*")
"""UUIDs, names and numbers in a message."""


class Violation(Exception):  # noqa: N818  # what a campaign finds is no error of its own
    """An invariant did not hold; the text says which."""


@dataclass(kw_only=True)
class Report:
    """The events and observations of a campaign."""

    seed: int
    rounds: int = 0
    seconds: float = 0.0
    events: Counter[str] = field(default_factory=Counter)
    """How often each kind of event happened, by verb and name."""

    pods: int = 0
    settled: list[float] = field(default_factory=list)
    """Seconds from repair until everything held, by round."""

    needs: list[dict[str, ProcessSeen]] = field(default_factory=list)
    """Memory and descriptors of our processes at the end of each round."""

    warnings: Counter[str] = field(default_factory=Counter)
    """Messages of the driver about pods, without names and numbers."""

    violations: list[str] = field(default_factory=list)

    def as_json(self) -> str:
        """The report, for a file."""
        return json.dumps(vars(self), indent=1, default=asdict)


class Campaign:
    """A campaign on a node that is up and has no pods."""

    def __init__(
        self,
        node: GpuNode,
        disk: SmallDisk,
        configs: Path,
        report: Report,
        tell: Callable[[str], None],
    ) -> None:
        """`configs` is the folder from which the driver has its share configs."""
        self._node = node
        self._configs = configs
        self._strikes = Strikes(node, disk)
        self._memory = Memory(node.machine)
        self._report = report
        self._tell = tell
        self._parts: dict[str, tuple[str, bool]] = {}
        offers = {division: self._offered(division) for division in reversed(DIVISIONS)}
        self._born: dict[str, int] = {}
        """For each existing workload the number of reboots before it was made, less the additional
        restarts that it is granted."""
        self._starting: set[str] = set()
        """Workloads whose containers have not all been seen running yet."""

        self._greedy: dict[str, str] = {}
        """The containers that must be ended in this round for their memory, by pod."""

        self._ended: Counter[str] = Counter()
        """How often pods had such a container."""

        self._staying: set[str] = set()
        """The workloads that exist after this round."""

        self._away: set[str] = set()
        """Our processes that are, or may be, ended at present."""

        first = looks.look(node, self._lives(), self._parts)
        self._wanted = Wanted(
            workloads=(),
            division=DIVISIONS[0],
            offers=offers,
            settings=first.settings,
            processes=first.processes,
        )

    def _offered(self, division: str) -> dict[str, tuple[str, ...]]:
        """Let the driver divide the GPUs, and return what is published then, by GPU."""
        put_share_config(self._configs, config(division))

        def is_applied() -> bool:
            names = self._node.devices()
            return bool(names) and {*map(division_of, names)} == {None, division}

        wait_until(is_applied, f"the share config {division} to be applied", timeout=60)
        self._node.wait_published()
        self._parts |= looks.parts(self._node)
        return looks.by_gpu(self._node, self._parts)

    def run(self, plan: Round) -> None:
        """Run a round, repair everything, and wait until everything holds.

        Raises Violation if something does not.
        """
        began = time.monotonic()
        self._tell(f"round {plan.number}")
        self._staying = set(plan.workloads)
        postponed: list[Event] = []
        for event in plan.events:
            time.sleep(max(0.0, began + event.at - time.monotonic()))
            self._tell(f"  {event}")
            self._report.events[f"{event.verb} {_kind(event)}"] += 1
            self._expect_alive()
            if event.verb in ("make", "delete") and not self._strikes.api_is_up:
                postponed.append(event)
            else:
                self._do(event)
        for event in postponed:
            self._do(event)
        self._delete_what_lost_its_gpu(plan)
        mended = time.monotonic()
        self._settle()
        self._report.settled.append(round(time.monotonic() - mended, 1))
        self._report.seconds = round(self._report.seconds + time.monotonic() - began, 1)
        self._report.rounds += 1

    def finish(self, last: Round) -> None:
        """Delete everything of the last round, and check that nothing remains."""
        events = tuple(Event(0.0, "delete", workload) for workload in last.workloads)
        self.run(Round(last.number + 1, events, ()))

    def _do(self, event: Event) -> None:
        match event.verb:
            case "make":
                self._make(event.what)
            case "delete":
                self._delete(event.what)
            case "divide":
                put_share_config(self._configs, config(event.what))
                self._wanted = replace(self._wanted, division=event.what)
            case "begin":
                if event.what == "runtime-kill":
                    self._cut_off_starts()
                if event.what == GREEDY:
                    self._take_memory(int(event.detail))
                self._away |= set(ENDS.get(event.what, ()))
                self._strikes.begin(event.what, event.detail)
            case _:
                self._strikes.end(event.what, event.detail)
                self._away -= set(ENDS.get(event.what, ()))

    def _make(self, workload: str) -> None:
        for thing in objects(workload):
            self._node.cluster.api.create(thing, NAMESPACE)
        self._born[workload] = self._strikes.reboots
        self._report.pods += len(pods_of(workload))

        self._starting.add(workload)

    def _take_memory(self, number: int) -> None:
        """Let all long-running workloads take memory, one of them more than its limit."""
        running = (self._staying & self._born.keys()) - self._starting
        seen = looks.claims(self._node, self._parts)
        ids = looks.container_ids(self._node)
        pod = self._memory.take((one for one in seen if one.workload in running), ids, number)
        self._tell(f"  {pod or 'nobody'} has more memory than its limit")
        if pod is not None:
            self._greedy[pod] = ids[pod]
            self._ended[pod] += 1
            self._report.events["end the greedy"] += 1

    def _cut_off_starts(self) -> None:
        """Grant a restart to each container that may be starting: a killed runtime does not tell
        the kubelet how it ended, and the kubelet makes another one.
        """
        for workload in self._starting:
            self._born[workload] -= 1

    def _delete(self, workload: str) -> None:
        self._born.pop(workload, None)
        self._memory.give_back(workload)
        self._starting.discard(workload)
        for kind, names in (("Pod", pods_of(workload)), ("ResourceClaim", claims_of(workload))):
            for name in names:
                self._node.cluster.api.delete(kind, name, NAMESPACE)

    def _delete_what_lost_its_gpu(self, plan: Round) -> None:
        """Delete workloads whose GPU was pulled, or lost its kernel driver, while in use.

        The GPU's settings and MIG devices are lost with it; an admin drains a node first.
        """
        struck = {event.what: event.detail for event in plan.events if event.verb == "begin"}
        lost = {gpu for gpu, _ in self._parts.values() if "kernel-driver-unload" in struck}
        if "gpu-remove" in struck:
            lost.add(self._parts[f"gpu-{struck['gpu-remove']}"][0])
        if not lost:
            return
        for claim in looks.claims(self._node, self._parts):
            had = {*claim.gpus, *claim.parents, *claim.shares}
            if claim.workload in self._born and lost & had:
                self._tell(f"  {claim.workload} lost its GPU, and is deleted")
                self._delete(claim.workload)

    def _delete_what_lost_its_share(self, seen: Look) -> None:
        """Delete workloads whose share disappeared before they were prepared.

        The scheduler allocated it just when the share config changed, and allocates nothing else
        instead; the pod's event says so, and an admin deletes the pod.
        """
        published = {json.loads(device)["name"] for device in seen.devices}
        for claim in seen.claims:
            is_lost = claim.shares and not published.issuperset(claim.devices)
            if is_lost and f"{claim.uid}.json" not in seen.records:
                self._tell(f"  {claim.workload} lost its share, and is deleted")
                self._report.events["lose share"] += 1
                self._delete(claim.workload)

    # Invariants

    def _expect_alive(self) -> None:
        for name, process in looks.ours(self._node).items():
            if name not in self._away and not process.running():
                self._violate(f"the {name} ended by itself:\n{process.tail(40)}")

    def _settle(self) -> None:
        """Wait until all invariants hold."""
        end = time.monotonic() + SETTLE
        lives = self._lives()
        wanted = replace(self._wanted, workloads=tuple(self._born))
        wrong = ["nothing was looked at"]
        seen = None
        while wrong and time.monotonic() < end:
            self._expect_alive()
            try:
                seen = looks.look(self._node, lives, self._parts)
                wrong = judge(wanted, seen) or self._wrong_inside()
                if wrong and time.monotonic() > end - SETTLE + _LOST:
                    self._delete_what_lost_its_share(seen)
                    wanted = replace(wanted, workloads=tuple(self._born))
            except (TestbedError, ApiStatusError, OSError) as error:
                wrong = [f"cannot be looked at: {error}"]  # something is not back yet
            if wrong:
                self._tell(f"  {end - time.monotonic():5.0f} s left: {wrong[0][:200]}")
                time.sleep(_LOOK_EVERY)
        self._collect_warnings()
        if wrong or seen is None:
            self._violate("\n".join(wrong))
        self._starting.clear()
        self._greedy.clear()
        self._memory.give_all_back()
        self._report.needs.append(dict(seen.processes))

    def _wrong_inside(self) -> list[str]:
        inside = looks.containers(self._node, self._born)
        restarts = {name: self._strikes.reboots - born for name, born in self._born.items()}
        return judge_containers(restarts, inside, self._greedy, self._ended)

    def _violate(self, text: str) -> NoReturn:
        self._report.violations.append(f"round {self._report.rounds + 1}: {text}")
        raise Violation(text)

    def _lives(self) -> dict[str, int]:
        return {name: process.pid for name, process in looks.ours(self._node).items()}

    def _collect_warnings(self) -> None:
        """Count the driver's messages to pods in this round, for the report."""
        with suppress(TestbedError, ApiStatusError, OSError):
            for event in self._node.cluster.api.all("Event", NAMESPACE):
                if event.get("reason") == "FailedPrepareDynamicResources":
                    self._report.warnings[_plain(event.get("message", ""))] += 1
                    self._node.cluster.api.delete("Event", event["metadata"]["name"], NAMESPACE)


def _kind(event: Event) -> str:
    """A trouble's name, or the kind of a workload."""
    return event.what if event.verb not in ("make", "delete") else event.what.rpartition("-")[0]


def _plain(message: str) -> str:
    """A message without its pod-specific parts."""
    plain = message.removeprefix("Failed to prepare dynamic resources: prepare dynamic resources: ")
    return _DIFFERS.sub("…", plain)[:300]
