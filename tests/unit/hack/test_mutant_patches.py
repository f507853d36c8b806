"""hack/mutants gives living functions their faulty code, or says that this cannot do."""

import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from mutants.patches import live, patches

CODE = """\
import functools
from contextlib import contextmanager
from dataclasses import dataclass, field

LIMIT = 3


def shown(function):
    @functools.wraps(function)
    def wrapped():
        return f"<{function()}>"

    return wrapped


@functools.cache
def plain():
    return "plain"


@shown
def decorated():
    return "decorated"


@contextmanager
def managed():
    yield "managed"


def closing():
    word = "closing"

    def inner():
        return [word for _ in range(1)]

    return inner


@dataclass(frozen=True, slots=True)
class Thing:
    kinds: list = field(default_factory=lambda: ["kind"])

    @property
    def own(self):
        return "own"

    @functools.cached_property
    def cached(self):
        return "cached"

    @classmethod
    def made(cls, word="default"):
        return "made"

    @staticmethod
    def loose():
        return "loose"

    def __str__(self):
        return super().__repr__() and "text"
"""


@pytest.fixture
def room(tmp_path: Path) -> Iterator[ModuleType]:
    """A module that was imported."""
    file = tmp_path / "patched_room.py"
    file.write_text(CODE.replace("frozen=True, slots=True", "frozen=False"))
    module = ModuleType("patched_room")
    module.__file__ = str(file)
    sys.modules["patched_room"] = module  # dataclasses look there
    exec(compile(file.read_text(), file, "exec"), module.__dict__)  # noqa: S102  # this file's
    yield module
    del sys.modules["patched_room"]


def changed(room: ModuleType, old: str, new: str) -> Any:
    """What to change for a fault in the module."""
    file = str(room.__file__)
    text = Path(file).read_text()
    assert text.count(old) >= 1
    return patches(file, (text, text.replace(old, new)), live([file]))


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("plain", lambda room: room.plain()),
        ("decorated", lambda room: room.decorated().strip("<>")),
        ("managed", lambda room: room.managed().__enter__()),
        ("closing", lambda room: room.closing()()[0]),
        ("kind", lambda room: room.Thing().kinds[0]),
        ("own", lambda room: room.Thing().own),
        ("cached", lambda room: room.Thing().cached),
        ("made", lambda room: room.Thing.made()),
        ("loose", lambda room: room.Thing.loose()),
        ("text", lambda room: str(room.Thing())),
    ],
)
def test_whoever_holds_a_function_it_gets_the_faulty_code(
    room: ModuleType, word: str, said: Any
) -> None:
    assert said(room) == word
    room.plain.cache_clear()
    for function, code in changed(room, f'"{word}"', '"XX"'):
        function.__code__ = code
    assert said(room) == "XX"


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("LIMIT = 3", "LIMIT = 4"),
        ("LIMIT = 3", "LIMIT = True"),
        ("frozen=False", "frozen=True"),
        ('word="default"', 'word="XX"'),
        ("kinds: list", "other: list"),
        ("@functools.cached_property", "@property"),
        ("def closing", "def opening"),
        ("LIMIT = 3", "LIMIT  =  3"),
    ],
)
def test_what_runs_at_import_cannot_be_changed_afterwards(
    room: ModuleType, old: str, new: str
) -> None:
    assert changed(room, old, new) is None
