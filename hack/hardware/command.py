"""`make hardware`: prints what it would change, tries the card by pytest, and writes the report.

Exit status 0 if no step has failed and the card is as it was, 1 otherwise, 2 for wrong options.
"""

import argparse
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

import pytest

from dra_driver.errors import DriverError
from dra_driver.ops.logs import configure_logs
from hardware import injected, report
from hardware.every_step import STEPS
from hardware.journal import Journal
from hardware.run import Run, Step, Wishes, restore_leftovers
from hardware.steps import MEANING, Change, Verdict

REPOSITORY = Path(__file__).resolve().parents[2]
PLUGIN = "hardware-run"


@dataclass(frozen=True, slots=True)
class Plugin:
    """Gives the run, which has begun, to tests/hardware, which is skipped without it.

    `keep` saves what it has found so far: a card that is tried may crash its machine.
    """

    run: Run
    keep: Callable[[], object]


def main(words: Sequence[str]) -> int:
    """Do what a command line says; return the exit status."""
    options = _parser().parse_args(words)
    signal.signal(signal.SIGTERM, _interrupt)
    configure_logs(level="warning", form="console", stream=sys.stderr)
    try:
        if options.restore:
            with (journal := Journal(options.state)).locked():
                if not restore_leftovers(journal, _say):
                    _say("nothing is to be taken back")
            return 0
        return _try(options)
    except DriverError as error:
        sys.stderr.write(f"error: {error}\n")
        return 1
    except KeyboardInterrupt:
        left = Journal(options.state).file.exists()
        todo = "; `make hardware RESTORE=1` puts back what it has changed" if left else ""
        sys.stderr.write(f"interrupted{todo}\n")
        return 1


def _try(options: argparse.Namespace) -> int:
    wishes = Wishes(
        state=options.state,
        root=options.nvidia_driver_root,
        gpu=options.gpu,
        allow=frozenset(options.allow),
        in_use=options.in_use,
        groups=options.cgroup_root,
    )
    chosen = [step for step in STEPS if not options.only or step.name in options.only]
    _say_plan(chosen, wishes.allow)
    if options.plan:
        return 0
    make_ready([step for step in chosen if step.changes <= wishes.allow])
    run = Run(wishes=wishes, say=_say)

    def keep() -> None:
        report.write(report.found(run, identify=options.identify), options.report)

    with run:
        card = run.card
        keep()
        _say(f"card: {card.gpu.product_name}, GPU driver {card.inventory.driver_version}"
             f"{', simulated' if card.is_simulated else ''}")  # fmt: skip
        status = _pytest(Plugin(run, keep), chosen)
    interrupted = status not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED)
    document = report.found(run, identify=options.identify, interrupted=interrupted, has_ended=True)
    for path in report.write(document, options.report):
        _say(f"written: {path}")
    for difference in run.differences:
        _say(f"not as before: {difference}")
    verdicts = Counter(outcome.verdict for outcome in run.outcomes)
    counts = ", ".join(f"{verdicts[verdict]} {verdict}" for verdict in Verdict)
    _say(f"steps: {counts}; the card is {'NOT ' if run.differences else ''}as it was")
    return int(bool(verdicts[Verdict.FAILED] or run.differences or interrupted))


def make_ready(steps: Sequence[Step]) -> None:
    """Compile what the steps' containers need; within pytest nothing is compiled."""
    if os.geteuid() == 0 and any(step.do.__module__ == injected.__name__ for step in steps):
        words = (sys.executable, str(REPOSITORY / "hack" / "ready.py"), "cdi")
        subprocess.run(words, stdout=subprocess.DEVNULL, check=False)  # it says why it cannot


