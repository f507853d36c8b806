"""`make hardware` killed in the midst of a step: its next run, or restore, puts everything back."""

from pathlib import Path

import pytest

from dra_driver.errors import DriverError
from dra_driver.simulator.driver_root import Options
from dra_driver.simulator.layout import Fact
from dra_driver.simulator.machine import Machine
from hardware.journal import Journal
from hardware.run import Run, Wishes, restore_leftovers
from worlds.groups import limited
from worlds.hardware_run import Tried, put_mps3

QUICK = [
    ("claim-mps", "prepared in claim-mps"),
    ("claim-mig", "prepared in claim-mig"),
    ("cgroup-path", "limited in cgroup-path"),
]
"""Those that leave most behind: processes, mounts, MIG devices, control groups."""


@pytest.fixture
def killed(tmp_path: Path, needs_root: None, real_userspace: None) -> "Killed":
    return Killed(tmp_path)


class Killed:
    """Machines whose settings are none of the defaults, and runs that die on them."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def at(self, step: str, at: str) -> Tried:
        groups: Path | None = None
        if step in {"memory-limit", "cgroup-path", "mps-groups"}:
            machine, made = limited(self._folder, "misc", driver="620.28.03")
            groups = made.root
            put_mps3(machine)
        else:
            machine = Machine.create(self._folder / "machine", "h100x8", Options(userspace="real"))
        first, second = (gpu.uuid for gpu in machine.gpus[:2])
        machine.set_fact(first, Fact.TIME_SLICE, 3)
        machine.set_fact(second, Fact.TIME_SLICE, 2)
        machine.set_fact(first, Fact.POWER_LIMIT, 500_000)
        tried = Tried(machine, self._folder)
        tried.die(step, at, groups)
        return tried


@pytest.mark.parametrize(("step", "at"), QUICK, ids=[step for step, _ in QUICK])
def test_a_run_that_was_killed_in_the_midst_of_a_step_is_taken_back(
    killed: Killed, step: str, at: str
) -> None:
    killed.at(step, at).check_taken_back()


def test_the_next_run_takes_a_killed_one_back_before_it_looks_at_the_card(killed: Killed) -> None:
    tried = killed.at("set-compute-mode", "set in set-compute-mode")
    assert tried.machine.compute_mode(tried.machine.gpus[0].uuid) == 3
    wishes = Wishes(state=tried.state, root=tried.machine.driver_root)
    said: list[str] = []
    with Run(wishes=wishes, say=said.append) as run:
        assert run.card.settings().compute_mode == 0
    assert "it may have changed: compute-mode" in said[0]
    tried.check_as_before()


def test_what_cannot_be_put_back_yet_stays_in_the_journal(killed: Killed) -> None:
    tried = killed.at("mig-device-names", "made, first time, in mig-device-names")
    machine = tried.machine
    (made,) = [device.uuid for device in tried.devices(machine.gpus[0].uuid)]
    machine.hold_instance(made)
    said: list[str] = []
    journal = Journal(tried.state)
    with pytest.raises(DriverError, match="processes still use it"):
        restore_leftovers(journal, said.append, patience=0.0)
    assert journal.file.exists()
    machine.release_instance(made)
    assert restore_leftovers(journal, said.append)
    assert said[-1] == "all is as it was"
    tried.check_as_before()


def test_a_mig_device_that_others_made_after_the_death_is_left(killed: Killed) -> None:
    tried = killed.at("mig-device-names", "made, first time, in mig-device-names")
    machine, said = tried.machine, []
    others = machine.create_mig(machine.gpus[0].uuid, "1g.10gb", 4)
    assert restore_leftovers(Journal(tried.state), said.append)
    assert [device.uuid for device in tried.devices(machine.gpus[0].uuid)] == [others]
    assert said[-2:] == [
        "not as before: MIG devices were none and are profile 19 at 4",
        "set these back by hand, unless others changed them",
    ]


def test_the_command_takes_a_killed_run_back(killed: Killed) -> None:
    tried = killed.at("set-time-slice", "set to 1 in set-time-slice")
    assert tried.machine.time_slice(tried.machine.gpus[0].uuid) == 1
    assert "all is as it was" in tried.run("--restore")
    tried.check_as_before()
    assert "nothing is to be taken back" in tried.run("--restore")
