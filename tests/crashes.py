"""The matrix of deaths: where a process is killed, and what comes next."""

from collections.abc import Sequence
from typing import Any

import pytest


def deaths(
    beside: str, steps: Sequence[tuple[Any, ...]], nexts: Sequence[str], every: int = 1
) -> list[tuple[Any, ...]]:
    """Every step with everything that can come next: once each without, the others marked `long`.

    What comes next goes round, so that the deaths of one way of sharing meet all of it. With
    `every`, it is once for so many steps. `beside` is the test of these cases.
    """
    found: list[Any] = []
    for number, step in enumerate(steps):
        taken = number // every
        turn = (taken + taken // len(nexts)) % len(nexts)
        for index, after in enumerate(nexts):
            marks = () if (taken * every, turn) == (number, index) else (pytest.mark.long(beside),)
            found.append(pytest.param(*step, after, marks=marks))
    return found
