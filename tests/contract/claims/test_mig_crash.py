"""Killed at any NVML call of making or destroying a MIG device, the driver converges."""

import random
from itertools import product
from pathlib import Path
from subprocess import PIPE, STDOUT

import pytest

from crashes import deaths
from sampling import EVERYTHING
from worlds import child

MODULE = "contract.claims.mig_crashes"
EVERY = 7
"""So many-th calls are tried, others in each run; `make test LONG=1` tries all of them."""


@pytest.mark.parametrize(
    ("call", "when", "then"),
    deaths(
        "tests/contract/claims/test_mig_crash.py",
        [*product(("prepare", "unprepare"), ("before", "after"))],
        ("then_prepare", "then_unprepare", "then_start", "then_another"),
    ),
)
def test_a_driver_killed_at_any_nvml_call_leaves_nothing_behind(
    tmp_path: Path, call: str, when: str, then: str
) -> None:
    stride = 1 if EVERYTHING else EVERY
    first = random.randint(1, stride)  # noqa: S311 (chooses a sample)
    words = (tmp_path / "node", call, when, then, first, stride)
    with child.start(*words, module=MODULE, stdout=PIPE, stderr=STDOUT, text=True) as process:
        said, _ = process.communicate()
    assert process.returncode == 0, said[-8000:]
