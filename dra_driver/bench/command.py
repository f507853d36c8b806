"""`dra-driver bench`: measures how strategies serve a work, here or on a cluster, and reports it.

In: settings. Out: progress on stderr, a table on stdout, and three files: NAME.json with everything
that was measured, NAME.html and NAME.png to look at. Simulated GPUs give no results, which is not a
failure.
"""

import os
import shlex
import sys
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Literal

from pydantic import ValidationError

from dra_driver.bench.model import Card, Case, Report, Sweep, read_report, write_report
from dra_driver.bench.pods.manifests import Place
from dra_driver.bench.pods.offer import Offer
from dra_driver.bench.pods.runner import PodRunner
from dra_driver.bench.processes import ProcessRunner
from dra_driver.bench.report import page, plot
from dra_driver.bench.report.beside import beside_as_text, names_of
from dra_driver.bench.report.sweep import judged, steps
from dra_driver.bench.report.view import as_text, containers_as_text
from dra_driver.bench.scenarios.model import Scenario
from dra_driver.bench.scenarios.plan import Plan, planned
from dra_driver.bench.scenarios.read import find_scenario, listed
from dra_driver.bench.session import Rounds, Runner, run_all
from dra_driver.bench.stopping import Stop, stoppable
from dra_driver.bench.strategies import (
    ALONE,
    PROFILE,
    Sharing,
    Strategy,
    of_mig,
    profile_size,
    usual,
)
from dra_driver.bench.tenant.card import CardDoor
from dra_driver.bench.workload import LatencyForm, Precision, Workload, WorkloadKind
from dra_driver.command_line import FILE, CommandSettings, argument, bounds, option, shaped
from dra_driver.common_settings import CONTEXT, KUBECONFIG
from dra_driver.errors import SetupError, StateError
from dra_driver.kube.connect import connect

_INTERRUPTED = 130

Shared = Literal[
    "time-slicing", "mps", "mps-limits", "shares", "mig", "mig-time-slicing", "mig-mps"
]


def _shape(value: str) -> str:
    sides = value.split("x")
    if len(sides) != 3 or not all(
        side.isdecimal() and 128 <= int(side) <= 32768 and int(side) % 128 == 0 for side in sides
    ):
        raise ValueError(
            f"must be ROWSxCOLUMNSxDEPTH, multiples of 128 from 128 to 32768, not {value}"
        )
    return value


_OF_SCENARIOS = frozenset({"work", "command", "memory_mib", "rate", "layers", "shape", "precision"})
_OF_SCENARIOS |= {"latencies", "latency_metric"}
_OF_SCENARIOS |= {"tenants", "strategies", "mig_profiles", "sweep", "goal_ms"}


_Found = tuple[str, Scenario] | None
"""A scenario and its name, if one is to be run."""


