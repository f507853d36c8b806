"""The matrix of deaths: where a process is killed, and what comes next."""

from collections.abc import Sequence
from typing import Any

import pytest


def deaths(
    beside: str, steps: Sequence[tuple[Any, ...]], nexts: Sequence[str]
) -> list[tuple[Any, ...]]:
    """Every step with everything that can come next: once each without, the others marked `long`.

    What comes next goes round, so that the deaths of one way of sharing meet all of it. `beside` is
    the test of these cases.
    """
    found: list[Any] = []
    for number, step in enumerate(steps):
        turn = (number + number // len(nexts)) % len(nexts)
        for index, after in enumerate(nexts):
            marks = () if index == turn else (pytest.mark.long(beside),)
            found.append(pytest.param(*step, after, marks=marks))
    return found
