"""What each test runs, and how long that takes: which tests can notice a fault in which line.

In: files of tests, and modules. Out: the recordings of these tests in the user's cache, one for
each file, so that rooms with the same tests record them once. A recording is valid until the file,
the room's modules or the code that tests share changes.
"""

import json
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any

from mutants import cell, observed
from mutants.observed import CannotRunError, Cost, Place

_FILES_AT_ONCE = 6
_START_CPU_S, _START_WALL_S = 120.0, 600.0
_SHARED = ("tests/*.py", "tests/worlds/*.py", "tests/**/conftest.py")
_LOG = "recording.log"


@dataclass(frozen=True, slots=True)
class Seen:
    """What tests run: lines by module, for each test and before the first one of a file."""

    files: list[str] = field(default_factory=list)
    lines: dict[str, Mapping[str, Sequence[int]]] = field(default_factory=dict)
    costs: dict[str, Cost] = field(default_factory=dict)
    imported: dict[str, set[int]] = field(default_factory=dict)

    def add(self, file: str, kept: Mapping[str, Any]) -> None:
        """Add the recording of one file."""
        self.files.append(file)
        for test, (cpu, wall, lines) in kept["tests"].items():
            self.lines[test] = lines
            self.costs[test] = cpu, wall
        for module, lines in kept["imported"].items():
            self.imported.setdefault(module, set()).update(lines)


class Recording:
    """The recordings of a repository's tests; those of a copy are added."""

    def __init__(
        self, place: Place, folder: Path, repository: Path, modules: Sequence[str]
    ) -> None:
        self._place = place
        self._folder = folder
        self._repository = repository
        self._modules = {name: self._digest(name) for name in modules}
        shared = sorted({path for pattern in _SHARED for path in repository.glob(pattern)})
        every = "".join(self._digest(str(path)) for path in shared)
        self._shared = sha256(every.encode()).hexdigest()[:16]

    def seen(self, tests: Sequence[str], modules: Sequence[str], until: float) -> Seen:
        """Return what tests run of a room's modules, after missing recordings were made."""
        new = [name for name in tests if self._kept(name, modules) is None]
        for first in range(0, len(new), _FILES_AT_ONCE):
            if time.monotonic() >= until:
                break
            print(f"what {len(new) - first} files of tests run is recorded", flush=True)
            self._record(new[first : first + _FILES_AT_ONCE])
        made = Seen()
        for name in tests:
            kept = self._kept(name, modules)
            if kept is not None:
                made.add(name, kept)
                for test in kept["failed"]:
                    print(f"fails without a fault, so it is not asked: {test}", flush=True)
        return made

    def _kept(self, test: str, modules: Sequence[str]) -> dict[str, Any] | None:
        """Return the recording of a file, if it is valid for these modules."""
        try:
            kept: dict[str, Any] = json.loads(self._file(test).read_text())
        except (FileNotFoundError, json.JSONDecodeError):
            return None
        wanted = {name: self._modules[name] for name in modules}
        holds = (
            kept["digest"] == self._digest(test)
            and kept["shared"] == self._shared
            and wanted.items() <= kept["modules"].items()
        )
        return kept if holds else None

    def _record(self, tests: Sequence[str]) -> None:
        output = self._place.scratch / "seen.json"
        output.unlink(missing_ok=True)
        limit = cell.Limit(cpu=_START_CPU_S, wall=_START_WALL_S)
        status = self._place.run(
            lambda: observed.record(self._place, list(self._modules), tests, limit), limit, _LOG
        )
        if status == cell.LATE or not output.is_file():
            log = self._place.logs / _LOG
            raise CannotRunError(f"tests do not run without a fault either: see {log}")
        seen: dict[str, Any] = json.loads(output.read_text())
        for name in tests:
            kept = {
                "digest": self._digest(name),
                "shared": self._shared,
                "modules": self._modules,
                "imported": seen["imported"],
                "failed": [test for test in seen["failed"] if _file_of(test) == name],
                "tests": {
                    test: own for test, own in seen["tests"].items() if _file_of(test) == name
                },
            }
            file = self._file(name)
            file.parent.mkdir(parents=True, exist_ok=True)
            new = file.with_suffix(f".{os.getpid()}")
            new.write_text(json.dumps(kept))
            new.replace(file)

    def _file(self, test: str) -> Path:
        return self._folder / f"{test.replace('/', '-')}.json"

    def _digest(self, name: str) -> str:
        return sha256((self._repository / name).read_bytes()).hexdigest()[:16]


def _file_of(test: str) -> str:
    return test.partition("::")[0]
