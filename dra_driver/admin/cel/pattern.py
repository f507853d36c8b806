"""Regular expressions as RE2 has them, matched in time linear in the text.

Rule: all states that a pattern can be in advance with each character, so no pattern that a tenant
writes takes for ever, as one of Python's could. Known are characters, classes, groups,
alternatives, repeats and anchors; anything else is said to be unknown. Pure.
"""

from collections.abc import Callable, Iterator
from dataclasses import field
from functools import lru_cache

from dra_driver.admin.cel.values import EvaluationError, NotUnderstoodError
from dra_driver.dataclass import dataclass

_MOST_REPEATS = 1000
_MOST_STATES = 5_000

Accepts = Callable[[str], bool]

_WORDS = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_")
_SETS: dict[str, frozenset[str]] = {
    "d": frozenset("0123456789"),
    "w": _WORDS,
    "s": frozenset("\t\n\f\r "),
}
_ESCAPED = {"n": "\n", "t": "\t", "r": "\r", "f": "\f", "v": "\v", "a": "\a"}


@dataclass(slots=True)
class _State:
    """A place in a pattern: what it takes to leave it, and where that leads.

    Attributes:
        accepts: which characters lead to `ways`; None for those that lead there without one.
        at: the anchor that must hold, if it is one.
    """

    accepts: Accepts | None = None
    at: str = ""
    ways: list["_State"] = field(default_factory=list)


@dataclass(slots=True)
class _Part:
    """A piece of a pattern, from its first state to its last, which leads nowhere yet."""

    first: _State
    last: _State


def found(pattern: str, text: str) -> bool:
    """Tell whether a pattern is found anywhere in a text.

    Raises NotUnderstoodError if the pattern has what is not known here, EvaluationError if it is
    no pattern.
    """
    part = _compiled(pattern)
    states: list[_State] = []
    for place in range(len(text) + 1):
        reached = _closure([*states, part.first], text, place)
        if part.last in reached:
            return True
        if place == len(text):
            break
        states = [
            way
            for state in reached
            if state.accepts is not None and state.accepts(text[place])
            for way in state.ways
        ]
    return False


def _closure(states: list[_State], text: str, place: int) -> "_Reached":
    reached, rest = _Reached(), states
    while rest:
        state = rest.pop()
        if state in reached or not _holds(state.at, text, place):
            continue
        reached.add(state)
        if state.accepts is None:
            rest.extend(state.ways)
    return reached


class _Reached:
    """A set of states, by identity."""

    def __init__(self) -> None:
        self._by_id: dict[int, _State] = {}

    def add(self, state: _State) -> None:
        self._by_id[id(state)] = state

    def __contains__(self, state: object) -> bool:
        return id(state) in self._by_id

    def __iter__(self) -> Iterator[_State]:
        return iter(self._by_id.values())


def _holds(anchor: str, text: str, place: int) -> bool:
    match anchor:
        case "":
            return True
        case "^":
            return place == 0
        case "$":
            return place == len(text)
        case _:
            before = place > 0 and text[place - 1] in _WORDS
            after = place < len(text) and text[place] in _WORDS
            return (before != after) == (anchor == "b")


@lru_cache(maxsize=256)
def _compiled(pattern: str) -> _Part:
    parser = _Parser(pattern)
    part = parser.alternatives()
    if parser.rest:
        raise EvaluationError(f"error parsing regexp: unexpected ) in {pattern!r}")
    return part


