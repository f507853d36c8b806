"""`make hardware`: tries the driver on this machine's card, and leaves it as it was.

ALLOW names what may be changed (run.CHANGES); tests that change more are skipped. Other variables:
GPU (index or UUID of the card, 0), IN_USE=1 (go on although others use the card), REPORT (folder of
the report), IDENTIFY=1 (leave UUIDs and serial number in it), NVIDIA_DRIVER_ROOT, CGROUP_ROOT,
RESTORE=1 (only undo a run that was killed).
"""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from dra_driver.errors import DriverError
from hardware import run as runs
from hardware.report import Report
from hardware.run import CHANGES, Evidence, Run

HERE = Path(__file__).parent
ALLOW = frozenset(filter(None, os.environ.get("ALLOW", "").split(",")))
REPORT = Report(Path(os.environ.get("REPORT", HERE.parents[1] / "build/hardware")))


def pytest_sessionstart() -> None:
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # with all that is undone then
    if unknown := ALLOW - CHANGES.keys():
        pytest.exit(f"ALLOW={','.join(unknown)}: it is none of {', '.join(CHANGES)}", returncode=2)
    if os.environ.get("RESTORE"):
        try:
            pytest.exit(_undone() or "nothing is to be taken back", returncode=0)
        except DriverError as error:
            pytest.exit(f"error: {error}", returncode=1)


def _undone() -> str:
    """Undo a run that did not end; say what came of it, or nothing if there is none."""
    with runs.locked() as file:
        left = runs.restore(file)
    if left is None:
        return ""
    by_hand = "set these back by hand, unless others changed them"
    return f"not as before: {'; '.join(left)}; {by_hand}" if left else "all is as it was"


def _changes(item: pytest.Item, *, also: bool = True) -> frozenset[str]:
    """What a test changes; with `also` what it changes besides if that is allowed."""
    mark = item.get_closest_marker("changes")
    if mark is None:
        return frozenset()
    return frozenset(mark.args) | (ALLOW & {*mark.kwargs.get("also", ())} if also else set())


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Have what only reads come first, and leave out what is not allowed."""
    own = [item for item in items if HERE in item.path.parents]
    for item in own:
        item.add_marker(pytest.mark.gpu)
        item.add_marker(pytest.mark.leaves("all tests have one driver, which the last one ends"))
        if missing := _changes(item, also=False) - ALLOW:
            item.add_marker(pytest.mark.skip(f"it needs ALLOW={','.join(sorted(missing))}"))
    items.sort(key=lambda item: item in own and bool(_changes(item)))


def pytest_report_collectionfinish(items: list[pytest.Item]) -> list[str]:
    """Say what will be changed, and by which tests."""
    changed: dict[str, list[str]] = {}
    for item in items:
        if _changes(item, also=False) <= ALLOW:
            for change in _changes(item):
                changed.setdefault(change, []).append(item.name)
    lines = [f"  {one}: {CHANGES[one]} ({', '.join(changed[one])})" for one in sorted(changed)]
    return ["it will change, and set back:", *lines] if lines else ["it will change no setting"]


@pytest.fixture(scope="session")
def card_run() -> Iterator[Run]:
    """The run on the card, which is as before in the end."""
    root, which = os.environ.get("NVIDIA_DRIVER_ROOT", "/"), os.environ.get("GPU", "0")
    with runs.locked() as file:
        runs.restore(file)
        run = runs.begin(file, Path(root), which, ALLOW)
        REPORT.begin(run)
        try:
            yield run
        finally:
            run.undo(frozenset())
            REPORT.end(differences := runs.put_back(file, run.before, run.card))
    assert not differences, f"not as before: {'; '.join(differences)}"


@pytest.fixture
def run(card_run: Run, request: pytest.FixtureRequest) -> Iterator[Run]:
    """The run for one test, which changes what it is marked with; afterwards that is undone."""
    card_run.evidence = Evidence()
    yield card_run
    if changed := _changes(request.node):
        with card_run.timed("putting back"):
            card_run.undo(changed)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Iterator[pytest.TestReport]:
    report = yield
    if HERE in item.path.parents and (call.when == "call" or report.outcome != "passed"):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr
        REPORT.add(item.name, report.outcome, str(reason or ""), call.duration)
    return report


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    terminalreporter.write_line(REPORT.summary())
