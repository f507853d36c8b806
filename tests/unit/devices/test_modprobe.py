"""nvidia-modprobe: run in the driver root, within a time, and not again and again."""

import os
import shutil
import subprocess
import time
from pathlib import Path

import pytest

from dra_driver.devices.driver_root import modprobe
from dra_driver.devices.driver_root.modprobe import NvidiaModprobe

# Stands for the program: nothing else is in the root, so neither a shell nor a C library.
PROGRAM = r"""
#include <stdio.h>
#include <unistd.h>
int main(int count, char **words) {
  FILE *calls = fopen("/calls", "a");
  for (int number = 1; number < count; number++) fprintf(calls, "%s ", words[number]);
  fclose(calls);
  if (access("/hang", F_OK) == 0) sleep(60);
  if (access("/refuse", F_OK) == 0) { puts("modprobe: FATAL"); puts("no such module"); return 1; }
  fclose(fopen("/dev/nvidia-uvm", "w"));
  return 0;
}
"""

needs_a_chroot = pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("cc") is None,
    reason="only root can chroot, and a compiler makes the program",
)


@pytest.fixture(scope="session")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("program")
    source, made = folder / "modprobe.c", folder / "nvidia-modprobe"
    source.write_text(PROGRAM)
    subprocess.run(["cc", "-static", "-o", made, source], check=True)
    return made


@pytest.fixture
def root(tmp_path: Path, program: Path) -> Path:
    for folder in ("usr/bin", "dev"):
        (tmp_path / folder).mkdir(parents=True)
    shutil.copy(program, tmp_path / "usr/bin/nvidia-modprobe")
    return tmp_path


@needs_a_chroot
def test_it_makes_the_nodes_in_the_driver_root(root: Path) -> None:
    assert NvidiaModprobe(root, time.monotonic).make_uvm_nodes() is None
    assert (root / "calls").read_text() == "-c 0 -u "
    assert (root / "dev/nvidia-uvm").exists()


@needs_a_chroot
def test_its_last_output_is_the_reason_and_it_pauses(root: Path) -> None:
    (root / "refuse").touch()
    now = [0.0]
    tool = NvidiaModprobe(root, lambda: now[0])

    assert tool.make_uvm_nodes() == "nvidia-modprobe failed with status 1: no such module"
    (root / "refuse").unlink()
    assert tool.make_uvm_nodes() == "nvidia-modprobe failed with status 1: no such module"
    now[0] = modprobe.PAUSE_SECONDS
    assert tool.make_uvm_nodes() is None
    assert (root / "calls").read_text() == "-c 0 -u " * 2


@needs_a_chroot
def test_a_hanging_program_is_given_up_on(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(modprobe, "LONGEST_SECONDS", 0.5)
    (root / "hang").touch()
    begun = time.monotonic()

    problem = NvidiaModprobe(root, time.monotonic).make_uvm_nodes()
    assert problem == "nvidia-modprobe did not end in 0.5 s"
    assert time.monotonic() - begun < 30


def test_a_root_without_it_says_where_it_was_looked_for(tmp_path: Path) -> None:
    problem = NvidiaModprobe(tmp_path, time.monotonic).make_uvm_nodes()

    assert problem is not None
    assert problem.startswith(f"nvidia-modprobe is not under {tmp_path} (looked in /usr/local/sbin")
