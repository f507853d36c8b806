"""Folders of a case's own: none of a killed run stays, and none of anybody else's goes."""

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from dra_driver.bench.scratch import remove_leftovers, scratch


def test_folders_of_killed_runs_are_removed_and_running_ones_are_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    script = """\
import os, signal
from dra_driver.bench.scratch import scratch
with scratch() as folder:
    (folder / "pipe").mkdir()
    os.kill(os.getpid(), signal.SIGKILL)
"""
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    killed = subprocess.run([sys.executable, "-c", script], env=environment, check=False)
    assert killed.returncode == -signal.SIGKILL
    (left,) = tmp_path.iterdir()
    with scratch() as running:
        assert remove_leftovers() == [left]
        assert running.is_dir()
    assert list(tmp_path.iterdir()) == []


def test_a_folder_of_results_is_never_removed_whatever_its_name_and_age(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    results = tmp_path / "dra-bench-h100"
    results.mkdir()
    (results / "report.json").write_text("{}")
    os.utime(results, (0, 0))
    (tmp_path / "dra-bench-notes.txt").touch()
    (tmp_path / "dra-bench-link").symlink_to(results)
    assert remove_leftovers() == []
    assert (results / "report.json").exists()
