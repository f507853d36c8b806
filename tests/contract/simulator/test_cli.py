"""`dra-driver simulate`, through the command line's own entry point."""

import os
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


def status(root: Path, capsys: pytest.CaptureFixture[str], column: str) -> list[str]:
    """What a column of the table says of each GPU; the last is all that follows."""
    capsys.readouterr()
    assert simulate(root, "status") == 0
    _, head, *rows = capsys.readouterr().out.splitlines()
    at = head.index(column)
    return [row[at:].strip() if column == "NAME" else row[at:].split()[0] for row in rows]


def test_a_machine_is_made_shown_and_removed(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert status(root, capsys, "NAME") == [
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
    assert status(root, capsys, "STATE") == ["ok", "lost", "ok", "removed"]
    assert simulate(root, "fault", "restore", "--gpu", "0000:3d:00.0") == 0
    assert simulate(root, "fault", "add", "--gpu", "minor:2") == 0
    assert status(root, capsys, "STATE") == ["ok"] * 4
    assert simulate(root, "fault", "fail", "--function", "nvmlDeviceGetName", "--times", "3") == 0
    assert simulate(root, "fault", "slow", "--delay-ms", "5", "--gpu", "0") == 0
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


def test_a_process_has_memory_and_is_busy_until_it_leaves(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pid = os.getpid()  # it exists, so it has a control group, of whichever version

    def mine(*words: str) -> str:
        capsys.readouterr()
        assert simulate(root, "set", "--pid", str(pid), *words) == 0
        assert simulate(root, "status") == 0
        return capsys.readouterr().out

    gpu = ("--gpu", "1")
    for mib in ("100", "300", "200"):
        assert f"process {pid}: {mib} MiB" in mine(*gpu, "--mib", mib)
    assert f"process {pid} is 60 % busy" in mine("--sm", "60", "--kind", "mps")
    assert f"process {pid}:" not in mine(*gpu, "--mib", "0")


def test_a_gpu_is_divided_by_hand(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
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
    run("set", "--gpu", made, "--pid", "42", "--mib", "7")
    assert f"{made}  1g.5gb at 3:1\n      process 42: 7 MiB" in run("status")
    assert f"XID 13 on {made}" in run("set", "--gpu", made, "--xid", "13")
    assert simulate(root, "mig", "destroy", "--device", made) == 1
    assert "a process holds the instance" in capsys.readouterr().err
    run("set", "--gpu", made, "--pid", "42", "--mib", "0")
    run("mig", "destroy", "--device", made)
    assert "MIG-" not in run("status")
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
        (["set", "--gpu", "3", "--rows", "failed"], "this card does not report that"),
        (["set", "--gpu", "0", "--nvlink", "99=down"], "the card has no NVLink 99"),
        (["set", "--sm", "9", "--pid", "4242"], "is on no simulated GPU"),
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


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "nothing to set: say what"),
        (["--xid", "79"], "--xid: needs --gpu"),
        (["--gpu", "MIG-1", "--rows", "well"], "--rows: is of a whole GPU"),
        (["--gpu", "0", "--nvlink", "0"], "must be a link's number and its state"),
    ],
)
def test_contradictory_options_are_refused(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["simulate", "set", *words]) == 2
    assert message in capsys.readouterr().err
