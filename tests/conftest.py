"""Settings that all tests share: what a run inherits changes nothing in them."""

import gc
import logging
import os
import re
import signal
import tempfile
from collections.abc import Iterator
from multiprocessing import forkserver, resource_tracker
from pathlib import Path

import pytest
import structlog
from hypothesis import HealthCheck, settings

import leftovers
from sampling import examples

SHORT = 15
"""In pytest's own folders below a longer TMPDIR, the paths of the tests' sockets would have more
bytes than the kernel's 107; hack/test has shorter folders."""

# nohup, and a script that starts something in the background, have the processes ignore interrupts.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# What is not ready fails at once: to get or compile it would take longer than a test may, and slow
# down all others. hack/ready.py does it before the tests.
os.environ["CLUSTER_FETCH"] = "never"

os.umask(0o022)  # the drivers of tests give files to containers, as under the umask of an image

# How fast a machine generates examples says nothing about the code: no test is timed.
settings.register_profile(
    "any-machine",
    max_examples=examples(100),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("any-machine")


@pytest.fixture(autouse=True)
def logs_restored() -> Iterator[None]:
    """Give other tests the logging that was there before a command of this one configured it."""
    handlers, level = logging.root.handlers[:], logging.root.level
    yield
    structlog.reset_defaults()
    structlog.contextvars.clear_contextvars()
    logging.captureWarnings(capture=False)
    logging.root.handlers[:] = handlers
    logging.root.setLevel(level)


@pytest.fixture(scope="session")
def helpers_of_multiprocessing() -> None:
    """What Python starts once, with the first process that a test starts by spawn or forkserver."""
    forkserver.ensure_running()
    resource_tracker.ensure_running()


@pytest.fixture(autouse=True)
def nothing_left_behind(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    helpers_of_multiprocessing: None,
) -> Iterator[None]:
    """Fail the test after which this process has more than before: descriptors, threads, …

    End-to-end tests share clusters, and look at nodes after each instead (e2e/scene.py).
    """
    if any(request.node.get_closest_marker(name) for name in ("e2e", "leaves")):
        yield
        return
    mounted_below = tmp_path_factory.getbasetemp()
    before = leftovers.here(mounted_below)
    yield
    left = leftovers.left(before, mounted_below)
    assert not left, "\n".join(left)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--allowed-skips", type=Path, help="file of reasons, other skips fail the run")


def pytest_configure(config: pytest.Config) -> None:
    # Where the simulator's library lies with a blank or a colon, LD_PRELOAD cannot name it.
    folder = tempfile.gettempdir()
    if not config.option.basetemp and (len(folder) > SHORT or set(" :") & set(folder)):
        os.environ["TMPDIR"] = tempfile.tempdir = "/tmp"
    config.pluginmanager.register(FirstFailure(config), "first-failure")
    gc.disable()  # what is collected stays: to look for garbage in it would be a fifth of the work


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Let a run fail that has skipped a test for a reason that is not allowed."""
    terminal = session.config.pluginmanager.get_plugin("terminalreporter")
    file = session.config.getoption("allowed_skips", None)
    if terminal is None or file is None:
        return
    lines = file.read_text().splitlines()
    allowed = "|".join(line for line in lines if line and not line.startswith("#"))
    for report in terminal.stats.get("skipped", ()):
        reason = report.longrepr[2].removeprefix("Skipped: ")
        if not re.fullmatch(allowed, reason):
            terminal.write_line(f"\nthis skip is not allowed: {report.nodeid}: {reason}", red=True)
            session.exitstatus = pytest.ExitCode.TESTS_FAILED


class FirstFailure:
    """Shows the first failure when it happens, and names later ones; the end has all of them."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._has_failed = False

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        terminal = self._config.pluginmanager.get_plugin("terminalreporter")
        if not report.failed or terminal is None:  # as in the processes that run tests for this one
            return
        terminal.write_line(f"\nFAILED {report.nodeid} ({report.when})", red=True)
        if not self._has_failed:
            self._has_failed = True
            report.toterminal(terminal._tw)
            terminal.flush()
