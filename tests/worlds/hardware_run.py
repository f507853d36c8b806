"""`make hardware` on a simulated machine."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
from testbed.mounts import mounts_below

from dra_driver.devices.driver_root.programs import MPS_CONTROL, MPS_SERVER
from dra_driver.simulator.machine import Machine
from hardware.run import CHANGES, Before, groups, processes
from worlds.child import TESTS

EVERYTHING = ",".join(CHANGES)


class Tried:
    """A machine that `make hardware` is run on, and what it was like before."""

    def __init__(self, machine: Machine, folder: Path, **env: object) -> None:
        self.machine = machine
        self.report = folder / "report"
        self._file = folder / "state/dra-driver-hardware/before.json"
        self._env = {
            "NVIDIA_DRIVER_ROOT": str(machine.driver_root),
            "XDG_STATE_HOME": str(folder / "state"),
            "REPORT": str(self.report),
        } | {name: str(value) for name, value in env.items()}
        self.before = self.settings()
        self.dead: Before | None = None

    def settings(self) -> list[object]:
        gpus = self.machine.gpus
        return [
            *(
                (one.compute_mode, one.time_slice, one.mig_mode, one.mig_pending)
                for one in self.machine.status()
            ),
            *(self.machine.power_limit(gpu.uuid) for gpu in gpus),
            *(device.uuid for gpu in gpus for device in self.machine.mig_devices(gpu.uuid)),
        ]

    def start(self, which: str, *words: str, **env: str) -> "subprocess.Popen[str]":
        """Begin to try those tests whose names have a word."""
        command = [sys.executable, "-m", "pytest", "-m", "gpu", "-p", "no:randomly"]
        command += ["-p", "no:cacheprovider", "-k", which, *words, "tests/hardware"]
        return subprocess.Popen(
            command,
            cwd=TESTS.parent,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=os.environ | self._env | env,
        )

    def run(self, which: str, *words: str, status: int = 0, **env: str) -> str:
        with self.start(which, *words, **env) as process:
            said, _ = process.communicate(timeout=110)
        assert process.returncode == status, said
        return said

    def found(self) -> dict[str, Any]:
        """The report."""
        found: dict[str, Any] = json.loads((self.report / "hardware.json").read_text())
        return found

    def outcomes(self) -> dict[str, str]:
        return {one["name"].removeprefix("test_"): one["outcome"] for one in self.found()["tests"]}

    def answers(self) -> dict[str, str]:
        return {q: a for one in self.found()["tests"] for q, a in one["answers"].items()}

    def died(self) -> None:
        """Note what there is of the run that was killed."""
        self.dead = msgspec.json.decode(self._file.read_bytes(), type=Before)

    def check_as_before(self) -> None:
        assert self.settings() == self.before
        assert not self._file.exists()
        if self.dead is not None:
            assert not Path(self.dead.folder).exists()
            assert mounts_below(Path(self.dead.folder)) == []
            assert processes(self.dead) == set()
            assert groups(self.dead) == []


def put_mps3(machine: Machine) -> None:
    """Have NVIDIA's MPS programs of protocol 3 played by the tests' own."""
    for name in (MPS_CONTROL, MPS_SERVER):
        program = machine.driver_root / "usr/bin" / name
        program.unlink(missing_ok=True)
        program.write_text(f"#!{sys.executable} -SE\n{(TESTS / 'mps3.py').read_text()}")
        program.chmod(0o755)
