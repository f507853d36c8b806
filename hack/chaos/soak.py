"""A soak: three tenants work beside a hostile one, on a node with the driver as it is installed.

In: a duration, and a seed. Out: what the tenants noticed, whether driver and MPS supervisor
restarted, whether their use of resources stayed flat, and what the hostile tenant left behind. See
docs/chaos.md.
"""

import argparse
import json
import os
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from image.builder import driver_archive
from image.errors import ImageError
from testbed import mps
from testbed.api import ApiStatusError
from testbed.cluster import Cluster
from testbed.commands import TestbedError, wait_until
from testbed.installed_node import NAMESPACE as DRIVERS
from testbed.installed_node import InstalledNode
from testbed.pods import make_namespace

from chaos import flat
from chaos.divisions import share_config
from chaos.intruder import Intruder, open_ports
from chaos.neighbours import Neighbour, Noticed, tenants
from chaos.odd_claims import DEEP
from chaos.turns import FLOODS, turns
from chaos.workloads import NAMESPACE

_CALM_STARTS = 4
"""Starts of each tenant with which those beside the hostile one are compared."""

_BACK_S = 60.0
"""Seconds until nothing is left of deleted claims: failed steps are retried every ten seconds."""

_RELIEFS, _LOOK_S = 4, 70.0
"""How often another mate comes in the end, and for how many seconds /dev/shm is looked at then:
the supervisor looks each minute, and a file may be of all who were members when it was first seen.
"""

_LEFT_FILES = 64
"""Files that a shared domain's tmpfs may have with nobody in it who writes: the daemon's own."""


@dataclass(kw_only=True)
class Report:
    """The result of a soak."""

    seed: int
    seconds: float = 0.0
    turns: int = 0
    did: dict[str, int] = field(default_factory=dict)
    starts: dict[str, list[float]] = field(default_factory=dict)
    """Seconds of each tenant's pod starts with the hostile one; `NAME, calm` without it."""

    bounds: dict[str, float] = field(default_factory=dict)
    peaks: dict[str, float] = field(default_factory=dict)
    samples: list[flat.Sample] = field(default_factory=list)
    violations: list[str] = field(default_factory=list)

    def as_json(self) -> str:
        """The report, for a file."""
        return json.dumps(vars(self), indent=1)

    def judge(self) -> str:
        """Record what is not flat; return the report, for a person."""
        lines, wrong = flat.table(self.samples, self.seconds)
        self.violations += wrong
        minutes = f"{self.seconds / 60:.0f} minutes"
        said = [f"seed {self.seed}: {self.turns} turns of the hostile tenant, {minutes}"]
        said += [f"  {count:5}  {name}" for name, count in sorted(self.did.items())]
        said += [
            f"{name}: {len(took)} pod starts, {sorted(took)[len(took) // 2]:.1f} s (median), "
            f"{max(took):.1f} s (longest)"
            + (f", {self.bounds[name]:.0f} s at most" if name in self.bounds else "")
            for name, took in self.starts.items()
            if took
        ]
        said += [f"{name}: {peak:.0f} MiB of memory at most" for name, peak in self.peaks.items()]
        return "\n".join([*said, *lines, *(f"violation: {text}" for text in self.violations)])


def run(options: argparse.Namespace) -> Report:
    """Run a soak. Raises TestbedError if it could not be run."""
    report = Report(seed=options.seed)
    sys.setrecursionlimit(4 * DEEP)
    with _node(options) as node:
        Soak(node, report).run(options.minutes, options.rounds or 10)
        report.violations += _left_at_the_end(node)
    return report