class Bench(CommandSettings):
    """Measure which sharing strategy is best for your work, on your own GPUs.

    `processes` runs on this machine, and changes no setting of a GPU. `pods` runs on a cluster,
    with claims, in a namespace that is deleted afterwards. `report` draws existing reports, and
    `list` prints the shipped scenarios.
    """

    example = "dra-driver bench processes --work inference --tenants 2,4"
    statuses = ("done", "a case failed, or nothing was measured")

    where: Literal["processes", "pods", "report", "list"] = argument(help="What to do.")
    name: Path = option(default=Path("bench"), help="Name of the report's files, without suffix.")
    reports: list[Path] = option(
        default=[], help="For `report`: JSON files, separated by commas, to draw and compare."
    )
    scenario: str = option(
        default="",
        metavar=FILE,
        help="Run the cases of this file, or of a scenario from `bench list`, instead.",
    )
    repetitions: int | None = option(
        check=bounds(least=1, most=100),
        default=None,
        help="Rounds of all cases, to see how results vary; unset: the scenario's, else 1.",
    )

    # The work
    work: Literal["compute", "bandwidth", "inference", "memory", "gemm", "burn", "command"] = (
        option(default="inference", help="The kind of work.")
    )
    command: str = option(default="", help="Your own command; sets the work to `command`.")
    latencies: Literal["", "json", "prometheus", "perf-analyzer"] = option(
        default="",
        help="Format in which the command reports latencies: in its output, or in the file "
        "{latencies} of its command line.",
    )
    latency_metric: str = option(
        default="", help="For `prometheus`: the histogram or summary, such as x_latency_seconds."
    )
    seconds: float = option(
        check=bounds(above=0, most=86400), default=20.0, help="Seconds that tenants work."
    )
    warm_up: float = option(
        check=bounds(least=0, most=3600),
        default=2.0,
        help="Seconds of work together before measuring.",
    )
    memory_mib: int | None = option(
        check=bounds(least=0),
        default=None,
        help="GPU memory for `bandwidth` (unset: 768), `burn` (unset: 4096) and `memory` (unset: "
        "all).",
    )
    rate: float = option(
        check=bounds(above=0, most=100_000),
        default=20.0,
        help="Requests per second of each tenant.",
    )
    layers: int = option(
        check=bounds(above=0, most=10_000), default=24, help="Matrix products per request."
    )
    shape: str = option(
        check=_shape,
        default="4096x4096x4096",
        help="Rows, columns and depth of products in `gemm` and `burn`, multiples of 128.",
    )
    precision: Literal["fp32", "fp16", "tensor"] = option(
        default="fp32",
        help="Precision of `gemm` and `burn`; `tensor`: half precision, by tensor cores.",
    )

    # The strategies
    tenants: list[int] = option(
        default=[2, 4, 8],
        check=bounds(least=1, most=64),
        help="Numbers of tenants that work at the same time, separated by commas.",
    )
    strategies: list[Shared] = option(
        default=[], help="Strategies besides `alone`, separated by commas; unset: all."
    )
    mig_profiles: list[str] = option(
        check=shaped(PROFILE, "a MIG profile such as 1g.10gb"),
        default=[],
        metavar="PROFILE,…",
        help="MIG profiles; unset: the smallest, and the largest that fits twice.",
    )
    sweep: Literal["", "threads", "memory", "replicas", "time-slices", "mig"] = option(
        default="",
        help="Step through this setting instead, to find the smallest share that is enough.",
    )
    goal_ms: float = option(
        check=bounds(above=0),
        default=100.0,
        help="For a sweep: the highest 99th percentile of latency that passes.",
    )
    patience: float = option(
        check=bounds(above=0, most=86400),
        default=300.0,
        help="Seconds to wait until tenants are ready, and until they end after their time.",
    )

    # As processes
    gpu: list[str] = option(
        default=["0"],
        metavar="GPU,…",
        help="This machine's GPU, by index or UUID; several for a scenario with several GPUs.",
    )
    nvidia_driver_root: Path = option(
        default=Path("/"), help="Root of the GPU driver's installation on this machine."
    )

    # As pods
    image: str = option(default="", help="Image of the pods, with Python and `dra_driver/bench`.")
    command_image: str = option(default="", help="Image for the command; unset: --image.")
    pull_secret: str = option(
        check=shaped(r"([a-z0-9-]+/[a-z0-9.-]+)?", "the NAMESPACE/NAME of a Secret"),
        default="",
        metavar="NAMESPACE/NAME",
        help="Secret that pulls the images; it is copied into the run's namespace.",
    )
    node: str = option(default="", help="The node; unset: any.")
    shares: str = option(default="", help="Resource name of shares, such as nvidia.com/gpu.")
    kubeconfig: Path | None = KUBECONFIG
    context: str = CONTEXT

    def check(self) -> None:
        """Check that the settings fit together."""
        if self.where == "report" and not self.reports:
            raise ValueError("name the reports to draw: --reports bench.json")
        if self.where == "pods" and not self.image:
            raise ValueError(
                "name an image with Python and `dra_driver/bench` with --image; docs/choosing.md"
                " shows how to make one"
            )
        self._check_scenario()
        if self.work == "command" and not self.command:
            raise ValueError("name your command: --command 'python3 work.py'")
        if self.sweep and self.strategies:
            raise ValueError("a sweep has strategies of its own: leave out --strategies")
        if not self.tenants:
            raise ValueError("name at least one number of --tenants")
        try:
            self._work()
        except ValidationError as error:
            raise ValueError(error.errors()[0]["msg"].removeprefix("Value error, ")) from error
        except ValueError as error:
            raise ValueError(f"the command cannot be read: {error}") from error
        if self.sweep == "mig" and self.where != "pods":
            raise ValueError("a sweep over MIG devices needs a cluster: use `bench pods`")

    def _check_scenario(self) -> None:
        if self.scenario and (own := sorted(self.given & _OF_SCENARIOS)):
            flag = own[0].replace("_", "-")
            raise ValueError(f"the scenario sets this itself: leave out --{flag}")
        if self.sweep and self.repetitions is not None:
            raise ValueError("a sweep is one round: leave out --repetitions")

    def cli_cmd(self) -> None:
        """Do it. Ends the process with another status if that is not 0."""
        if self.where == "list":
            sys.stdout.write("\n".join(listed()) + "\n")
            return
        _check_place(self.name)
        if self.where == "report":
            _draw([read_report(path) for path in self.reports], self.name, names_of(self.reports))
            return
        scenario = self._scenario()
        with stoppable(_say) as stop:
            run = self._pods if self.where == "pods" else self._processes
            report = run(stop, scenario)
        if report is None:
            _say("interrupted before anything was measured: there is no report")
            raise SystemExit(_INTERRUPTED)
        _draw([report], self.name)
        if status := _status(report):
            raise SystemExit(status)

    def _scenario(self) -> _Found:
        """Return the named scenario, with the overrides of the command line."""
        if not self.scenario:
            return None
        name, scenario = find_scenario(self.scenario)
        said = {"seconds", "warm_up", "repetitions"} & self.given
        return name, scenario.model_copy(update={key: getattr(self, key) for key in said})

    def _processes(self, stop: Stop, scenario: _Found) -> Report | None:
        root = self.nvidia_driver_root
        with ExitStack() as stack:
            doors = []
            for which in self.gpu:
                doors.append(CardDoor(root, which))
                stack.callback(doors[-1].close)
            if len({door.uuid for door in doors}) < len(doors):
                raise SetupError("--gpu names one GPU twice")
            door, *others = doors
            runner = ProcessRunner(door, root, patience=self.patience, stop=stop, others=others)
            return self._run(runner, door.card(), stop, scenario)

    def _pods(self, stop: Stop, scenario: _Found) -> Report | None:
        place = Place(
            image=self.image,
            command_image=self.command_image,
            node=self.node,
            shares=self.shares,
            pull_secret=self.pull_secret,
            patience=2 * self.patience,
        )
        with ExitStack() as stack:
            client = connect(self.kubeconfig, self.context, environment=os.environ)
            stack.callback(client.close)
            runner = PodRunner(
                client,
                place,
                _say,
                patience=self.patience,
                stop=stop,
            )
            try:
                stack.enter_context(runner)
                _say(f"namespace {runner.namespace}; looking at the card")
                card = runner.probe()
            except KeyboardInterrupt:
                return None
            return self._run(runner, card, stop, scenario)

    def _run(self, runner: Runner, card: Card, stop: Stop, named: _Found) -> Report | None:
        plan = self._plan(runner, card, named)
        rounds = Rounds(
            repetitions=plan.study.repetitions if plan.study else self.repetitions or 1,
            seed=plan.work.seed,
            minutes=named[1].minutes if named else None,
        )

        def report(cases: Sequence[Case], *, interrupted: bool) -> Report:
            return Report(
                made_at=datetime.now(UTC).isoformat(timespec="seconds"),  # noqa: TID251 (told)
                where="pods" if self.where == "pods" else "processes",
                dra_driver=version("dra-driver"),
                work=plan.work,
                study=plan.study,
                card=card,
                cases=tuple(cases),
                sweep=self._judged(cases, card, runner.offer, interrupted=interrupted),
                interrupted=interrupted,
            )

        def keep(cases: Sequence[Case], *, interrupted: bool = True) -> None:
            path = _beside(self.name, "json")
            try:
                write_report(report(cases, interrupted=interrupted), path)
            except StateError as error:  # what was measured is shown all the same
                _say(str(error))

        cases, interrupted = run_all(
            runner,
            plan.strategies,
            plan.work,
            say=_say,
            stop=stop,
            keep=keep,
            rounds=rounds,
            study=plan.study,
        )
        if interrupted and not cases:
            return None
        keep(cases, interrupted=interrupted)
        return report(cases, interrupted=interrupted)

    def _plan(self, runner: Runner, card: Card, named: _Found) -> Plan:
        """Return what to run: a scenario, a sweep, or the usual strategies."""
        if named is not None:
            name, scenario = named
            return planned(
                name,
                scenario,
                memory_mib=card.memory_mib,
                profiles=runner.offer.profiles,
                obstacle=runner.obstacle,
            )
        if not self.sweep:
            return Plan(strategies=self._strategies(card, runner.offer), work=self._work())
        swept = steps(
            self.sweep,
            memory_mib=card.memory_mib,
            most=max(self.tenants),
            profiles=runner.offer.profiles,
        )
        return Plan(strategies=(ALONE, *swept), work=self._work())

    def _judged(
        self, cases: Sequence[Case], card: Card, offer: Offer, *, interrupted: bool
    ) -> Sweep | None:
        if not self.sweep or card.is_simulated:
            return None
        stepped = [
            case
            for case in cases
            if case.strategy != ALONE and case.state in ("measured", "failed")
        ]
        return judged(
            self.sweep,
            stepped,
            self.goal_ms,
            memory_mib=card.memory_mib,
            profiles=offer.profiles,
            interrupted=interrupted,
        )

    def _work(self) -> Workload:
        kind = WorkloadKind.COMMAND if self.command else WorkloadKind(self.work)
        usual_mib = {WorkloadKind.MEMORY: 0, WorkloadKind.BURN: 4096}.get(kind, 768)
        rows, columns, depth = map(int, self.shape.split("x"))
        return Workload(
            kind=kind,
            seconds=self.seconds,
            warm_up=self.warm_up,
            memory_mib=usual_mib if self.memory_mib is None else self.memory_mib,
            rate=self.rate,
            layers=self.layers,
            shape=(rows, columns, depth),
            precision=Precision(self.precision),
            command=tuple(shlex.split(self.command)),
            latencies=LatencyForm(self.latencies) if self.latencies else None,
            latency_metric=self.latency_metric,
        )

    def _strategies(self, card: Card, offer: Offer) -> tuple[Strategy, ...]:
        bases = [ALONE]
        if offer.profiles and not offer.gpus:
            sizes = {max(offer.profiles, key=profile_size), *self._profiles(offer)}
            bases += [
                Strategy(sharing=Sharing.MIG, profile=size)
                for size in sorted(sizes, key=profile_size)
            ]
        every = [*bases, *usual(self.tenants, card.memory_mib)]
        if self.where == "pods":
            every += [
                Strategy(sharing=Sharing.SHARES, tenants=number)
                for number in dict.fromkeys(self.tenants)
                if offer.shares or "shares" in self.strategies
            ]
        if self.where == "pods" or offer.profiles:
            for profile in self._profiles(offer):
                fit = offer.profiles.get(profile, 1)
                every += of_mig(profile, fit=fit, tenants=self.tenants[:1], with_layers=True)
        every = list(dict.fromkeys(every))
        wanted = {Sharing(strategy) for strategy in self.strategies}
        chosen = [each for each in every if not wanted or each in bases or each.sharing in wanted]
        if missing := wanted - {each.sharing for each in chosen}:
            what = ", ".join(sorted(missing))
            why = "only pods have these, or a GPU with MIG devices: use `bench pods`"
            if self.where == "pods":
                why = "no MIG devices are published"
            raise SetupError(f"there is no strategy {what} here: {why}")
        return tuple(chosen)

    def _profiles(self, offer: Offer) -> Sequence[str]:
        return self.mig_profiles or offer.usual_profiles()


