"""Runs pytest on a copy of the repository: once to see what each test runs, then with a fault.

Third-party packages were imported before this process was forked; the project's own are imported
in it, from the copy.
"""

import importlib
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
from coverage import Coverage
from hypothesis import Phase, settings

from mutants import cell

_NO_TEST = ""
"""Coverage's context of what runs before the first test."""
_CPU_S, _WALL_S = 2.0, 20.0
"""Tests that take longer are not used, because three hundred mutants have to be tried in an hour.
CPU time counts, because the machine may be busy."""
_RECORDED_S = 60.0
"""The most CPU time of a test while it is recorded, even if it is not used."""
LEAST_CPU_S, LEAST_WALL_S = 5.0, 25.0
_TIMES_CPU, _TIMES_WALL = 5, 10
"""How many times longer a test may take with a fault than without, and how long at least."""

_EARLY = ("grpc", "httptools", "jsonschema", "prometheus_client", "pydantic")
_WORDS = (
    *("-q", "-p", "no:randomly", "-p", "no:cacheprovider", "-p", "no:xdist"),
    *("-W", "ignore::pytest.PytestAssertRewriteWarning"),  # what was imported early
)
_PATHS = (".", "api", "hack", "tests")


def import_early() -> None:
    """Import here what all forked processes would import."""
    for name in _EARLY:
        importlib.import_module(name)


Cost = tuple[float, float]
"""CPU and wall-clock seconds that a test takes without a fault."""


class CannotRunError(Exception):
    """The tests cannot be run; the message says why, and what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where tests run, and what they may write."""

    tree: Path
    """The copy."""
    cache: Path
    logs: Path
    scratch: Path

    @property
    def asked(self) -> Path:
        """The file with the name of the test that began last."""
        return self.scratch / "asked"

    def run(self, work: Callable[[], int], limit: cell.Limit, log: str) -> int:
        """Run a function in a cell, and remove what its tests leave."""
        writable = (self.cache, self.scratch)
        status = cell.run(work, limit=limit, writable=writable, log=self.logs / log)
        shutil.rmtree(self.scratch / "t", ignore_errors=True)
        return status

    def ask(self, tests: Mapping[str, Cost], work: Callable[[], int], limit: cell.Limit) -> int:
        """Run a function that runs tests; an end before the first counts as its failure."""
        self.asked.write_text(next(iter(tests)))
        return self.run(work, limit, "mutant.log")


def record(place: Place, sources: Sequence[str], tests: Sequence[str], limit: cell.Limit) -> int:
    """Run tests; write which lines of which modules each of them runs, and how long it takes."""
    recorder = Recorder([str(place.tree / name) for name in sources], limit)
    status = run(place, tests, recorder, ())
    (place.scratch / "seen.json").write_text(json.dumps(recorder.seen(place.tree)))
    return status


def ask(place: Place, tests: Mapping[str, Cost], limit: cell.Limit) -> int:
    """Import all that tests need and run them, in this order, until one fails; write its name."""
    write_no_bytecode()
    files = dict.fromkeys(name.partition("::")[0] for name in tests)
    return run(place, list(files), Asked(tests, place.asked, limit), ("-x",))


def run(place: Place, files: Sequence[str], plugin: object, words: Sequence[str] = ()) -> int:
    """Have pytest import the files and treat their tests as the plugin says."""
    _settle(place.tree, place.scratch)
    base = f"--basetemp={place.scratch}/t"
    return int(pytest.main([*_WORDS, *words, base, *files], [plugin]))


def write_no_bytecode() -> None:
    """Leave no trace of faulty text in this process or in those that it starts."""
    sys.dont_write_bytecode = True
    os.environ["PYTHONDONTWRITEBYTECODE"] = "1"


def _settle(tree: Path, scratch: Path) -> None:
    """Let this process, and those it starts, see the copy as their repository."""
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
    """CPU seconds of this process and of its ended children."""
    return sum(os.times()[:4])


class Hypothesis:
    """The usual examples, but the first failure is enough: nobody reads the smallest one."""

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


class Recorder(Hypothesis):
    """A plugin that notes for each test that passes which lines it runs, and how long it takes."""

    def __init__(self, files: Sequence[str], limit: cell.Limit) -> None:
        self._limit = limit
        self._coverage = Coverage(data_file=None, config_file=False, include=files, messages=False)
        self._costs: dict[str, Cost] = {}
        self._unfit: set[str] = set()
        self._failed: set[str] = set()
        self._coverage.start()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        self._coverage.switch_context(item.nodeid)
        self._limit.put_off(cpu=_RECORDED_S, wall=10 * _RECORDED_S)
        start, busy = time.monotonic(), _cpu()
        result = yield
        self._costs[item.nodeid] = _cpu() - busy, time.monotonic() - start
        return result

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.outcome != "passed":
            self._unfit.add(report.nodeid)
        if report.failed:
            self._failed.add(report.nodeid)

    def seen(self, tree: Path) -> dict[str, object]:
        """Return cost and lines of each usable test, and the lines that imports ran."""
        self._coverage.stop()
        data = self._coverage.get_data()
        lines: dict[str, dict[str, list[int]]] = {}
        for file in data.measured_files():
            module = str(Path(file).relative_to(tree))
            for line, tests in data.contexts_by_lineno(file).items():
                for test in tests:
                    lines.setdefault(test, {}).setdefault(module, []).append(line)
        return {
            "failed": sorted(self._failed),
            "imported": lines.get(_NO_TEST, {}),
            "tests": {
                test: (round(cpu, 4), round(wall, 4), lines.get(test, {}))
                for test, (cpu, wall) in self._costs.items()
                if test not in self._unfit and cpu <= _CPU_S and wall <= _WALL_S
            },
        }


class Asked(Hypothesis):
    """A plugin that runs the named tests, in this order, and records the current one."""

    def __init__(self, tests: Mapping[str, Cost], output: Path, limit: cell.Limit) -> None:
        self._tests = tests
        self._output = output
        self._limit = limit
        self.has_failed = False

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items[:] = self.chosen(items)

    def chosen(self, items: Sequence[pytest.Item]) -> list[pytest.Item]:
        """Return the named tests, in their order."""
        known = {item.nodeid: item for item in items}
        return [known[name] for name in self._tests if name in known]

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logstart(self, nodeid: str) -> None:
        cpu, wall = self._tests[nodeid]
        self._limit.put_off(
            cpu=LEAST_CPU_S + _TIMES_CPU * cpu, wall=LEAST_WALL_S + _TIMES_WALL * wall
        )
        self._output.write_text(nodeid)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.has_failed = self.has_failed or report.failed
