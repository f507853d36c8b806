"""Common parts of the benchmarks' command lines: options, lists of values, machine facts."""

import argparse
import os
import platform
import signal
import sys
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

from testbed.api import Object
from testbed.commands import TestbedError

from dra_driver.errors import DriverError


def run(bench: Callable[[], object], *, root: str = "") -> int:
    """Run a benchmark; return the exit status. `root`: why it needs root, if it does."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # with its clean-up
    if root and os.geteuid() != 0:
        sys.stderr.write(f"error: {root}\n")
        return 1
    try:
        bench()
    except (TestbedError, DriverError) as error:
        sys.stderr.write(f"error: {error}\n")
        return 1
    return 0


def say_as(name: str) -> Callable[[str], None]:
    """Return a function that prints a benchmark's progress on standard error."""
    return partial(print, f"{name}:", file=sys.stderr, flush=True)


def add_cluster_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of every benchmark that has its own cluster."""
    parser.add_argument("--kubernetes", default="", help="its version, such as 1.36")
    parser.add_argument("--output", type=Path, help="file for all that was measured, as JSON")


def numbers_of(thing: str, *, most: int | None = None) -> Callable[[str], list[int]]:
    """Return a parser of counts such as `1,8`, each at least one."""

    def numbers(text: str) -> list[int]:
        chosen = [int(word) for word in text.split(",")]
        if min(chosen) < 1:
            raise argparse.ArgumentTypeError(f"give at least one {thing}")
        if most is not None and max(chosen) > most:
            raise argparse.ArgumentTypeError(f"there can be {most} at most, not {max(chosen)}")
        return chosen

    return numbers


def names_of(known: Iterable[str]) -> Callable[[str], list[str]]:
    """Return a parser of names such as `one,two`, which must be known."""
    names = tuple(known)

    def chosen(text: str) -> list[str]:
        words = text.split(",")
        for name in words:
            if name not in names:
                raise argparse.ArgumentTypeError(f"{name!r}: there are {', '.join(names)}")
        return words

    return chosen


def machine() -> Object:
    """Return what readers of the numbers should know about the machine."""
    return {
        "cpus": os.cpu_count(),
        "kernel": platform.release(),
        "python": platform.python_version(),
    }
