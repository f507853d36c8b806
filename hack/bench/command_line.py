"""What the benchmarks' command lines share: lists of values, and what is said of the machine."""

import argparse
import os
import platform
from collections.abc import Callable, Iterable

from testbed.api import Object


def numbers_of(thing: str, *, most: int | None = None) -> Callable[[str], list[int]]:
    """Return a reader of numbers such as `1,8`: how many there are of a thing, at least one."""

    def numbers(text: str) -> list[int]:
        found = [int(word) for word in text.split(",")]
        if min(found) < 1:
            raise argparse.ArgumentTypeError(f"there has to be at least one {thing}")
        if most is not None and max(found) > most:
            raise argparse.ArgumentTypeError(f"there can be {most} at most, not {max(found)}")
        return found

    return numbers


def names_of(known: Iterable[str]) -> Callable[[str], list[str]]:
    """Return a reader of names such as `one,two`, of those that are known."""
    names = tuple(known)

    def chosen(text: str) -> list[str]:
        found = text.split(",")
        for name in found:
            if name not in names:
                raise argparse.ArgumentTypeError(f"{name!r}: there are {', '.join(names)}")
        return found

    return chosen


def machine() -> Object:
    """Return what a reader of the numbers should know of the machine."""
    return {
        "cpus": os.cpu_count(),
        "kernel": platform.release(),
        "python": platform.python_version(),
    }
