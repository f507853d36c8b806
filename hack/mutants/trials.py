"""One room's mutants: which are drawn, which tests can notice each, and whether one does.

In: a room, a seed, a number. Out: for each drawn mutant its result, kept in the user's cache, so
that the next run continues there. A result is valid until the module or the tests it depends on
change.
"""

import ast
import fcntl
import json
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from mutants import cell, copy_of, observed
from mutants.collected import Collected
from mutants.faults import Module, Mutant, difference
from mutants.observed import CannotRunError, Cost, Place
from mutants.recording import Recording, Seen
from mutants.rooms import EVERY, Room

_FEW = 10
_START_CPU_S, _START_WALL_S = 60.0, 300.0
"""The most seconds of imports and the collection of tests."""
WORTH_S = 10.0
"""Seconds of tests for a mutant, by default."""
KILLED, LATE, SURVIVED, UNTESTED = "killed", "late", "survived", "untested"
_NO_TESTS = 5  # pytest's exit status


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """The result of a mutant."""

    key: str
    module: str
    line: int
    outcome: str
    difference: Sequence[str]
    by: str
    """The test that failed."""
    rests_on: str
    """A digest of the tests: of the one that failed, or of all."""
    fault: str = ""


class Trials:
    """A room in a copy of the repository of its own."""

    def __init__(
        self,
        name: str,
        room: Room,
        *,
        repository: Path,
        cache: Path,
        faults: Callable[[Module], list[Mutant]] = Module.mutants,
        worth: float = WORTH_S,
    ) -> None:
        """Read the room; each mutant is `worth` some seconds of tests, the shortest first."""
        self.name = name
        self._faults = faults
        self._worth = worth
        self._repository = repository
        self._folder = cache / name.replace("/", "-")
        self._cache = cache
        self._sources = _files(repository, room.sources)
        slow = set(_files(repository, room.without))
        self._tests = [name for name in _files(repository, room.tests) if name not in slow]
        self._digests = {
            name: sha256((repository / name).read_bytes()).hexdigest()[:16] for name in self._tests
        }
        self._modules = {
            name: Module(name, (repository / name).read_text()) for name in self._sources
        }
        self._seen = Seen()
        self._functions: dict[str, dict[str, str]] = {}

    def drawn(self, seed: int, sample: int) -> tuple[list[Mutant], int]:
        """Return a sample, whose beginning is any smaller one, and how many mutants there are.

        With the same seed it changes only where statements have changed.
        """
        every = [mutant for module in self._modules.values() for mutant in self._faults(module)]
        every.sort(key=lambda mutant: sha256(f"{seed}\0{mutant.lot}".encode()).digest())
        return every[:sample], len(every)

    def results(self) -> dict[str, Result]:
        """Return the last result of each mutant."""
        return {key: Result(**value) for key, value in self._read("results.json").items()}

    def _holds(self, result: Result | None) -> bool:
        """Tell whether the tests that a result depends on are unchanged."""
        return result is not None and result.rests_on == self._basis(result.by)

    def run(self, mutants: Sequence[Mutant], until: float) -> Iterator[Result]:
        """Try those without a result, until a moment; keep and yield each result."""
        self._folder.mkdir(parents=True, exist_ok=True)
        with self._alone(), tempfile.TemporaryDirectory(prefix="m") as scratch:
            known = self.results()
            left = [mutant for mutant in mutants if not self._holds(known.get(mutant.key))]
            if not left:
                return
            place = Place(
                tree=self._folder / "tree",
                cache=self._cache.parent,
                logs=self._folder,
                scratch=Path(scratch),
            )
            copy_of.bring_up_to_date(self._repository, place.tree)
            self._seen = self._recorded(place, until)
            with closing(Collected(place, self._sources, self._seen.files)) as collected:
                for mutant in left:
                    if time.monotonic() >= until:
                        return
                    known[mutant.key] = self._tried(mutant, place, collected)
                    self._write("results.json", {key: asdict(own) for key, own in known.items()})
                    yield known[mutant.key]

    def _recorded(self, place: Place, until: float) -> Seen:
        patterns = [pattern for room in EVERY.values() for pattern in room.sources]
        modules = sorted({*_files(self._repository, patterns), *self._sources})
        recording = Recording(place, self._cache / "recorded", self._repository, modules)
        return recording.seen(self._tests, self._sources, until)

    @contextmanager
    def _alone(self) -> Iterator[None]:
        with (self._folder / "lock").open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise CannotRunError(
                    f"another run tries the mutants of {self.name}: wait until it has ended"
                ) from None
            yield

    def _basis(self, test: str) -> str:
        """Return the digest of a test, or of all files if it is not there."""
        file, _, name = test.partition("::")
        if file in self._digests:
            if file not in self._functions:
                self._functions[file] = _functions((self._repository / file).read_text())
            functions = self._functions[file].get(name.partition("[")[0].rpartition("::")[2])
            if functions:
                return functions
        return sha256(json.dumps(self._digests, sort_keys=True).encode()).hexdigest()[:16]

    def _tried(self, mutant: Mutant, place: Place, collected: Collected) -> Result:
        module = self._modules[mutant.module]
        text = module.mutated(mutant)
        tests = self._that_notice(mutant)
        outcome, by = UNTESTED, ""
        if tests:
            with copy_of.faulty(place.tree / module.name, text):
                status = collected.ask(module.name, (module.text, text), dict(tests))
                if status is None or (status == 0 and self._runs_at_import(mutant)):
                    status = _imported_again(tests, place)
            outcome, by = _outcome(status, place)
        return Result(
            key=mutant.key,
            module=mutant.module,
            line=mutant.line,
            outcome=outcome,
            difference=difference(module.text, text),
            by=by,
            rests_on=self._basis(by),
            fault=mutant.fault,
        )

    def _that_notice(self, mutant: Mutant) -> list[tuple[str, Cost]]:
        """Return tests that run the lines, within its worth: unit tests and short ones first."""
        lines = _lines(mutant)
        # Lines that run at import may matter to a test that runs nothing else of the module.
        at_import = self._runs_at_import(mutant)
        order = []
        for test, modules in self._seen.lines.items():
            run = modules.get(mutant.module, ())
            is_hit = bool(lines.intersection(run))
            if is_hit or at_import:
                cost = self._seen.costs[test]
                order.append((not is_hit, not run, not _is_unit(test), cost, test))
        chosen: list[tuple[str, Cost]] = []
        spent = 0.0
        for *_, (cpu, wall), test in sorted(order):
            if spent + cpu <= self._worth:
                chosen.append((test, (cpu, wall)))
                spent += cpu
        return chosen

    def _runs_at_import(self, mutant: Mutant) -> bool:
        """Tell whether something computed before the tests depends on a fault's lines."""
        return bool(_lines(mutant).intersection(self._seen.imported.get(mutant.module, ())))

    def _read(self, name: str) -> dict[str, Any]:
        try:
            content = json.loads((self._folder / name).read_text())
        except (FileNotFoundError, json.JSONDecodeError):
            return {}
        return content if isinstance(content, dict) else {}

    def _write(self, name: str, value: dict[str, Any]) -> None:
        new = self._folder / f"{name}.new"
        new.write_text(json.dumps(value, indent=1))
        new.replace(self._folder / name)


