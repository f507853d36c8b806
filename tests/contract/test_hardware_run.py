"""`make hardware` on simulated cards: what it answers, what it leaves, and when it refuses.

Steps in containers need runc, and are tried by tests/e2e/test_hardware_run.py.
"""

import shutil
import signal
from pathlib import Path

import pytest

import libcuda
from dra_driver.simulator.driver_root import Options
from dra_driver.simulator.machine import Machine
from hardware.every_step import STEPS
from hardware.questions import NOT_SIMULATED, QUESTIONS
from worlds.groups import limited
from worlds.hardware_run import EVERYTHING, Tried, put_mps3

OUTSIDE = ",".join(step.name for step in STEPS if not step.name.startswith("container"))
LIMITS = "memory-limit,cgroup-path"
NAMESPACES = "mps-groups,mps-namespace-later,mps-partition,mps-root"


@pytest.fixture
def machine(tmp_path: Path, real_userspace: None) -> Machine:
    """A machine with NVIDIA's own programs."""
    return made(tmp_path, "h100x8")


def made(folder: Path, profile: str) -> Machine:
    return Machine.create(folder / "machine", profile, Options(userspace="real"))


def test_all_that_can_be_answered_without_a_card_is_and_the_machine_is_as_before(
    machine: Machine, tmp_path: Path, needs_root: None
) -> None:
    tried = Tried(machine, tmp_path)
    said = tried.run("--allow", EVERYTHING, "--only", OUTSIDE)
    tried.check_as_before()
    found = tried.found()
    assert found["answered_by"] == "simulator"
    assert found["as_before"] is True
    verdicts = tried.verdicts()
    left_out = {name for name, verdict in verdicts.items() if verdict == "left out"}
    assert left_out == {
        *("computes", "mps-percentages", "mps-exclusive"),
        *LIMITS.split(","),
        *NAMESPACES.split(","),
    }
    assert "failed" not in verdicts.values()
    expected = {one.id: one.simulated for one in QUESTIONS if one.simulated != NOT_SIMULATED}
    expected.pop("cgroup-path")  # of a newer GPU driver
    assert tried.answers() == expected
    for sentence in expected.values():
        assert sentence in said
    text = (tried.report / "hardware.json").read_text() + (tried.report / "hardware.md").read_text()
    assert "(simulator: nothing of this is a card's word)" in text
    for gpu in machine.gpus:
        assert gpu.uuid not in text


def test_by_default_it_changes_nothing_and_says_what_it_leaves_out(
    machine: Machine, tmp_path: Path
) -> None:
    tried = Tried(machine, tmp_path)
    tried.machine.kill_at("nvmlDeviceSetComputeMode")
    tried.machine.kill_at("nvmlDeviceSetMigMode")
    tried.machine.kill_at("nvidia-smi:set-timeslice")
    said = tried.run("--only", "inventory,claim-gpu,set-time-slice,claim-mig")
    assert "it will change no setting" in said
    assert "left out without ALLOW=mig-mode,time-slice: set-time-slice, claim-mig" in said
    tried.check_as_before()
    assert [*tried.verdicts().values()] == ["passed"] * 2 + ["left out"] * 2
    assert len(tried.machine.faults()) == 3, "nothing was set"


def test_a_card_in_mig_mode_gets_its_mig_devices_and_no_reset(
    tmp_path: Path, real_userspace: None
) -> None:
    machine = made(tmp_path, "a100x8")
    first = machine.gpus[0].uuid
    machine.set_mig_mode(first, enabled=True)
    machine.reset_gpu(first)
    machine.create_mig(first, "1g.5gb", 6)
    tried = Tried(machine, tmp_path)
    only = "claim-gpu,mig-mode-while-open,mig-device-names,claim-mig"
    tried.run("--allow", "mig-mode", "--only", only)
    tried.check_as_before()
    assert tried.verdicts() == {
        "claim-gpu": "left out",
        "mig-mode-while-open": "left out",
        "mig-device-names": "passed",
        "claim-mig": "passed",
    }


def test_a_mig_mode_that_waits_for_a_reset_is_not_touched(
    tmp_path: Path, real_userspace: None
) -> None:
    machine = made(tmp_path, "a100x8")
    machine.set_mig_mode(machine.gpus[0].uuid, enabled=True)
    tried = Tried(machine, tmp_path)
    said = tried.run("--allow", "mig-mode", "--only", "mig-mode-while-open", status=1)
    assert "error: a change of the card's MIG mode waits for a reset" in said
    tried.check_as_before()
    assert machine.status()[0].mig_pending == 1


def test_from_r615_on_a_control_group_is_limited(tmp_path: Path, needs_root: None) -> None:
    machine, groups = limited(tmp_path, "misc")
    tried = Tried(machine, tmp_path, "--cgroup-root", groups.root)
    tried.run("--allow", "memory-limit", "--only", LIMITS)
    tried.check_as_before()
    evidence = {step["name"]: step["evidence"] for step in tried.found()["steps"]}
    assert evidence["memory-limit"] == ["the limit in force is 2048 MiB"]
    (question,) = [one for one in QUESTIONS if one.id == "cgroup-path"]
    assert tried.answers() == {"cgroup-path": question.simulated}
    assert not list(groups.root.glob("dra-hardware-*"))


