"""Faults that people wrote: mistakes of a tired developer, which no changed operator imitates.

In: semantic/<room>.yaml, each fault with a sentence that says what is wrong, and the text before
and after. A text must occur once in its module, so that the code around it may change.
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
    """A sentence, and the text of a module that it is about, without and with the fault."""

    module: str
    fault: str
    old: str
    new: str


def read(room: str) -> list[Fault]:
    """Return the faults of a room."""
    file = _FOLDER / f"{room.replace('/', '-')}.yaml"
    return [Fault(**entry) for entry in yaml.load(file.read_text(), Loader=yaml.CSafeLoader)]


def mutants(module: Module, faults: Iterable[Fault]) -> list[Mutant]:
    """Return the faults of a module. Raises CannotRunError if one does not fit."""
    return [_mutant(module, fault) for fault in faults if fault.module == module.name]


def _mutant(module: Module, fault: Fault) -> Mutant:
    if module.text.count(fault.old) != 1:
        said = f"for the fault {fault.fault!r}:\n{fault.old}"
        raise CannotRunError(f"not once in {module.name}, {said}")
    before, _, _ = module.text.partition(fault.old)
    line = before.count("\n") + 1
    key = sha256(f"{module.text}\0{fault.old}\0{fault.new}".encode()).hexdigest()[:20]
    return Mutant(
        key=f"{module.name}:{key}",
        lot=f"{module.name}\0{fault.fault}",
        module=module.name,
        line=line,
        last=line + fault.old.count("\n"),
        old=fault.old,
        new=fault.new,
        fault=fault.fault,
    )
