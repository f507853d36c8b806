"""`dra-driver bench`: measures sharing strategies, here or on a cluster, and reports it.

In: settings and a scenario. Out: progress on stderr, a table on stdout, and three files: NAME.json
with everything that was measured, NAME.html and NAME.png to look at. Simulated GPUs give no
results, which is not a failure.
"""

import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from types import MappingProxyType
from typing import ClassVar

from dra_driver.admin.connect import CONTEXT, KUBECONFIG, connect
from dra_driver.bench.model import Card, Case, Report, read_report, write_report
from dra_driver.bench.pods.manifests import Place
from dra_driver.bench.pods.runner import PodRunner
from dra_driver.bench.processes import ProcessRunner
from dra_driver.bench.report import page, plot
from dra_driver.bench.report.beside import beside_as_text, names_of
from dra_driver.bench.report.sweep import judged
from dra_driver.bench.report.view import as_text
from dra_driver.bench.scenarios.model import Scenario
from dra_driver.bench.scenarios.plan import planned
from dra_driver.bench.scenarios.read import find_scenario, listed
from dra_driver.bench.session import Runner, run_all
from dra_driver.bench.stopping import Stop, stoppable
from dra_driver.bench.tenant.card import CardNvml
from dra_driver.commands.command_line import (
    FILE,
    CommandSettings,
    argument,
    bounds,
    option,
    shaped,
)
from dra_driver.commands.for_people import CommandGroup
from dra_driver.errors import SetupError, StateError

_INTERRUPTED = 130
_STATUSES = ("done", "a case failed, or nothing was measured")
_NAME = option(default=Path("bench"), help="Name of the report's files, without suffix.")


class _Run(CommandSettings):
    """What both kinds of runs have in common."""

    statuses = _STATUSES

    scenario: str = option(
        default="strategies",
        metavar=FILE,
        help="What to measure: a scenario from `bench list`, or a file with one.",
    )
    name: Path = _NAME
    seconds: float | None = option(
        check=bounds(above=0, most=86400),
        default=None,
        help="Seconds for which tenants work; unset: the scenario's.",
    )
    repetitions: int | None = option(
        check=bounds(least=1, most=100),
        default=None,
        help="Rounds of all cases, to see how results vary; unset: the scenario's.",
    )
    patience: float = option(
        check=bounds(above=0, most=86400),
        default=300.0,
        help="Seconds to wait for tenants to be ready, and to end once their time is over.",
    )

    def cli_cmd(self) -> None:
        """Run it. Ends the process with SystemExit for a status other than 0."""
        _check_place(self.name)
        name, scenario = find_scenario(self.scenario)
        said = {"seconds", "repetitions"} & self.given
        scenario = scenario.model_copy(update={key: getattr(self, key) for key in said})
        with stoppable(_say) as stop, ExitStack() as stack:
            try:
                runner, card = self._runner(stop, stack)
            except KeyboardInterrupt:
                report = None
            else:
                report = self._run(runner, card, stop, name, scenario)
        if report is None:
            _say("interrupted before anything was measured: there is no report")
            raise SystemExit(_INTERRUPTED)
        _draw([report], self.name)
        if status := _status(report):
            raise SystemExit(status)

    def _runner(self, stop: Stop, stack: ExitStack) -> tuple[Runner, Card]:
        """Return the runner of cases, and the card that it uses."""
        raise NotImplementedError

    def _run(
        self, runner: Runner, card: Card, stop: Stop, name: str, scenario: Scenario
    ) -> Report | None:
        plan = planned(
            name,
            scenario,
            memory_mib=card.memory_mib,
            profiles=runner.offer.profiles,
            obstacle=runner.obstacle,
        )

        def report(cases: Sequence[Case], *, interrupted: bool) -> Report:
            return Report(
                made_at=datetime.now(UTC).isoformat(timespec="seconds"),  # noqa: TID251 (for people)
                where=runner.where,
                dra_driver=version("dra-driver"),
                study=plan.study,
                card=card,
                cases=tuple(cases),
                sweep=judged(
                    plan.study,
                    cases,
                    card=card,
                    profiles=runner.offer.profiles,
                    interrupted=interrupted,
                ),
                interrupted=interrupted,
            )

        def keep(cases: Sequence[Case], *, interrupted: bool = True) -> None:
            path = _beside(self.name, "json")
            try:
                write_report(report(cases, interrupted=interrupted), path)
            except StateError as error:  # what was measured is still shown
                _say(str(error))

        cases, interrupted = run_all(
            runner,
            plan.strategies,
            plan.study,
            say=_say,
            stop=stop,
            keep=keep,
            minutes=scenario.minutes,
        )
        if interrupted and not cases:
            return None
        keep(cases, interrupted=interrupted)
        return report(cases, interrupted=interrupted)


