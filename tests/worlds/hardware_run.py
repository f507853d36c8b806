"""`make hardware` on a simulated machine: as its command, and as a process that dies at a point."""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from testbed.mounts import mounts_below

from dra_driver.devices.driver_root.programs import MPS_CONTROL, MPS_SERVER
from dra_driver.simulator.machine import Machine
from hardware import processes
from hardware.every_step import STEPS
from hardware.journal import Entry, Journal
from hardware.run import Run, Wishes, restore_leftovers
from hardware.steps import Change
from worlds.child import TESTS, die_at, start

REPOSITORY = TESTS.parent
MODULES = os.pathsep.join([str(REPOSITORY / "hack"), str(TESTS)])
COMMAND = (str(REPOSITORY / "hack" / "hardware"),)
EVERYTHING = ",".join(Change)


class Tried:
    """A machine that `make hardware` is run on, and what it was like before."""

    def __init__(self, machine: Machine, folder: Path, *options: object) -> None:
        self.machine = machine
        self.state, self.report = folder / "state", folder / "report"
        self.options = ("--nvidia-driver-root", machine.driver_root, *options)
        self.before = self.settings()
        self.dead: Entry | None = None

    def settings(self) -> list[object]:
        return (
            [
                (
                    one.compute_mode,
                    one.time_slice,
                    one.mig_mode,
                    one.mig_pending,
                    one.persistence_mode,
                )
                for one in self.machine.status()
            ]
            + [self.machine.power_limit(gpu.uuid) for gpu in self.machine.gpus]
            + [device.uuid for gpu in self.machine.gpus for device in self.devices(gpu.uuid)]
        )

    def devices(self, uuid: str) -> list[Any]:
        return list(self.machine.mig_devices(uuid))

    def start(self, *words: object, program: Sequence[str] = COMMAND) -> "subprocess.Popen[str]":
        command = [sys.executable, *program, *self.options]
        command += ["--state", self.state, "--report", self.report, *words]
        return subprocess.Popen(
            [str(word) for word in command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=os.environ | {"PYTHONPATH": MODULES},
        )

    def run(self, *words: object, status: int = 0, program: Sequence[str] = COMMAND) -> str:
        with self.start(*words, program=program) as process:
            said, _ = process.communicate(timeout=100)
        assert process.returncode == status, said
        return said

    def found(self) -> dict[str, Any]:
        """The report."""
        found: dict[str, Any] = json.loads((self.report / "hardware.json").read_text())
        return found

    def verdicts(self) -> dict[str, str]:
        return {step["name"]: step["verdict"] for step in self.found()["steps"]}

    def answers(self) -> dict[str, str]:
        return {
            question["id"]: question["answer"]
            for question in self.found()["questions"]
            if question["answer"]
        }

    def die(self, step: str, at: str, groups: Path | None = None) -> None:
        """Have a run of one step killed at a point of it."""
        words = (self.machine.driver_root, self.state, groups or "", step, at)
        env = os.environ | {"PYTHONPATH": MODULES}
        with start(*words, module="worlds.hardware_run", env=env, stdout=subprocess.PIPE) as child:
            said, _ = child.communicate(timeout=100)
        assert child.returncode == -9, f"it passed {at}: {said}"
        self.died()

    def died(self) -> None:
        """Note what there is of the run that was killed."""
        self.dead = Journal(self.state).read()

    def check_as_before(self) -> None:
        assert self.settings() == self.before
        assert not (self.state / "undo.json").exists()
        if self.dead is not None:
            assert not self.dead.folder.exists()
            assert mounts_below(self.dead.folder) == []
            assert processes.of_run(self.dead.run, self.dead.folder) == set()
            assert processes.groups(self.dead.run) == []

    def check_taken_back(self) -> None:
        said: list[str] = []
        assert restore_leftovers(Journal(self.state), said.append)
        assert said[-1] == "all is as it was"
        self.check_as_before()
        assert not restore_leftovers(Journal(self.state), said.append), "there is nothing left"


def put_mps3(machine: Machine) -> None:
    """Have NVIDIA's MPS programs of protocol 3 played by the tests' own."""
    for name in (MPS_CONTROL, MPS_SERVER):
        program = machine.driver_root / "usr/bin" / name
        program.unlink(missing_ok=True)
        program.write_text(f"#!{sys.executable} -SE\n{(TESTS / 'mps3.py').read_text()}")
        program.chmod(0o755)


def main(root: str, state: str, groups: str, step: str, at: str) -> None:
    wishes = Wishes(
        state=Path(state),
        root=Path(root),
        allow=frozenset(Change),
        groups=Path(groups) if groups else None,
    )
    (wanted,) = [one for one in STEPS if one.name == step]
    with Run(wishes=wishes, at=die_at(at)) as run:
        print(run.take(wanted).sentence())  # noqa: T201


if __name__ == "__main__":
    main(*sys.argv[1:])
