"""What a test must not leave behind in its own process: anything that a driver would leak."""

import gc
import os
import threading
import time
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

PROC = Path("/proc/self")
_DESCRIPTORS = "/proc/self/fd"
"""A text: with paths it would take three times as long, twice in each of thousands of tests."""

_PATIENCE = 10.0
"""Seconds for what ends by itself: threads that were told to stop, children that were killed."""

_ENDS_LATER = {("thread", "nvml")}
"""What waits for its next task and ends where none comes: dra_driver/devices/nvml/calls.py."""

Things = Mapping[str, Counter[str]]


def here(mounted_below: Path) -> Things:
    """What this process has: by kind, each thing and how often. An inotify is a descriptor."""
    return {
        "descriptor": Counter(_descriptors()),
        "thread": Counter(thread.name for thread in threading.enumerate()),
        "child process": Counter(_children()),
        "mount": Counter(
            line for line in _read(PROC / "mountinfo").splitlines() if f" {mounted_below}" in line
        ),
    }


def left(before: Things, mounted_below: Path) -> list[str]:
    """What is here now and was not before, once all had time to end; one line each."""
    end = time.monotonic() + _PATIENCE
    new = _new(before, here(mounted_below))
    if new:
        gc.collect()
    while new and time.monotonic() < end:
        time.sleep(0.02)
        new = _new(before, here(mounted_below))
    return new


def _new(before: Things, now: Things) -> list[str]:
    return [
        f"{kind} {thing}"
        for kind, things in now.items()
        for thing in (things - before[kind]).elements()
        if (kind, thing) not in _ENDS_LATER
    ]


def _descriptors() -> list[str]:
    found = []
    for number in os.listdir(_DESCRIPTORS):  # noqa: PTH208 (see there)
        with suppress(FileNotFoundError):  # the listing's own
            found.append(os.readlink(f"{_DESCRIPTORS}/{number}"))  # noqa: PTH115
    # matplotlib keeps the fonts that it has drawn with.
    return [path for path in found if not path.endswith(".ttf")]


def _children() -> list[str]:
    tasks = (PROC / "task").iterdir()
    return [child for task in tasks for child in _read(task / "children").split()]


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except FileNotFoundError:
        return ""  # a thread that has just ended