class Processes(_Run):
    """Measure on this machine, in processes. Changes no settings of a GPU."""

    example = "dra-driver bench processes --scenario light-beside-heavy"

    gpu: list[str] = option(
        default=["0"],
        metavar="GPU,…",
        help="This machine's GPU, by index or UUID; several for a scenario with several GPUs.",
    )
    nvidia_driver_root: Path = option(
        default=Path("/"), help="Root of the GPU driver's installation on this machine."
    )

    def _runner(self, stop: Stop, stack: ExitStack) -> tuple[Runner, Card]:
        cards = []
        for which in self.gpu:
            cards.append(CardNvml(self.nvidia_driver_root, which))
            stack.callback(cards[-1].close)
        if len({nvml.uuid for nvml in cards}) < len(cards):
            raise SetupError("--gpu names one GPU twice")
        nvml, *others = cards
        root, patience = self.nvidia_driver_root, self.patience
        return ProcessRunner(nvml, root, patience=patience, stop=stop, others=others), nvml.card()


class Pods(_Run):
    """Measure on a cluster, in pods with claims; their namespace is deleted afterwards."""

    example = "dra-driver bench pods --image registry.example.com/bench:1"

    image: str = option(help="Image of the pods, with Python and `dra_driver/bench`.")
    command_image: str = option(default="", help="Image for commands; unset: --image.")
    pull_secret: str = option(
        check=shaped(r"([a-z0-9-]+/[a-z0-9.-]+)?", "the NAMESPACE/NAME of a Secret"),
        default="",
        metavar="NAMESPACE/NAME",
        help="Secret for pulling the images; it is copied into the run's namespace.",
    )
    node: str = option(default="", help="Node to run on; unset: any.")
    shares: str = option(default="", help="Resource name of shares, such as nvidia.com/gpu.")
    kubeconfig: Path | None = KUBECONFIG
    context: str = CONTEXT

    def _runner(self, stop: Stop, stack: ExitStack) -> tuple[Runner, Card]:
        place = Place(
            image=self.image,
            command_image=self.command_image,
            node=self.node,
            shares=self.shares,
            pull_secret=self.pull_secret,
            patience=2 * self.patience,
        )
        client = connect(self.kubeconfig, self.context, environment=os.environ)
        stack.callback(client.close)
        runner = PodRunner(client, place, _say, patience=self.patience, stop=stop)
        stack.enter_context(runner)
        _say(f"namespace {runner.namespace}; probing the card")
        return runner, runner.probe()


class DrawReports(CommandSettings):
    """Draw existing reports, and compare them."""

    example = "dra-driver bench report a.json b.json --name both"

    reports: list[Path] = argument(metavar=FILE, help="Reports in JSON.")
    name: Path = _NAME

    def cli_cmd(self) -> None:
        """Draw the reports."""
        _check_place(self.name)
        paths = [Path(path) for path in self.reports]
        _draw([read_report(path) for path in paths], self.name, names_of(paths))


class ListScenarios(CommandSettings):
    """List the shipped scenarios, and which question each answers."""

    def cli_cmd(self) -> None:
        """Print the scenarios."""
        sys.stdout.write("\n".join(listed()) + "\n")


class Bench(CommandGroup):
    """Measure which sharing strategy is best for your work, on your own GPUs."""

    statuses = _STATUSES
    commands: ClassVar[Mapping[str, type[CommandSettings]]] = MappingProxyType(
        {"processes": Processes, "pods": Pods, "report": DrawReports, "list": ListScenarios}
    )


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
    sys.stdout.write("\n".join(as_text(report) for report in reports))
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
    with suppress(OSError):  # the terminal may be gone, but the run continues
        sys.stderr.write(f"bench: {text}\n")
        sys.stderr.flush()