def compute(machine: Machine, folder: Path) -> None:
    """Have programs compute on a machine's GPUs."""
    ours = libcuda.build(folder) / "libcuda.so.1"
    for stand_in in machine.driver_root.rglob("libcuda.so.*"):
        if not stand_in.is_symlink():
            stand_in.unlink()  # a link to a file that other machines have, too
            shutil.copy(ours, stand_in)


def test_from_r620_on_mps_is_asked_how_it_chooses_namespaces(
    tmp_path: Path, needs_root: None
) -> None:
    machine, groups = limited(tmp_path, "misc", driver="620.28.03")
    compute(machine, tmp_path)
    put_mps3(machine)
    for folder in (tmp_path, *tmp_path.parents[:2]):
        folder.chmod(0o711)
    tried = Tried(machine, tmp_path, "--cgroup-root", groups.root)
    tried.run("--allow", "memory-limit,mps", "--only", NAMESPACES)
    tried.check_as_before()
    assert set(tried.verdicts().values()) == {"passed"}
    answers = tried.answers()
    by_root, _, by_others = answers.pop("mps3-root").partition("; ")
    assert by_root == "It can raise its own limit"
    # The second, where the tests' Python is not for all users.
    assert by_others in {f"a user who is not root {it}." for it in ("is refused", "could not try")}
    assert answers == {
        "mps3-group": "Yes, also by a daemon with a control group namespace of its own.",
        "mps3-deeper": "Yes: with cgroup_depth = 1 a client in a group below has the limits, too.",
        "mps3-later": "Yes, and it can be deleted when its clients are gone.",
        "mps3-partition": "No: a client that names another has 16 SMs and not 8.",
    }
    assert not list(groups.root.glob("dra-hardware-*"))


def test_where_programs_compute_they_answer_the_rest(
    machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compute(machine, tmp_path)
    monkeypatch.setenv("TEST_CUDA_MEMORY_MIB", "3000")
    tried = Tried(machine, tmp_path)
    only = "computes,mps-percentages,mps-exclusive"
    tried.run("--allow", "mps,compute-mode", "--only", only)
    tried.check_as_before()
    assert set(tried.verdicts().values()) == {"passed"}
    assert tried.answers() == {  # under a libcuda that knows neither MPS nor compute modes
        "mps-percent": "No: a client that asks for 30 % has as many SMs as any.",
        "mps-exclusive": "No: it runs beside MPS.",
    }
    evidence = {step["name"]: step["evidence"] for step in tried.found()["steps"]}
    assert "kernel: ran" in evidence["computes"]


def test_a_card_that_others_use_is_left_alone_unless_that_is_allowed(
    machine: Machine, tmp_path: Path
) -> None:
    pid = machine.hold_instance(machine.gpus[0].uuid)
    tried = Tried(machine, tmp_path)
    only = ("--allow", "compute-mode", "--only", "set-compute-mode")
    said = tried.run(*only, status=1)
    assert f"error: others use the card (processes {pid}); end them, or say --in-use" in said
    tried.check_as_before()
    assert not tried.report.exists()
    tried.run(*only, "--in-use")
    tried.check_as_before()


def test_what_a_card_cannot_be_set_to_fails_the_step_and_the_run(
    machine: Machine, tmp_path: Path
) -> None:
    machine.fail_call("nvmlDeviceSetComputeMode", 4)
    tried = Tried(machine, tmp_path)
    only = "set-compute-mode,read-time-slice"
    tried.run("--allow", "compute-mode", "--only", only, status=1)
    assert tried.verdicts() == {"set-compute-mode": "failed", "read-time-slice": "passed"}
    (reason,) = [step["reason"] for step in tried.found()["steps"] if step["reason"]]
    assert "NVML" in reason
    tried.check_as_before()


def test_an_interrupted_run_puts_back_what_it_has_changed(machine: Machine, tmp_path: Path) -> None:
    tried = Tried(machine, tmp_path)
    machine.slow_call("nvidia-smi:set-timeslice", 1500)
    only = "read-time-slice,set-time-slice,claim-time-slicing"
    with tried.start("--allow", "time-slice", "--only", only) as process:
        for line in process.stdout or ():
            if "read-time-slice: passed" in line:
                break
        so_far = tried.found()
        process.send_signal(signal.SIGINT)
        said, _ = process.communicate(timeout=100)
    assert (so_far["as_before"], so_far["interrupted"]) == (None, True)
    assert [step["name"] for step in so_far["steps"]] == ["read-time-slice"]
    assert process.returncode == 1
    tried.check_as_before()
    assert tried.found()["interrupted"] is True
    assert tried.found()["as_before"] is True, said
