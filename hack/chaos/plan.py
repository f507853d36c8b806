"""The events of a campaign, which depend only on its seed.

A round is a short time line: workloads come and go while one to three troubles begin and end. At
any time all workloads need at most BUDGET of the node's GPUs, so that all of them must run after
everything was mended.
"""

import itertools
import random
from collections.abc import Iterator
from dataclasses import dataclass

from chaos.troubles import LONGEST, TROUBLES, Trouble
from chaos.workloads import DIVISIONS, KINDS, kind_of

GPUS = 8
BUDGET = 7
"""GPUs for all workloads at one time; one is left for workloads that are still being ended."""

_DIVIDED_AGAIN = 0.4
"""The probability that a round changes the division of GPUs into shares."""

_MAKE_UNTIL = 6.0
"""Seconds into a round until which workloads come and go and troubles begin."""


@dataclass(frozen=True, slots=True, order=True)
class Event:
    """An event, `at` seconds after the beginning of its round."""

    at: float
    verb: str
    """make, delete, begin, end, or divide: put another share config in its place."""

    what: str
    """A workload's, a trouble's or a share config's name."""

    detail: str = ""
    """The target of the trouble: a GPU by its slot, an NVML function; see chaos.troubles."""

    def __str__(self) -> str:
        return f"{self.at:5.1f} s  {self.verb:<6} {self.what} {self.detail}".rstrip()


@dataclass(frozen=True, slots=True)
class Round:
    """The events of a round, in order, and the workloads that exist after it."""

    number: int
    events: tuple[Event, ...]
    workloads: tuple[str, ...]


def rounds(seed: int) -> Iterator[Round]:
    """Yield the rounds of a campaign, without end.

    Every trouble comes once before any comes again, in an order that depends on the seed; now and
    then a round ends with nothing left, so that the node without pods is checked, too.
    """
    chance = random.Random(seed)  # noqa: S311  # events, not secrets
    numbers = itertools.count(1)
    waiting: list[Trouble] = []
    there: list[str] = []
    division = DIVISIONS[0]
    for number in itertools.count(1):
        ends_empty = number % 5 == 0
        gone = [name for name in there if ends_empty or chance.random() < 0.5]
        there = [name for name in there if name not in gone]
        new = [] if ends_empty else _workloads(chance, there, numbers)
        there += new
        events = [Event(_moment(chance), "make", name) for name in new]
        events += [Event(_moment(chance), "delete", name) for name in gone]
        for trouble in _together(chance, waiting):
            events += _trouble(chance, trouble)
        if chance.random() < _DIVIDED_AGAIN:
            division = chance.choice([each for each in DIVISIONS if each != division])
            events.append(Event(_moment(chance), "divide", division))
        yield Round(number, tuple(sorted(events)), tuple(there))


def _workloads(chance: random.Random, there: list[str], numbers: Iterator[int]) -> list[str]:
    """Choose new workloads, at most as many as there is room for."""
    room = BUDGET - sum(kind_of(each).gpus for each in there)
    room -= chance.randint(0, 1)
    new: list[str] = []
    while True:
        fitting = [name for name, kind in KINDS.items() if kind.gpus <= room]
        if not fitting:
            return new
        name = chance.choice(fitting)
        new.append(f"{name}-{next(numbers)}")
        room -= KINDS[name].gpus


def _together(chance: random.Random, waiting: list[Trouble]) -> list[Trouble]:
    """Take the next one to three troubles that can happen together from those that wait."""
    if not waiting:
        waiting += chance.sample(TROUBLES, len(TROUBLES))
    taken = [waiting.pop(0)]
    for _ in range(0 if taken[0].alone else chance.randint(0, 2)):
        struck = {each.strikes for each in taken}
        fitting = (each for each in waiting if not each.alone and each.strikes not in struck)
        trouble = next(fitting, None)
        if trouble is not None:
            waiting.remove(trouble)
            taken.append(trouble)
    return taken


def _trouble(chance: random.Random, trouble: Trouble) -> list[Event]:
    begin, detail = _moment(chance), trouble.choose(chance, GPUS)
    events = [Event(begin, "begin", trouble.name, detail)]
    if trouble.lasts:
        end = round(begin + chance.uniform(0.5, LONGEST), 1)
        events.append(Event(end, "end", trouble.name, detail))
    return events


def _moment(chance: random.Random) -> float:
    return round(chance.uniform(0, _MAKE_UNTIL), 1)