class _Parser:
    def __init__(self, pattern: str) -> None:
        self._pattern = pattern
        self._at = 0
        self._states = 0

    @property
    def rest(self) -> str:
        return self._pattern[self._at :]

    def alternatives(self) -> _Part:
        parts = [self._sequence()]
        while self._take("|"):
            parts.append(self._sequence())
        if len(parts) == 1:
            return parts[0]
        first, last = self._state(), self._state()
        for part in parts:
            first.ways.append(part.first)
            part.last.ways.append(last)
        return _Part(first, last)

    def _sequence(self) -> _Part:
        first = last = self._state()
        while self.rest and self.rest[0] not in "|)":
            part = self._repeated()
            last.ways.append(part.first)
            last = part.last
        return _Part(first, last)

    def _repeated(self) -> _Part:
        start = self._at
        part = self._atom()
        least, most = self._bounds()
        if (least, most) == (1, 1):
            return part
        end = self._at
        first = last = self._state()
        for number in range(most if most is not None else max(least, 1)):
            copy = self._again(start)
            last.ways.append(copy.first)
            if number >= least:
                last.ways.append(copy.last)
            last = copy.last
            if most is None and number >= least - 1:
                copy.last.ways.append(copy.first)
        self._at = end
        return _Part(first, last)

    def _again(self, start: int) -> _Part:
        """Return the atom that begins at `start` once more, between two states of its own."""
        self._at = start
        part = self._atom()
        first, last = self._state(), self._state()
        first.ways.append(part.first)
        part.last.ways.append(last)
        return _Part(first, last)

    def _bounds(self) -> tuple[int, int | None]:
        for sign, bounds in (("*", (0, None)), ("+", (1, None)), ("?", (0, 1))):
            if self._take(sign):
                self._take("?")  # whether as little as possible is taken changes no answer
                self._no_second()
                return bounds
        if not self.rest.startswith("{"):
            return 1, 1
        body, closed, _ = self.rest[1:].partition("}")
        least, comma, most = body.partition(",")
        if not closed or not least.isdecimal() or (most and not most.isdecimal()):
            raise NotUnderstoodError(f"the brace in the regular expression {self._pattern!r}")
        self._at += len(body) + 2
        self._take("?")
        self._no_second()
        limit = int(most) if most else None
        exact = limit if comma else int(least)
        if max(int(least), exact or 0) > _MOST_REPEATS:
            raise EvaluationError("error parsing regexp: invalid repeat count")
        return int(least), exact

    def _no_second(self) -> None:
        if self.rest[:1] in ("*", "+", "?"):
            raise EvaluationError("error parsing regexp: invalid nested repetition operator")

    def _atom(self) -> _Part:
        char = self._next()
        match char:
            case "(":
                return self._group()
            case "[":
                return self._accepting(self._class())
            case ".":
                return self._accepting(lambda one: one != "\n")
            case "^" | "$":
                return self._anchor(char)
            case "\\":
                return self._escape()
            case "*" | "+" | "?":
                raise EvaluationError("error parsing regexp: missing argument to repetition")
            case _:
                return self._accepting(_literal(char))

    def _group(self) -> _Part:
        if self._take("?"):
            if self._take("P<") or self._take("<"):
                self._at += self.rest.find(">") + 1
            elif not self._take(":"):
                raise NotUnderstoodError(f"flags in the regular expression {self._pattern!r}")
        part = self.alternatives()
        if not self._take(")"):
            raise EvaluationError("error parsing regexp: missing closing )")
        return part

    def _class(self) -> Accepts:
        negated = self._take("^")
        ranges: list[Accepts] = []
        begun = False
        while not (begun and self._take("]")):
            begun = True
            if self.rest.startswith("[:"):
                raise NotUnderstoodError("named classes of characters in a regular expression")
            low = self._next()
            if low == "\\":
                low = self._next()
                if low.lower() in _SETS:
                    ranges.append(_set_of(low))
                    continue
                low = self._escaped(low)
            high = low
            if self.rest[:1] == "-" and self.rest[1:2] not in ("]", ""):
                self._at += 1
                high = self._next()
                if high == "\\":
                    high = self._escaped(self._next())
            ranges.append(_range(low, high))
        return lambda one: any(accepts(one) for accepts in ranges) != negated

    def _escape(self) -> _Part:
        char = self._next()
        if char.lower() in _SETS:
            return self._accepting(_set_of(char))
        if char in ("b", "B"):
            return self._anchor(char)
        if char in ("A", "z"):
            return self._anchor("^" if char == "A" else "$")
        return self._accepting(_literal(self._escaped(char)))

    def _escaped(self, char: str) -> str:
        if char in _ESCAPED:
            return _ESCAPED[char]
        if char.isalnum():
            raise NotUnderstoodError(f"\\{char} in a regular expression")
        return char

    def _accepting(self, accepts: Accepts) -> _Part:
        first, last = self._state(), self._state()
        first.accepts = accepts
        first.ways.append(last)
        return _Part(first, last)

    def _anchor(self, anchor: str) -> _Part:
        state = self._state()
        state.at = anchor
        return _Part(state, state)

    def _state(self) -> _State:
        self._states += 1
        if self._states > _MOST_STATES:
            raise NotUnderstoodError("a regular expression of that size")
        return _State()

    def _next(self) -> str:
        if not self.rest:
            raise EvaluationError(f"error parsing regexp: {self._pattern!r} ends too early")
        self._at += 1
        return self._pattern[self._at - 1]

    def _take(self, text: str) -> bool:
        if not self.rest.startswith(text):
            return False
        self._at += len(text)
        return True


def _set_of(letter: str) -> Accepts:
    chars = _SETS[letter.lower()]
    return (lambda one: one not in chars) if letter.isupper() else chars.__contains__


def _literal(char: str) -> Accepts:
    return lambda one: one == char


def _range(low: str, high: str) -> Accepts:
    return lambda one: low <= one <= high
