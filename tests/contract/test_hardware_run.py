"""`make hardware` on simulated cards: what it answers, what it leaves, and when it refuses.

Tests in containers need runc, and are tried by tests/e2e/test_hardware_run.py.
"""

import shutil
import signal
import time
from pathlib import Path

import pytest

import libcuda
from dra_driver.simulator.driver_root import Options
from dra_driver.simulator.layout import Fact
from dra_driver.simulator.machine import Machine
from worlds.groups import limited
from worlds.hardware_run import EVERYTHING, Tried, put_mps3

PAGE = (Path(__file__).parents[2] / "docs/hardware.md").read_text()


@pytest.fixture
def machine(tmp_path: Path, real_userspace: None) -> Machine:
    """A machine with NVIDIA's own programs, and another power limit than by default."""
    machine = Machine.create(tmp_path / "machine", "h100x8", Options(userspace="real"))
    machine.set_fact(machine.gpus[0].uuid, Fact.POWER_LIMIT, 500_000)
    return machine


def test_all_that_can_be_answered_without_a_card_is_and_the_machine_is_as_before(
    machine: Machine, tmp_path: Path, needs_root: None
) -> None:
    tried = Tried(machine, tmp_path, ALLOW=EVERYTHING)
    said = tried.run("not container")
    tried.check_as_before()
    assert (tried.found()["answered_by"], tried.found()["as_before"]) == ("simulator", True)
    outcomes = tried.outcomes()
    assert {name for name, outcome in outcomes.items() if outcome == "skipped"} == {
        *("computes", "mps_percentages", "mps_exclusive", "memory_limit", "cgroup_path"),
        *("mps_groups", "mps_namespace_later", "mps_partition", "mps_root"),
    }
    assert len(tried.answers()) == 5
    for question, answer in tried.answers().items():
        assert f"| {question} | {answer} |" in PAGE
        assert answer in said
    written = (tried.report / "hardware.json").read_text()
    assert not [gpu for gpu in machine.gpus if gpu.uuid in written]


def test_by_default_it_changes_nothing_and_says_what_it_leaves_out(
    machine: Machine, tmp_path: Path
) -> None:
    tried = Tried(machine, tmp_path)
    for call in ("nvmlDeviceSetComputeMode", "nvmlDeviceSetMigMode", "nvidia-smi:set-timeslice"):
        machine.kill_at(call)
    which = "inventory or claim_gpu or set_time_slice or claim_mig"
    said = tried.run(which)
    assert "it will change no setting" in said
    assert "it needs ALLOW=mig-mode" in said
    tried.check_as_before()
    assert [*tried.outcomes().values()] == ["passed"] * 2 + ["skipped"] * 2
    planned = tried.run(which, "--collect-only", ALLOW="time-slice")
    assert "time-slice: the card's time-slice (test_set_time_slice)" in planned
    assert len(machine.faults()) == 3, "nothing was set"


def test_a_card_that_others_use_is_left_alone_unless_that_is_allowed(
    machine: Machine, tmp_path: Path
) -> None:
    pid = machine.hold_instance(machine.gpus[0].uuid)
    tried = Tried(machine, tmp_path, ALLOW="compute-mode")
    said = tried.run("set_compute_mode", status=1)
    assert f"others use the card (processes {pid}); end them, or say IN_USE=1" in said
    tried.check_as_before()
    assert not tried.report.exists()
    tried.run("set_compute_mode", IN_USE="1")
    tried.check_as_before()


def test_an_impossible_setting_fails_the_test_and_the_run(machine: Machine, tmp_path: Path) -> None:
    machine.fail_call("nvmlDeviceSetComputeMode", 4)
    tried = Tried(machine, tmp_path, ALLOW="compute-mode")
    tried.run("set_compute_mode or read_time_slice", status=1)
    assert tried.outcomes() == {"read_time_slice": "passed", "set_compute_mode": "failed"}
    tried.check_as_before()


def test_a_mig_mode_that_waits_for_a_reset_is_not_touched(
    tmp_path: Path, real_userspace: None
) -> None:
    profile = "a100x8"
    machine = Machine.create(tmp_path / "machine", profile, Options(userspace="real"))
    machine.set_mig_mode(machine.gpus[0].uuid, enabled=True)
    tried = Tried(machine, tmp_path, ALLOW="mig-mode")
    said = tried.run("mig_mode_while_open", status=1)
    assert "a change of the card's MIG mode waits for a reset" in said
    tried.check_as_before()
    assert machine.status()[0].mig_pending == 1