def _lines(mutant: Mutant) -> set[int]:
    return set(range(mutant.line, mutant.last + 1))


def _imported_again(tests: Sequence[tuple[str, Cost]], place: Place) -> int:
    """Return how tests end if everything is imported with the fault."""
    # A few tests first: they notice most faults, and need few files to be imported.
    return _asked(dict(tests[:_FEW]), place) or _asked(dict(tests[_FEW:]), place)


def _asked(tests: Mapping[str, Cost], place: Place) -> int:
    limit = cell.Limit(cpu=_START_CPU_S, wall=_START_WALL_S)
    return place.ask(tests, lambda: observed.ask(place, tests, limit), limit) if tests else 0


def _outcome(status: int, place: Place) -> tuple[str, str]:
    """Return the result of a mutant, and the test that decided it."""
    if status == 0:
        return SURVIVED, ""
    if status == _NO_TESTS:
        raise CannotRunError(f"pytest found none of the tests: see {place.logs}/mutant.log")
    return LATE if status == cell.LATE else KILLED, place.asked.read_text()


def _functions(text: str) -> dict[str, str]:
    """Return the digest of each function of a file, with its decorators."""
    lines = text.splitlines()
    return {
        node.name: sha256(
            "\n".join(lines[_first_line(node) - 1 : node.end_lineno]).encode()
        ).hexdigest()[:16]
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.FunctionDef)
    }


def _first_line(node: ast.FunctionDef) -> int:
    return min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])


def _is_unit(test: str) -> bool:
    return test.startswith("tests/unit/")


def _files(repository: Path, patterns: Sequence[str]) -> list[str]:
    paths = {path for pattern in patterns for path in repository.glob(pattern)}
    return sorted(str(path.relative_to(repository)) for path in paths)