def _beside(output: Path, suffix: str) -> Path:
    return output.with_name(f"{output.name}.{suffix}")


def _check_place(output: Path) -> None:
    """Check that files can be written there, before hours are spent on their content."""
    folder = output.parent
    if not output.name:
        raise SetupError(f"{output} is a folder; name the files, too: --name {output / 'bench'}")
    if not folder.is_dir() or not os.access(folder, os.W_OK | os.X_OK):
        raise SetupError(f"{folder} is not writable: name another place with --name")


def _draw(reports: list[Report], output: Path, names: Sequence[str] = ()) -> None:
    """Write the page and the pictures (NAME.png, then NAME-2.png), and always print the tables."""
    files = {_beside(output, "html"): page.page(reports, plot.svg, names).encode()}
    for number, report in enumerate(reports, start=1):
        if not report.card.is_simulated:
            name = output.name if number == 1 else f"{output.name}-{number}"
            files[output.with_name(f"{name}.png")] = plot.png(report)
    failure = None
    for path, content in files.items():
        try:
            path.write_bytes(content)
        except OSError as error:
            failure = failure or StateError(f"{path} cannot be written: {error.strerror}")
    sys.stdout.write("\n".join(as_text(report) for report in reports) + containers_as_text(reports))
    sys.stdout.write(beside_as_text(reports, names))
    sys.stdout.flush()
    if failure is not None:
        raise failure
    _say(f"written: {', '.join(map(str, files))}")


def _status(report: Report) -> int:
    if report.interrupted:
        return _INTERRUPTED
    states = {case.state for case in report.cases}
    if "failed" in states:
        return 1
    return 0 if states & {"measured", "passed"} else 1


def _say(text: str) -> None:
    with suppress(OSError):  # the terminal may be gone, and the run is worth more
        sys.stderr.write(f"bench: {text}\n")
        sys.stderr.flush()
