"""hack/mutants finds the faults that no test notices, and leaves nothing but its results behind."""

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from mutants.copy_of import bring_up_to_date, faulty
from mutants.faults import Module, difference

HACK = Path(__file__).parents[3] / "hack"

CODE = '''\
"""A room."""

LIMIT = 3


def over(value: int) -> bool:
    return value > LIMIT


def counted(steps: int) -> int:
    done = 0
    while done < steps:
        done = done + 1
    return done


def never_called(value: int) -> int:
    return value + 1
'''
TESTS = """\
import room.code


def test_over() -> None:
    assert room.code.over(9)
    assert not room.code.over(1)


def test_counted() -> None:
    assert room.code.counted(2) == 2
"""
EDGE = """\
import room.code


def test_the_limit_itself_is_not_over() -> None:
    assert not room.code.over(3)
"""
RUN = """\
import json, sys, time
from functools import partial
from pathlib import Path
from mutants import trials, written
from mutants.faults import Module
from mutants.rooms import Room

room = Room(sources=("room/*.py",), tests=("tests/unit/test_*.py",))
repository, cache = map(Path, sys.argv[1:3])
faults = [written.Fault(**one) for one in json.loads(sys.argv[3])]
source = partial(written.mutants, faults=faults) if faults else Module.mutants
found = trials.Trials("room", room, repository=repository, cache=cache, faults=source)
mutants, every = found.drawn(seed=7, sample=100)
new = list(found.run(mutants, time.monotonic() + 100))
known = found.results()
told = {
    "new": len(new),
    "every": every,
    "outcomes": {
        f"{known[one.key].line} {known[one.key].difference[-1]}": known[one.key].outcome
        for one in mutants
    },
    "smaller": [one.key for one in found.drawn(7, 4)[0]] == [one.key for one in mutants[:4]],
}
print(json.dumps(told))
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A repository with one room and its tests."""
    root = tmp_path / "project"
    for name, text in {
        "room/__init__.py": "",
        "room/code.py": CODE,
        "tests/unit/test_code.py": TESTS,
        "pytest.ini": "[pytest]\naddopts = --import-mode=importlib\n",
        ".gitignore": "__pycache__/\n",
    }.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    subprocess.run(["git", "init", "-q", root], check=True)
    return root


def tried(project: Path, cache: Path, faults: Sequence[Mapping[str, str]] = ()) -> Any:
    """Try all mutants of the project's room in a process of its own, and return what it says.

    With `faults`, which somebody wrote, these are all.
    """
    # Forked processes import the project again, so none of this test's process may be in them.
    done = subprocess.run(
        [sys.executable, "-c", RUN, project, cache, json.dumps(faults)],
        env={"PYTHONPATH": str(HACK), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    *lines, told = done.stdout.splitlines()
    return json.loads(told) | {"lines": lines}


def changed(text: str) -> set[str]:
    """All mutants of a text, each as the lines that it has in place of others."""
    module = Module("m.py", text)
    return {
        " ".join(line[2:] for line in difference(text, module.mutated(mutant)) if line[0] == "+")
        for mutant in module.mutants()
    }


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("if ready:\n    start()\n", {"if not (ready):", "pass"}),
        ("raise ValueError\n", {"pass"}),
        ("ok = a < b\n", {"ok = a <= b", "ok = None"}),
        ("send('a')\n", {"send('XXaXX')", "send(None)", "pass"}),
        ("log.info('said', key=1)\n", set()),
        ("limit: int = 3\n", {"limit: int = 4", "limit: int = None"}),
        ("@cached(3)\ndef two() -> int:\n    return 2\n", {"return 3"}),
    ],
)
def test_each_fault_is_one_that_a_test_could_notice(text: str, expected: set[str]) -> None:
    assert changed(text) == expected


@pytest.mark.long(
    "tests/unit/hack/test_mutants.py"
    "::test_a_fault_that_somebody_wrote_is_tried_on_the_lines_that_it_changes"
)
def test_it_names_what_survives_goes_on_where_it_stopped_and_tries_again_after_a_new_test(
    project: Path, tmp_path: Path
) -> None:
    cache = tmp_path / "cache" / "mutants"
    first = tried(project, cache)
    assert first["new"] == first["every"] == len(first["outcomes"])
    assert first["smaller"]
    alive = {line: said for line, said in first["outcomes"].items() if said != "killed"}
    assert alive == {
        "3 + LIMIT = 4": "survived",
        "7 + return value >= LIMIT": "survived",
        "11 + done = 1": "survived",
        "13 + done = done - 1": "late",
        "13 + done = done + 2": "survived",
        "18 + return value - 1": "untested",
        "18 + return value + 2": "untested",
    }

    assert tried(project, cache)["new"] == 0

    (project / "tests/unit/test_edge.py").write_text(EDGE)
    second = tried(project, cache)
    assert second["new"] == 6  # the survivors; what was killed needs no second look
    assert second["outcomes"]["7 + return value >= LIMIT"] == "killed"
    assert (project / "room/code.py").read_text() == CODE


def test_a_fault_that_somebody_wrote_is_tried_on_the_lines_that_it_changes(
    project: Path, tmp_path: Path
) -> None:
    steps = "    done = 0\n    while done < steps:\n"
    faults = [
        {"old": "return value > LIMIT", "new": "return value >= LIMIT"},
        {"old": steps, "new": "    done = 1\n    while done <= steps + 1:\n"},
        {"old": "value + 1", "new": "value"},
    ]
    told = tried(
        project,
        tmp_path / "cache" / "mutants",
        [{"module": "room/code.py", "fault": "It counts wrongly."} | one for one in faults],
    )
    assert told["outcomes"] == {
        "7 + return value >= LIMIT": "survived",
        "11 + while done <= steps + 1:": "killed",
        "18 + return value": "untested",
    }


def test_a_copy_is_what_the_repository_is_even_after_a_run_was_killed(
    project: Path, tmp_path: Path
) -> None:
    tree = tmp_path / "tree"
    bring_up_to_date(project, tree)
    with faulty(tree / "room/code.py", "LIMIT = 4\n"):
        assert (tree / "room/code.py").read_text() == "LIMIT = 4\n"
    assert (tree / "room/code.py").read_text() == CODE

    (tree / "room/code.py").write_text("left by a run that was killed\n")
    (tree / "stray.py").touch()
    (project / "room/gone.py").touch()
    bring_up_to_date(project, tree)
    (project / "room/gone.py").unlink()
    bring_up_to_date(project, tree)
    assert (tree / "room/code.py").read_text() == CODE
    assert not (tree / "stray.py").exists()
    assert not (tree / "room/gone.py").exists()
