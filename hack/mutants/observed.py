"""Runs pytest on a copy of the repository: once to see what each test runs, then with a fault.

Both in a process that a cell holds. Third-party packages were imported before it was forked; the
project's own are imported in it, from the copy.
"""

import importlib
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest
from coverage import Coverage
from hypothesis import Phase, settings

IMPORTED = ""
"""In the place of a test: what runs before the first one."""
_CPU_S, _WALL_S = 2.0, 20.0
"""A test that takes longer is not asked: three hundred mutants have to be tried in an hour. Its
time is that of the CPU, for the machine may be busy."""

_EARLY = ("grpc", "httptools", "jsonschema", "prometheus_client", "pydantic")
_WORDS = (
    *("-q", "-x", "-p", "no:randomly", "-p", "no:cacheprovider", "-p", "no:xdist"),
    *("-W", "ignore::pytest.PytestAssertRewriteWarning"),  # what was imported early
)
_PATHS = (".", "api", "hack", "tests")


def import_early() -> None:
    """Import here what each of the forked processes would import, too."""
    for name in _EARLY:
        importlib.import_module(name)


def record(tree: Path, sources: Sequence[str], tests: Sequence[str], output: Path) -> int:
    """Run tests; write which lines of which modules each of them runs, and how long it takes."""
    _settle(tree, output.parent)
    recorder = Recorder([str(tree / name) for name in sources])
    words = [word for word in _WORDS if word != "-x"]
    status = int(pytest.main([*words, f"--basetemp={output.parent}/t", *tests], [recorder]))
    output.write_text(json.dumps(recorder.seen(tree)))
    return status


def ask(tree: Path, tests: Mapping[str, float], output: Path) -> int:
    """Run tests, the shortest first, until one fails; write its name."""
    sys.dont_write_bytecode = True
    os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
    _settle(tree, output.parent)
    files = dict.fromkeys(name.partition("::")[0] for name in tests)
    asked = Asked(list(tests), output)
    return int(pytest.main([*_WORDS, f"--basetemp={output.parent}/t", *files], [asked]))


def _settle(tree: Path, scratch: Path) -> None:
    """Have this process, and those it starts, see the copy as their repository."""
    os.chdir(tree)
    here = str(Path(__file__).parents[1])
    paths = [str(tree / path) for path in _PATHS[:2]]
    sys.path[:] = [*paths, *(path for path in sys.path if path != here)]
    os.environ["PYTHONPATH"] = os.pathsep.join(paths)
    os.environ["HYPOTHESIS_STORAGE_DIRECTORY"] = str(scratch / "hypothesis")
    os.environ["TMPDIR"] = str(scratch)
    tempfile.tempdir = None
    for name in [name for name in sys.modules if name.partition(".")[0] == "mutants"]:
        if name != __name__:
            del sys.modules[name]  # a test of the copy may import its own


def _cpu() -> float:
    """Seconds of CPU that this process has had, and those it started that have ended."""
    return sum(os.times()[:4])


class _Hypothesis:
    """Examples as ever, but the first that fails will do: nobody reads the smallest."""

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection(self) -> None:
        profile = settings(
            settings.default,
            derandomize=True,
            database=None,
            phases=(Phase.explicit, Phase.generate),
        )
        settings.register_profile("mutants", profile)
        settings.load_profile("mutants")


class Recorder(_Hypothesis):
    """A plugin that notes for each test that passes which lines it runs, and how long it takes."""

    def __init__(self, files: Sequence[str]) -> None:
        self._coverage = Coverage(data_file=None, config_file=False, include=files, messages=False)
        self._seconds: dict[str, float] = {IMPORTED: 0.0}
        self._unfit: set[str] = set()
        self._coverage.start()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        self._coverage.switch_context(item.nodeid)
        start, busy = time.monotonic(), _cpu()
        result = yield
        self._seconds[item.nodeid] = _cpu() - busy
        if time.monotonic() - start > _WALL_S:
            self._unfit.add(item.nodeid)
        return result

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.outcome != "passed":
            self._unfit.add(report.nodeid)

    def seen(self, tree: Path) -> dict[str, object]:
        """Return the seconds and lines of each test that is fit to be asked."""
        self._coverage.stop()
        data = self._coverage.get_data()
        lines: dict[str, dict[str, list[int]]] = {}
        for file in data.measured_files():
            module = str(Path(file).relative_to(tree))
            for line, tests in data.contexts_by_lineno(file).items():
                for test in tests:
                    lines.setdefault(test, {}).setdefault(module, []).append(line)
        return {
            test: {"seconds": round(seconds, 4), "lines": lines.get(test, {})}
            for test, seconds in self._seconds.items()
            if test not in self._unfit and seconds <= _CPU_S
        }


class Asked(_Hypothesis):
    """A plugin that runs the tests named, in this order, and writes down which one failed."""

    def __init__(self, tests: Sequence[str], output: Path) -> None:
        self._places = {test: place for place, test in enumerate(tests)}
        self._output = output

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items[:] = sorted(
            (item for item in items if item.nodeid in self._places),
            key=lambda item: self._places[item.nodeid],
        )

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self._output.write_text(report.nodeid)
