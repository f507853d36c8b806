"""Killed at any NVML call of making or destroying a MIG device, the driver converges."""

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("mig_crashes.py")


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("call", ["prepare", "unprepare"])
@pytest.mark.parametrize("then", ["then_prepare", "then_unprepare", "then_start", "then_another"])
def test_a_driver_killed_at_any_nvml_call_leaves_nothing_behind(
    tmp_path: Path, call: str, when: str, then: str
) -> None:
    command = [sys.executable, SCRIPT, tmp_path / "node", call, when, then]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
