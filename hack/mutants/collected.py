"""A process that has imported a room and collected its tests once, and tries faults in forked ones.

It contains no fault itself. For each fault it forks a process into a cell, gives the functions
there their faulty code, and runs tests. This saves importing and collecting, which would take most
of the time.
"""

import gc
from collections.abc import Mapping, Sequence
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from types import CodeType, FunctionType
from typing import Any

import pytest

from mutants import cell, observed
from mutants.observed import CannotRunError, Cost, Place
from mutants.patches import live, patches

_START_S = 600.0
_LOG = "collected.log"


class Collected:
    """The process, as its parent sees it."""

    def __init__(self, place: Place, sources: Sequence[str], tests: Sequence[str]) -> None:
        self._place = place
        self._questions, theirs = Pipe()
        plugin = _Desk(theirs, place, [str(place.tree / name) for name in sources])
        self._process = cell.fork(lambda: observed.run(place, tests, plugin), log=place.logs / _LOG)
        theirs.close()
        if not self._questions.poll(_START_S):
            self.close()
            raise CannotRunError(f"tests are not collected in {_START_S:.0f} s: try again")
        self._answer()

    def ask(self, module: str, texts: tuple[str, str], tests: Mapping[str, Cost]) -> int | None:
        """Return how tests end with a fault; None if the fault needs a new import."""
        self._questions.send((str(self._place.tree / module), texts, dict(tests)))
        answer: int | None = self._answer()
        return answer

    def _answer(self) -> Any:
        try:
            return self._questions.recv()
        except EOFError:
            log = self._place.logs / _LOG
            raise CannotRunError(f"tests cannot be collected: see {log}") from None

    def close(self) -> None:
        """End the process."""
        self._questions.close()
        cell.end(self._process)


class _Desk(observed.Hypothesis):
    """A plugin that runs no test in this process, but in forked ones, on request."""

    def __init__(self, questions: Connection, place: Place, files: Sequence[str]) -> None:
        self._questions = questions
        self._place = place
        self._files = files

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        if session.testsfailed:
            return True  # a file could not be imported; the log says why
        # Each forked process has its own, without the output of processes that were ended.
        session.config.pluginmanager.getplugin("capturemanager").stop_global_capturing()
        functions = live(self._files)
        gc.collect()
        gc.freeze()
        self._questions.send(len(session.items))
        while True:
            try:
                file, texts, tests = self._questions.recv()
            except EOFError:
                return True
            changes = patches(file, texts, functions)
            self._questions.send(None if changes is None else self._tried(session, changes, tests))

    def _tried(
        self,
        session: pytest.Session,
        changes: Sequence[tuple[FunctionType, CodeType]],
        tests: Mapping[str, Cost],
    ) -> int:
        limit = cell.Limit(cpu=2 * observed.LEAST_CPU_S, wall=2 * observed.LEAST_WALL_S)

        def work() -> int:
            self._questions.close()
            observed.write_no_bytecode()
            for function, code in changes:
                function.__code__ = code
            return _run(session, observed.Asked(tests, self._place.asked, limit))

        return self._place.ask(tests, work, limit)


def _run(session: pytest.Session, asked: observed.Asked) -> int:
    """Run tests as pytest does, until one fails; fixtures end with this process."""
    plugins = session.config.pluginmanager
    plugins.getplugin("capturemanager").start_global_capturing()
    plugins.register(asked)
    items = asked.chosen(session.items)
    for item, following in zip(items, [*items[1:], None], strict=True):
        session.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
        if asked.has_failed:
            return pytest.ExitCode.TESTS_FAILED
    return pytest.ExitCode.OK if items else pytest.ExitCode.NO_TESTS_COLLECTED
