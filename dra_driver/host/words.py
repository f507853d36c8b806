"""Numbers and lists as people write them. Pure."""

from collections.abc import Iterable


def count(number: int, noun: str) -> str:
    """Return how many there are of something."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def cut(text: str, most: int) -> str:
    """Return as much of a text as fits into `most` bytes of UTF-8."""
    return text.encode(errors="replace")[:most].decode(errors="ignore")


def named(things: Iterable[object], most: int = 5) -> str:
    """Return things in words, the first few by name."""
    every = [str(thing) for thing in things]
    more = len(every) - most
    text = ", ".join(every[:most])
    return f"{text} and {more} more" if more > 0 else text
