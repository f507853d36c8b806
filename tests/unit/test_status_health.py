"""The part of `dra-driver status` on GPUs that are not well."""

import json
from pathlib import Path

from dra_driver import cli
from dra_driver.admin.status import health_part
from dra_driver.admin.status.health_part import HealthNotes, read_notes
from dra_driver.devices.health import findings
from dra_driver.devices.health.debounce import GpuCondition
from dra_driver.devices.health.record import FILE, GpuHealth, HealthFile
from dra_driver.devices.model import InstanceId

SICK = {
    "GPU-b": GpuHealth(
        name="gpu-3",
        index=3,
        pci_address="0000:13:00.0",
        conditions=(
            GpuCondition(finding=findings.ROWS_PENDING, since=1_770_000_000),
            GpuCondition(finding=findings.XIDS[79], since=1_770_000_060),
            GpuCondition(finding=findings.SLOWDOWNS[0x40], since=1, counts=False),
        ),
    ),
    "GPU-a": GpuHealth(
        name="gpu-0",
        index=0,
        pci_address="0000:10:00.0",
        conditions=(
            GpuCondition(
                finding=findings.XIDS[62], since=1_770_000_000, instance=InstanceId(gpu_instance=5)
            ),
        ),
    ),
}


def test_each_unhealthy_gpu_has_a_line_with_cause_and_remedy(tmp_path: Path) -> None:
    HealthFile(tmp_path, "boot-1").write(SICK)
    assert health_part.lines(read_notes(tmp_path, "boot-1")) == [
        "",
        "Sick GPUs:",
        (
            "  gpu-0, GPU instance 5  fault    since 2026-02-02 02:40:00 UTC  XID 62: its power "
            "management unit halted; remedy: a reset of the GPU, as `dra-driver health` explains"
        ),
        (
            "  gpu-3                  loss     since 2026-02-02 02:41:00 UTC  XID 79: the GPU has "
            "fallen off the bus; remedy: a reboot of the node"
        ),
        (
            "  gpu-3                  warning  since 2026-02-02 02:40:00 UTC  bad memory of the "
            "GPU is put out of use, and is replaced at its next reset; remedy: a reset "
            "of the GPU, as `dra-driver health` explains"
        ),
    ]


def test_programs_get_the_same(tmp_path: Path) -> None:
    HealthFile(tmp_path, "boot-1").write(SICK)
    told = health_part.as_json(read_notes(tmp_path, "boot-1"))
    assert told["problem"] is None
    conditions = told["conditions"]
    assert isinstance(conditions, list)
    assert [condition["device"] for condition in conditions] == ["gpu-0", "gpu-3", "gpu-3"]
    assert conditions[1] == {
        "gpu": "GPU-b",
        "device": "gpu-3",
        "gpuInstance": None,
        "cause": "xid",
        "value": "79",
        "severity": "loss",
        "since": "2026-02-02T02:41:00Z",
        "reason": "XID 79: the GPU has fallen off the bus",
        "remedy": "a reboot of the node",
    }


def test_a_healthy_node_has_no_lines(tmp_path: Path) -> None:
    assert health_part.lines(read_notes(tmp_path, "boot-1")) == []


def test_health_before_the_reboot_is_not_shown(tmp_path: Path) -> None:
    HealthFile(tmp_path, "boot-1").write(SICK)
    assert read_notes(tmp_path, "boot-2") == HealthNotes()


def test_a_damaged_record_is_reported_and_stops_nothing(tmp_path: Path) -> None:
    (tmp_path / FILE).write_text("half a fi")
    first, second, third = health_part.lines(read_notes(tmp_path, "boot-1"))
    assert (first, second) == ("", "Sick GPUs:")
    assert "cannot be read" in third


def test_the_command_shows_it(tmp_path: Path, capsys: object) -> None:
    plugins, proc = tmp_path / "plugins", tmp_path / "proc"
    (proc / "sys/kernel/random").mkdir(parents=True)
    (proc / "sys/kernel/random/boot_id").write_text("boot-1\n")
    HealthFile(plugins / "gpu.nvidia.com", "boot-1").write(SICK)
    words = [f"--kubelet-plugins-directory-path={plugins}", f"--proc-root={proc}"]
    assert cli.main(["status", *words]) == 0
    assert "Sick GPUs:" in capsys.readouterr().out  # type: ignore[attr-defined]
    assert cli.main(["status", "--output=json", *words]) == 0
    told = json.loads(capsys.readouterr().out)  # type: ignore[attr-defined]
    assert len(told["health"]["conditions"]) == 3