class Soak:
    """A soak on a node that is up and has no pods."""

    def __init__(self, node: InstalledNode, report: Report) -> None:
        self._node = node
        self._report = report
        self._noticed = Noticed()
        make_namespace(node.cluster.api, NAMESPACE)
        gpus = list(node.machine.settings())  # by UUID, in the order of their indices
        self._neighbours = [
            Neighbour(node, tenant, self._noticed, report.seed) for tenant in tenants(gpus[:4])
        ]
        self._told = 0
        self._lives = self._look()
        self._ours = _ours(self._lives)
        pods = node.driver_pods()
        doors = [door for pod in pods for door in open_ports(pod["status"]["podIP"])]
        print(f"ports of driver and MPS supervisor: {', '.join(doors)}")
        self._intruder = Intruder(node, gpus[4:6], gpus[6], doors)

    def run(self, minutes: float, most_turns: int) -> None:
        """Let all tenants work for a number of minutes, or of the hostile one's turns."""
        report = self._report
        with ThreadPoolExecutor(len(self._neighbours) + len(FLOODS)) as pool:
            list(pool.map(lambda own: own.settle(_CALM_STARTS), self._neighbours))
            for neighbour in self._neighbours:
                report.starts[f"{neighbour.name}, calm"] = neighbour.calm
                report.starts[neighbour.name] = neighbour.starts
                report.bounds[neighbour.name] = neighbour.bound
            self._intruder.settle()
            stopping = threading.Event()
            working = [pool.submit(neighbour.work, stopping) for neighbour in self._neighbours]
            working += [pool.submit(self._intruder.flood, flood, stopping) for flood in FLOODS]
            try:
                self._turns(minutes, most_turns)
            finally:
                stopping.set()
                self._intruder.silence()
            for each in working:
                each.result()
        self._without_the_intruder()
        for neighbour in self._neighbours:
            with self._noticing():
                neighbour.end()
        with self._noticing():
            report.peaks = {process.name: process.peak() for process in self._ours}
        report.did = dict(self._intruder.did)
        report.violations += self._noticed.things

    def _turns(self, minutes: float, most: int) -> None:
        began = time.monotonic()
        for turn in turns(self._report.seed):
            print(f"{_now()} {turn}", flush=True)
            with self._noticing():
                self._intruder.take(turn)
                self._intruder.relieve_mate()
            self._check()
            self._report.turns = turn.number
            self._report.seconds = time.monotonic() - began
            with suppress(OSError):  # one that has ended has been noticed
                self._report.samples.append(flat.sample(self._ours))
            if self._report.seconds >= minutes * 60 if minutes else turn.number >= most:
                return

    @contextmanager
    def _noticing(self) -> Iterator[None]:
        """Count what cannot be done in time as a violation."""
        try:
            yield
        except (TestbedError, ApiStatusError, OSError) as error:
            self._noticed.add(f"{_now()} {error}")

    def _check(self) -> None:
        """Record what a turn has left behind, and whether it has ended driver or supervisor."""
        with self._noticing():
            now = self._look()
            for name, (container, restarts) in now.items():
                if self._lives.get(name) != (container, restarts):
                    self._noticed.add(f"{_now()} {name} ended, and was restarted {restarts} times")
            if now != self._lives:
                self._lives, self._ours = now, _ours(now)
            self._wait_given_back()
        for thing in self._noticed.things[self._told :]:
            print(f"  noticed: {thing}", flush=True)
        self._told = len(self._noticed.things)

    def _look(self) -> dict[str, tuple[str, int]]:
        """The containers of driver and supervisor: id and restarts, by pod and container."""
        return {
            f"{pod['metadata']['name']}/{ctr['name']}": (ctr["containerID"], ctr["restartCount"])
            for pod in self._node.driver_pods()
            for ctr in pod["status"]["containerStatuses"]
        }

    def _wait_given_back(self) -> None:
        """Wait until everything on the node for claims belongs to existing ones."""

        def given_back() -> bool:
            left = self._node.place.left_over()
            there = [own["metadata"]["uid"] for own in self._node.cluster.api.all("ResourceClaim")]
            daemons = mps.processes(self._node.place.plugins).values()
            names = {*left, *daemons}
            return all("shared_" in name or any(uid in name for uid in there) for name in names)

        wait_until(
            given_back, "what the hostile tenant's claims had to be given back", timeout=_BACK_S
        )

    def _without_the_intruder(self) -> None:
        """Look for what the hostile tenant left in the domain that its mate keeps; end the mate."""
        shm = self._node.place.mps / "domains" / self._intruder.domain / "shm"
        usage = os.statvfs(shm)

        def emptied() -> bool:
            nonlocal usage
            usage = os.statvfs(shm)
            used = (usage.f_blocks - usage.f_bfree) * usage.f_frsize
            return usage.f_files - usage.f_ffree <= _LEFT_FILES and used < 2**20

        with self._noticing():
            for _ in range(_RELIEFS):
                self._intruder.relieve_mate()
                with suppress(TestbedError):
                    wait_until(emptied, "its files to go", timeout=_LOOK_S)
                    break
            else:
                files = usage.f_files - usage.f_ffree
                self._noticed.add(f"{files} files of tenants that left are in /dev/shm for good")
        with self._noticing():
            self._intruder.leave(is_last=True)