def test_from_r615_on_a_control_group_is_limited(tmp_path: Path, needs_root: None) -> None:
    machine, groups = limited(tmp_path, "misc")
    tried = Tried(machine, tmp_path, ALLOW="memory-limit", CGROUP_ROOT=groups.root)
    tried.run("memory_limit or cgroup_path")
    tried.check_as_before()
    assert ["the limit in force is 2048 MiB"] in [one["notes"] for one in tried.found()["tests"]]
    ((question, answer),) = tried.answers().items()
    assert f"| {question} | {answer} |" in PAGE
    assert not list(groups.root.glob("dra-hardware-*"))


def compute(machine: Machine, folder: Path) -> None:
    """Have programs compute on a machine's GPUs."""
    ours = libcuda.build(folder) / "libcuda.so.1"
    for stand_in in machine.driver_root.rglob("libcuda.so.*"):
        if not stand_in.is_symlink():
            stand_in.unlink()  # a link to a file that other machines have, too
            shutil.copy(ours, stand_in)


def test_computing_programs_answer_the_rest(
    tmp_path: Path, needs_root: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine, groups = limited(tmp_path, "misc", driver="620.28.03")
    compute(machine, tmp_path)
    put_mps3(machine)
    monkeypatch.setenv("TEST_CUDA_MEMORY_MIB", "3000")
    for folder in (tmp_path, *tmp_path.parents[:2]):
        folder.chmod(0o711)
    tried = Tried(machine, tmp_path, ALLOW="memory-limit,mps", CGROUP_ROOT=groups.root)
    tried.run("test_computes or namespaces")
    tried.check_as_before()
    assert set(tried.outcomes().values()) == {"passed"}
    *answers, by_root = tried.answers().values()
    assert answers == [
        "Yes: with cgroup_depth = 1 a client in a group below has the limits, too.",
        "Yes, also by a daemon with a control group namespace of its own.",
        "Yes, and it can be deleted when its clients are gone.",
        "No: a client that names another has 16 SMs and not 8.",
    ]
    assert by_root.startswith("It can raise its own limit; a user who is not root ")
    assert not list(groups.root.glob("dra-hardware-*"))


# A run that does not come to its end


def killed(tried: Tried, which: str, *, at: int) -> None:
    """Kill a run while the first card's compute mode is as it should not stay."""
    uuid, end = tried.machine.gpus[0].uuid, time.monotonic() + 60
    with tried.start(which) as process:
        while tried.machine.compute_mode(uuid) != at:
            assert process.poll() is None, process.communicate()[0]
            assert time.monotonic() < end
            time.sleep(0.01)
        process.kill()
        process.communicate()
    tried.died()


def test_a_run_that_was_killed_is_taken_back_with_its_daemons(
    machine: Machine, tmp_path: Path, needs_root: None
) -> None:
    machine.set_fact(machine.gpus[0].uuid, Fact.TIME_SLICE, 3)
    tried = Tried(machine, tmp_path, ALLOW="mps,compute-mode,time-slice")
    killed(tried, "test_claim_mps", at=3)
    assert "all is as it was" in tried.run("none", RESTORE="1")
    tried.check_as_before()
    assert "nothing is to be taken back" in tried.run("none", RESTORE="1")


def test_the_next_run_takes_a_killed_one_back_with_its_mig_device_and_leaves_those_of_others(
    machine: Machine, tmp_path: Path
) -> None:
    first = machine.gpus[0].uuid
    tried = Tried(machine, tmp_path, ALLOW="mig-mode")
    machine.kill_at("nvmlGpuInstanceCreateComputeInstance", after=True)
    tried.run("mig_device_names", status=-signal.SIGKILL)
    tried.died()
    assert len(machine.mig_devices(first)) == 1
    machine.clear_faults()
    tried.run("inventory")
    tried.check_as_before()
    machine.kill_at("nvmlGpuInstanceCreateComputeInstance", after=True)
    tried.run("mig_device_names", status=-signal.SIGKILL)
    machine.clear_faults()
    others = machine.create_mig(first, "1g.10gb", 4)
    said = tried.run("none", RESTORE="1")
    assert "MIG devices were none and are profile 19 at 4; set these back by hand" in said, said
    assert [device.uuid for device in machine.mig_devices(first)] == [others]


def test_an_interrupted_run_puts_back_what_it_has_changed(machine: Machine, tmp_path: Path) -> None:
    tried = Tried(machine, tmp_path, ALLOW="time-slice")
    machine.slow_call("nvidia-smi:set-timeslice", 1500)
    with tried.start("read_time_slice or set_time_slice or claim_time_slicing") as process:
        while not tried.report.exists() or "read_time_slice" not in tried.outcomes():
            assert process.poll() is None, process.communicate()[0]
            time.sleep(0.05)
        assert tried.found()["as_before"] is None
        process.send_signal(signal.SIGTERM)
        said, _ = process.communicate(timeout=100)
    assert process.returncode != 0
    tried.check_as_before()
    assert tried.found()["as_before"] is True, said
