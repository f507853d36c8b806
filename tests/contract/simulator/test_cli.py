"""`dra-driver simulate`, through the command line's own entry point."""

import json
from pathlib import Path

import pytest

from dra_driver import cli


def simulate(root: Path, *words: str) -> int:
    return cli.main(["simulate", *words, "--root", str(root)])


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "root"
    assert simulate(root, "up", "--profile", "mixed", "--userspace", "stand-in") == 0
    return root


def status(root: Path, capsys: pytest.CaptureFixture[str]) -> list[dict[str, object]]:
    capsys.readouterr()
    assert simulate(root, "status", "--output", "json") == 0
    gpus: list[dict[str, object]] = json.loads(capsys.readouterr().out)["gpus"]
    return gpus


def test_a_machine_is_made_shown_and_removed(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert [gpu["name"] for gpu in status(root, capsys)] == [
        "NVIDIA A100-SXM4-40GB",
        "Tesla T4",
        "NVIDIA L4",
        "Tesla P4",
    ]
    assert simulate(root, "status") == 0
    assert "Tesla P4" in capsys.readouterr().out
    assert simulate(root, "down") == 0
    assert not root.exists()
    assert simulate(root, "status") == 1
    assert "holds no simulated machine" in capsys.readouterr().err


def test_faults_come_and_go(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert simulate(root, "fault", "lose", "--gpu", "1") == 0
    assert simulate(root, "fault", "remove", "--gpu", "minor:2") == 0
    assert [gpu["state"] for gpu in status(root, capsys)] == ["ok", "lost", "ok", "removed"]
    assert simulate(root, "fault", "restore", "--gpu", "0000:3d:00.0") == 0
    assert simulate(root, "fault", "add", "--gpu", "minor:2") == 0
    assert [gpu["state"] for gpu in status(root, capsys)] == ["ok"] * 4
    assert simulate(root, "fault", "fail", "--function", "nvmlDeviceGetName", "--times", "3") == 0
    assert simulate(root, "fault", "slow", "--delay-ms", "5", "--gpu", "0") == 0
    assert simulate(root, "fault", "hide", "--function", "nvmlDeviceGetModuleId") == 0
    assert simulate(root, "fault", "unload") == 0
    assert simulate(root, "status") == 0
    shown = capsys.readouterr().out
    assert "nvmlDeviceGetName on all GPUs returns 999, 3 times" in shown
    assert "takes 5 ms longer, for ever" in shown
    assert "the driver is not loaded" in shown
    assert simulate(root, "fault", "clear") == 0
    assert simulate(root, "fault", "load") == 0
    assert simulate(root, "status") == 0
    assert "fault:" not in capsys.readouterr().out


def test_memory_is_taken_on_a_host_with_either_version_of_control_groups(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert simulate(root, "memory", "take", "--gpu", "1", "--mib", "100") == 0
    assert "has 100 MiB more of GPU-" in capsys.readouterr().out


def test_a_gpu_is_cut_by_hand(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def run(*words: str) -> str:
        capsys.readouterr()
        assert simulate(root, *words) == 0
        return capsys.readouterr().out

    assert "pending" in run("mig", "on", "--gpu", "0")
    assert "off, on next" in run("status")
    assert "reset GPU-" in run("reset", "--gpu", "0")
    assert "after 1 ms" in run("mig", "late", "--delay-ms", "1")
    made = run("mig", "create", "--gpu", "0", "--profile", "1g.5gb", "--start", "3").strip()
    assert len(list((root / "proc/driver/nvidia/capabilities").rglob("ci0/access"))) == 1
    assert f"{made}  1g.5gb at 3:1" in run("status")
    assert status(root, capsys)[0]["migDevices"] == [
        {"uuid": made, "profile": "1g.5gb", "start": 3, "size": 1}
    ]
    assert "process 42 holds MIG-" in run("mig", "hold", "--device", made, "--pid", "42")
    assert f"{made}  minor:0  1g.5gb" in (listed := run("mig", "list"))
    assert "held by 42" in listed
    assert simulate(root, "mig", "destroy", "--device", made) == 1
    assert "a process holds the instance" in capsys.readouterr().err
    run("mig", "release", "--device", made)
    run("mig", "destroy", "--device", made)
    assert run("mig", "list") == ""
    assert "MIG off: pending" in run("mig", "off", "--gpu", "0")
    assert "no process was ended" in run("boot")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["fault", "lose"], "needs --gpu"),
        (["mig", "on"], "mig on needs --gpu"),
        (["mig", "create", "--gpu", "0"], "mig create needs --profile"),
        (["mig", "destroy"], "mig destroy needs --device"),
        (["mig", "on", "--gpu", "1"], "or it has none"),
        (["fault", "lose", "--gpu", "9"], "no simulated GPU is '9'"),
        (["up", "--profile", "x9000"], "no profile 'x9000'"),
        (["up", "--profile", "t4x4"], "already is the machine 'mixed'"),
    ],
)
def test_mistakes_end_with_one_line_and_status_1(
    root: Path, words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()
    assert simulate(root, *words) == 1
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert message in error
    assert error.count("\n") == 1