def _ours(lives: Mapping[str, tuple[str, int]]) -> list[flat.Ours]:
    """The containers of driver and supervisor that run, of those that _look returns."""
    ours = []
    for name, (container, _) in sorted(lives.items()):
        with suppress(ValueError):  # it has ended just now
            ours.append(flat.Ours.find(name.partition("/")[2], container))
    return ours


def _now() -> str:
    return time.strftime("%H:%M:%S")


def _left_at_the_end(node: InstalledNode) -> list[str]:
    """What is left on a node without claims."""
    place = node.place

    def left() -> list[str]:
        daemons = [f"MPS daemon of {claim}" for claim in mps.processes(place.plugins).values()]
        return [*place.left_over(), *daemons, *node.machine.mig_devices()]

    with suppress(TestbedError):
        wait_until(lambda: not left(), "everything to be given back", timeout=_BACK_S)
    return [f"left at the end: {thing}" for thing in left()]


def cluster_of(options: argparse.Namespace, *, for_pods: bool = False) -> Cluster:
    """Return the cluster that a command line asks for; it is not up yet."""
    return Cluster(
        options.name,
        options.kubernetes,
        containerd=options.containerd,
        runtime=options.runtime,
        for_pods=for_pods,
    )


@contextmanager
def _node(options: argparse.Namespace) -> Iterator[InstalledNode]:
    """Bring up a node with the driver as its chart installs it; take it down in the end."""
    try:
        image = driver_archive(print)
    except ImageError as error:
        raise TestbedError(f"the driver's image could not be built: {error}") from error
    with ExitStack() as undo:
        node = InstalledNode(
            cluster_of(options, for_pods=True),
            Path(tempfile.mkdtemp(prefix="dra-soak-", dir="/var/tmp")),
            image,
            driver_env={"MIG": "on-demand", "RESCAN_INTERVAL": "1"},
        )
        node.clear()
        undo.callback(node.down)
        node.share(share_config("mps", 4, devices=["3", "6"]))
        node.end_over_limit()
        node.up(print)
        if not node.can_run_mps:
            raise TestbedError("NVIDIA's MPS programs are not available")
        # What this policy refuses should reach the driver, as on a cluster without it.
        kinds = "validatingadmissionpolicybindings,validatingadmissionpolicies"
        node.cluster.kubectl("delete", kinds, "dra-driver-claim-configs")
        if options.logs:
            undo.callback(_keep_logs, node, options.logs)
        yield node


def _keep_logs(node: InstalledNode, kept: Path) -> None:
    """Write the logs of driver and supervisor into a folder."""
    kept.mkdir(parents=True, exist_ok=True)
    for pod in node.driver_pods():
        name = pod["metadata"]["name"]
        with suppress(TestbedError):
            text = node.cluster.kubectl("logs", "--namespace", DRIVERS, name)
            (kept / f"{name}.log").write_text(text)
