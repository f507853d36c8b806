"""Makes untrusted text safe to show in a terminal, a log or an event.

Names, manifests and messages may hold escape sequences, which clear a screen or write to the
clipboard, and characters that reverse the direction of text. An error quotes what was written, but
only a little of it and on one line: it ends up in a pod's events.
"""

import json
from collections.abc import Iterable, Mapping, Sequence

SHOWN = 80
"""How many characters of a refused value an error quotes."""

_LISTED = 5
"""How many things of a kind an error lists."""


def printable(text: str, *, keep: str = "") -> str:
    r"""Return a text with its unprintable characters escaped as in JSON: `\u001b`.

    What prints is what Unicode calls so, and the blank; `keep` has others that stay, such as line
    breaks. Invisible characters and marks of direction do not print.
    """
    if text.isprintable():
        return text
    return "".join(
        char if char.isprintable() or char in keep else json.dumps(char)[1:-1] for char in text
    )


def either(names: Iterable[str]) -> str:
    """Return the names as a choice in a sentence: `a, b or c`."""
    *others, last = names
    return f"{', '.join(others)} or {last}" if others else last


def listed(texts: Sequence[str]) -> str:
    """Return the first few texts as one, with the number of the others."""
    more = len(texts) - _LISTED
    return "; ".join([*texts[:_LISTED], f"and {more} more"] if more > 0 else texts)


def shown(value: object) -> str:
    """Return a value as an error quotes it: short, on one line."""
    match value:
        case None:
            return "null"
        case bool():
            return "true" if value else "false"
        case str():
            return f'"{plain(value)}"'
        case Mapping():
            return "an object"
        case list():
            return "a list"
        case _:
            return plain(str(value))


def plain(text: str) -> str:
    """Return a text as an error shows it without quotes: short, on one line."""
    text = printable(text)
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}…"
