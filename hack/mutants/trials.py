"""One room's mutants: which are drawn, which tests can notice each, and whether one does.

In: a room, a seed, how many. Out: for each mutant drawn what came of it, kept in the user's cache,
so that the next run goes on. A result holds as long as the module and the tests it rests on do.
"""

import ast
import fcntl
import json
import random
import shutil
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from mutants import cell, copy_of, observed
from mutants.faults import Module, Mutant, difference
from mutants.rooms import Room

_RECORDING_S = 300
_FILES_AT_ONCE = 3
_FEW = 10
_START_S = 25.0
"""Seconds that Python, imports and pytest may take on a busy machine."""
_BUDGET_S = 10.0
"""Seconds of tests that a mutant is worth, the shortest first."""
KILLED, LATE, SURVIVED, UNTESTED = "killed", "late", "survived", "untested"
_NO_TESTS = 5  # pytest's exit status


class CannotRunError(Exception):
    """The tests cannot be run; the message says why, and what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What came of a mutant."""

    key: str
    module: str
    line: int
    outcome: str
    difference: Sequence[str]
    by: str
    """The test that failed."""
    rests_on: str
    """A digest of the tests: of the one that failed, or of all."""


class Trials:
    """A room in a copy of the repository of its own."""

    def __init__(self, name: str, room: Room, *, repository: Path, cache: Path) -> None:
        self.name = name
        self._repository = repository
        self._folder = cache / name.replace("/", "-")
        self._tree = self._folder / "tree"
        self._cache = cache.parent
        self._sources = _files(repository, room.sources)
        slow = set(_files(repository, room.without))
        self._tests = [name for name in _files(repository, room.tests) if name not in slow]
        self._digests = {
            name: sha256((repository / name).read_bytes()).hexdigest()[:16] for name in self._tests
        }
        self._modules = {
            name: Module(name, (repository / name).read_text()) for name in self._sources
        }
        self._seen: dict[str, Any] = {}
        self._imported: dict[str, set[int]] = {}
        self._functions: dict[str, dict[str, str]] = {}

    def drawn(self, seed: int, sample: int) -> tuple[list[Mutant], int]:
        """Return a sample, of which a smaller one is the beginning, and how many there are."""
        every = [mutant for module in self._modules.values() for mutant in module.mutants()]
        # Drawn again by anyone who asks with the same seed; nothing secret hangs on it.
        random.Random(seed).shuffle(every)  # noqa: S311
        return every[:sample], len(every)

    def results(self) -> dict[str, Result]:
        """Return what came of each mutant when it was last tried."""
        return {key: Result(**value) for key, value in self._read("results.json").items()}

    def _holds(self, result: Result | None) -> bool:
        """Tell whether the tests that a result rests on are as they were."""
        return result is not None and result.rests_on == self._basis(result.by)

    def run(self, mutants: Sequence[Mutant], until: float) -> Iterator[Result]:
        """Try those of which nothing is known, until that time; keep and yield each result."""
        self._folder.mkdir(parents=True, exist_ok=True)
        with self._alone(), tempfile.TemporaryDirectory(prefix="m") as scratch:
            copy_of.bring_up_to_date(self._repository, self._tree)
            known = self.results()
            left = [mutant for mutant in mutants if not self._holds(known.get(mutant.key))]
            if left:
                self._record(Path(scratch), until)
            for mutant in left:
                if time.monotonic() >= until:
                    return
                known[mutant.key] = self._tried(mutant, Path(scratch))
                self._write("results.json", {key: asdict(one) for key, one in known.items()})
                yield known[mutant.key]

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
            found = self._functions[file].get(name.partition("[")[0].rpartition("::")[2])
            if found:
                return found
        return sha256(json.dumps(self._digests, sort_keys=True).encode()).hexdigest()[:16]

    def _record(self, scratch: Path, until: float) -> None:
        """Learn what each test runs, as far as there is time; files known already are not run."""
        support = _files(
            self._repository, ("tests/*.py", "tests/worlds/*.py", "tests/**/conftest.py")
        )
        basis = sha256()
        for name in (*self._sources, *support):
            basis.update((self._repository / name).read_bytes())
        kept = self._read("recording.json")
        files = kept.get("files", {}) if kept.get("basis") == basis.hexdigest() else {}
        files = {
            name: one for name, one in files.items() if one["digest"] == self._digests.get(name)
        }
        new = [name for name in self._tests if name not in files]
        for place in range(0, len(new), _FILES_AT_ONCE):
            if time.monotonic() >= until:
                break
            some = new[place : place + _FILES_AT_ONCE]
            print(
                f"{self.name}: what {len(new) - place} files of tests run is recorded", flush=True
            )
            seen = self._run_recorded(some, scratch)
            for name in some:
                own = {test: one for test, one in seen.items() if test.partition("::")[0] == name}
                files[name] = {
                    "digest": self._digests[name],
                    "imported": seen[observed.IMPORTED]["lines"],
                    "tests": own,
                }
            self._write("recording.json", {"basis": basis.hexdigest(), "files": files})
        for file in files.values():
            self._seen |= file["tests"]
            for module, lines in file["imported"].items():
                self._imported.setdefault(module, set()).update(lines)

    def _run_recorded(self, tests: Sequence[str], scratch: Path) -> dict[str, Any]:
        output = scratch / "seen.json"
        output.unlink(missing_ok=True)
        log = self._folder / "recording.log"
        status = cell.run(
            lambda: observed.record(self._tree, self._sources, tests, output),
            seconds=_RECORDING_S,
            writable=(self._cache, scratch),
            log=log,
        )
        if status == cell.LATE or not output.is_file():
            raise CannotRunError(
                f"tests of {self.name} do not run without a fault either: see {log}"
            )
        seen: dict[str, Any] = json.loads(output.read_text())
        return seen

    def _tried(self, mutant: Mutant, scratch: Path) -> Result:
        module = self._modules[mutant.module]
        text = module.mutated(mutant)
        tests = self._that_notice(mutant)
        outcome, by = UNTESTED, ""
        # A few first: most faults are noticed at once, and few tests are in few files to import.
        for some in (tests[:_FEW], tests[_FEW:]):
            if some and outcome in (UNTESTED, SURVIVED):
                outcome, by = self._asked(mutant.module, text, dict(some), scratch)
        return Result(
            key=mutant.key,
            module=mutant.module,
            line=mutant.line,
            outcome=outcome,
            difference=difference(module.text, text),
            by=by,
            rests_on=self._basis(by),
        )

    def _that_notice(self, mutant: Mutant) -> list[tuple[str, float]]:
        """Return the tests that run the lines, as many as it is worth: unit tests, short ones."""
        lines = set(range(mutant.line, mutant.last + 1))
        # What importing the module runs may concern a test that runs nothing else of it.
        at_import = lines.intersection(self._imported.get(mutant.module, ()))
        order = []
        for test, one in self._seen.items():
            run = one["lines"].get(mutant.module, ())
            is_hit = bool(lines.intersection(run))
            if is_hit or at_import:
                order.append((not is_hit, not run, not _is_unit(test), one["seconds"], test))
        chosen: list[tuple[str, float]] = []
        spent = 0.0
        for *_, seconds, test in sorted(order):
            if spent + seconds <= _BUDGET_S:
                chosen.append((test, seconds))
                spent += seconds
        return chosen

    def _asked(
        self, module: str, text: str, tests: dict[str, float], scratch: Path
    ) -> tuple[str, str]:
        output = scratch / "failed"
        output.unlink(missing_ok=True)
        with copy_of.faulty(self._tree / module, text):
            status = cell.run(
                lambda: observed.ask(self._tree, tests, output),
                seconds=_START_S + 5 * sum(tests.values()),
                writable=(self._cache, scratch),
                log=self._folder / "mutant.log",
            )
        shutil.rmtree(scratch / "t", ignore_errors=True)
        if status == _NO_TESTS:
            raise CannotRunError(
                f"pytest found none of {len(tests)} tests: see {self._folder}/mutant.log"
            )
        if status == 0:
            return SURVIVED, ""
        by = output.read_text() if output.is_file() else ""
        return (
            (LATE, next(iter(tests))) if status == cell.LATE else (KILLED, by or next(iter(tests)))
        )

    def _read(self, name: str) -> dict[str, Any]:
        try:
            found = json.loads((self._folder / name).read_text())
        except (FileNotFoundError, json.JSONDecodeError):
            return {}
        return found if isinstance(found, dict) else {}

    def _write(self, name: str, value: dict[str, Any]) -> None:
        new = self._folder / f"{name}.new"
        new.write_text(json.dumps(value, indent=1))
        new.replace(self._folder / name)


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
    return min([node.lineno, *(one.lineno for one in node.decorator_list)])


def _is_unit(test: str) -> bool:
    return test.startswith("tests/unit/")


def _files(repository: Path, patterns: Sequence[str]) -> list[str]:
    found = {path for pattern in patterns for path in repository.glob(pattern)}
    return sorted(str(path.relative_to(repository)) for path in found)
