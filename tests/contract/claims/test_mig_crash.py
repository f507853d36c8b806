"""Killed at any NVML call of making or destroying a MIG device, the driver converges."""

from pathlib import Path
from subprocess import PIPE, STDOUT

import pytest

from worlds import child

MODULE = "contract.claims.mig_crashes"


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("call", ["prepare", "unprepare"])
@pytest.mark.parametrize("then", ["then_prepare", "then_unprepare", "then_start", "then_another"])
def test_a_driver_killed_at_any_nvml_call_leaves_nothing_behind(
    tmp_path: Path, call: str, when: str, then: str
) -> None:
    words = (tmp_path / "node", call, when, then)
    with child.start(*words, module=MODULE, stdout=PIPE, stderr=STDOUT, text=True) as process:
        said, _ = process.communicate()
    assert process.returncode == 0, said[-8000:]