def _say_plan(chosen: Sequence[Step], allowed: frozenset[Change]) -> None:
    taken = [step for step in chosen if step.changes <= allowed]
    changed = sorted({change for step in taken for change in step.changed(allowed)})
    _say("it will change, and set back:" if changed else "it will change no setting")
    for change in changed:
        by = ", ".join(step.name for step in taken if change in step.changed(allowed))
        _say(f"  {change}: {MEANING[change]} ({by})")
    for step in taken:
        _say(f"  {step.name}: {step.does}")
    if left := [step for step in chosen if step not in taken]:
        wanted = ",".join(sorted({name for step in left for name in step.changes}))
        _say(f"left out without ALLOW={wanted}: {', '.join(step.name for step in left)}")


def _pytest(plugin: Plugin, chosen: Sequence[Step]) -> int:
    words = ["-m", "gpu", "--timeout", "900", "-p", "no:randomly", "-p", "no:cacheprovider"]
    # A test is named after its step. The steps themselves print what pytest would, immediately.
    words += ["-p", "no:first-failure", "-qq", "-s", "-rN", "--tb", "no", "--no-header"]
    # Warnings about files left open by an interrupt must not end the run without its report.
    words += ["-p", "no:unraisableexception", "-p", "no:threadexception", "-W", "default"]
    tests = REPOSITORY / "tests" / "hardware" / "test_card.py"
    names = [f"{tests}::test_on_the_card[{step.name}]" for step in chosen]
    words += ["--rootdir", str(REPOSITORY), *names]
    try:
        return int(pytest.main(words, plugins=[_Registered(plugin)]))
    except (KeyboardInterrupt, Exception) as error:  # noqa: BLE001
        # pytest may fail to describe an interrupt that reaches it in its own code.
        _say(f"interrupted: pytest ended with {error!r}")
        return int(pytest.ExitCode.INTERRUPTED)


class _Registered:
    """Registers the plugin by its name, by which tests/hardware finds it."""

    def __init__(self, plugin: Plugin) -> None:
        self._plugin = plugin

    def pytest_configure(self, config: pytest.Config) -> None:
        config.pluginmanager.register(self._plugin, PLUGIN)

    @pytest.hookimpl(tryfirst=True)
    def pytest_report_teststatus(self, report: pytest.TestReport) -> tuple[str, str, str] | None:
        """Count, and print no letter among the sentences."""
        if report.when == "call" or report.failed:
            return report.outcome, "", ""
        return None


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="hack/hardware", description="Try the driver on this machine's card."
    )
    state = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state")
    add = parser.add_argument
    add("--allow", type=_changes, default=(), metavar="WHAT,…",
        help=f"what may be changed: {', '.join(Change)} (default: nothing)")  # fmt: skip
    add("--plan", action="store_true", help="only say what would be changed")
    add("--restore", action="store_true", help="only take a run back that was killed")
    add("--only", type=_steps, default=(), metavar="STEP,…", help="only these steps")
    add("--gpu", default="0", help="index or UUID of the card to try (default: 0)")
    add("--in-use", action="store_true", help="go on although others use the card")
    add("--identify", action="store_true", help="leave UUIDs and serial number in the report")
    add("--report", type=Path, default=REPOSITORY / "build" / "hardware", help="folder for it")
    add("--nvidia-driver-root", type=Path, default=Path("/"), help="root of the GPU driver")
    add("--cgroup-root", type=Path, help="root of the control groups (default: looked for)")
    add("--state", type=Path, default=state / "dra-driver-hardware", help="undo journal's folder")
    return parser


def _changes(text: str) -> tuple[Change, ...]:
    return tuple(map(Change, _words(text, list(Change))))


def _steps(text: str) -> tuple[str, ...]:
    return _words(text, [step.name for step in STEPS])


def _words(text: str, known: Sequence[str]) -> tuple[str, ...]:
    words = tuple(filter(None, text.split(",")))
    for word in words:
        if word not in known:
            raise argparse.ArgumentTypeError(f"{word!r} is none of {', '.join(known)}")
    return words


def _say(text: str) -> None:
    print(f"hardware: {text}", flush=True)


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # only once: the rest undoes everything
    raise KeyboardInterrupt
