"""Faults that people wrote: what a tired developer gets wrong, which no swapped operator does.

In: semantic/<room>.yaml, each fault with the sentence that says what is wrong, and the text before
and after. A text is found where it stands once in its module, so that code around it may change.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

import yaml

from mutants.faults import Module, Mutant
from mutants.observed import CannotRunError

_FOLDER = Path(__file__).parent / "semantic"


@dataclass(frozen=True, slots=True)
class Fault:
    """A sentence, and the text of a module that it is about: as it is, and with the fault."""

    module: str
    fault: str
    old: str
    new: str


def read(room: str) -> list[Fault]:
    """Return the faults of a room."""
    file = _FOLDER / f"{room.replace('/', '-')}.yaml"
    return [Fault(**one) for one in yaml.safe_load(file.read_text())]


def mutants(module: Module, faults: Iterable[Fault]) -> list[Mutant]:
    """Return those of the faults that are of a module; CannotRunError where one does not fit."""
    return [_mutant(module, one) for one in faults if one.module == module.name]


def _mutant(module: Module, one: Fault) -> Mutant:
    if module.text.count(one.old) != 1:
        raise CannotRunError(f"not once in {module.name}, for the fault {one.fault!r}:\n{one.old}")
    before, _, _ = module.text.partition(one.old)
    line = before.count("\n") + 1
    key = sha256(f"{module.text}\0{one.old}\0{one.new}".encode()).hexdigest()[:20]
    return Mutant(
        key=f"{module.name}:{key}",
        lot=f"{module.name}\0{one.fault}",
        module=module.name,
        line=line,
        last=line + one.old.count("\n"),
        old=one.old,
        new=one.new,
        fault=one.fault,
    )
