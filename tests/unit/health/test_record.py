"""What is wrong with GPUs outlives the driver's process, and no half a file is believed."""

import json
from pathlib import Path

import pytest
from structlog.testing import capture_logs

import make
from dra_driver.devices.health import findings
from dra_driver.devices.health.debounce import GpuCondition
from dra_driver.devices.health.record import DAMAGED, FILE, GpuHealth, HealthFile, read_health
from dra_driver.devices.model import InstanceId
from dra_driver.errors import StateError
from dra_driver.host.envelope import seal

SICK = GpuHealth(
    name="gpu-3",
    index=2,
    pci_address="0000:3b:00.0",
    conditions=(
        GpuCondition(finding=findings.XIDS[79], since=1000, was_away=True),
        GpuCondition(
            finding=findings.XIDS[62],
            instance=InstanceId(gpu_instance=3, compute_instance=0),
            since=1001,
            absent_since=1010,
        ),
        GpuCondition(finding=findings.SLOWDOWNS[0x40], since=1002, counts=False),
        GpuCondition(finding=findings.LOST, since=1003),
    ),
)


@pytest.mark.parametrize("finding", make.findings(), ids=lambda one: f"{one.cause}-{one.value}")
def test_every_finding_is_kept(tmp_path: Path, finding: object) -> None:
    conditions = (GpuCondition(finding=finding, since=1),)  # type: ignore[arg-type]
    gpus = {"GPU-a": GpuHealth(name="gpu-0", index=0, pci_address="", conditions=conditions)}
    HealthFile(tmp_path, "boot-1").write(gpus)
    assert HealthFile(tmp_path, "boot-1").read() == gpus


def test_a_healthy_node_has_no_file(tmp_path: Path) -> None:
    healthy = GpuHealth(name="gpu-0", index=0, pci_address="")
    HealthFile(tmp_path, "boot-1").write({"GPU-a": healthy})
    assert list(tmp_path.iterdir()) == []


def test_unchanged_health_is_not_written_again(tmp_path: Path) -> None:
    file = HealthFile(tmp_path, "boot-1")
    file.write({"GPU-a": SICK})
    before = (tmp_path / FILE).stat()
    file.write({"GPU-a": SICK})
    assert (tmp_path / FILE).stat().st_ino == before.st_ino


def test_after_recovery_the_file_says_so(tmp_path: Path) -> None:
    file = HealthFile(tmp_path, "boot-1")
    file.write({"GPU-a": SICK})
    file.write({})
    assert HealthFile(tmp_path, "boot-1").read() == {}


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{}",
        seal({"bootID": "boot-1"}),
        seal({"boot_id": "boot-1", "gpus": {"GPU-a": {"name": "gpu-0"}}}),
        seal({"boot_id": "boot-1", "gpus": []}),
    ],
)
def test_a_damaged_file_is_kept_and_logged_once(tmp_path: Path, data: bytes) -> None:
    (tmp_path / FILE).write_bytes(data)
    with pytest.raises(StateError, match="cannot be read"):
        read_health(tmp_path)
    with capture_logs() as lines:
        file = HealthFile(tmp_path, "boot-1")
        assert file.read() == {}
        assert file.read() == {}
    assert [line["event"] for line in lines] == ["health record damaged"]
    assert (tmp_path / DAMAGED).read_bytes() == data
    file.write({"GPU-a": SICK})
    assert file.read() == {"GPU-a": SICK}


def test_a_newer_versions_file_is_kept_under_another_name(tmp_path: Path) -> None:
    data = b'{"version":9,"what":"ever"}\n'
    (tmp_path / FILE).write_bytes(data)
    file = HealthFile(tmp_path, "boot-1")
    assert file.read() == {}
    assert (tmp_path / DAMAGED).read_bytes() == data
    file.write({"GPU-a": SICK})
    assert HealthFile(tmp_path, "boot-1").read() == {"GPU-a": SICK}


def test_a_file_with_a_newer_finding_is_kept_under_another_name(tmp_path: Path) -> None:
    HealthFile(tmp_path, "boot-1").write({"GPU-a": SICK})
    payload = json.loads((tmp_path / FILE).read_bytes())["payload"]
    payload["gpus"]["GPU-a"]["conditions"][0]["finding"]["cause"] = "torn"
    (tmp_path / FILE).write_bytes(data := seal(payload))
    with pytest.raises(StateError, match="does not know"):
        read_health(tmp_path)
    file = HealthFile(tmp_path, "boot-1")
    assert file.read() == {}
    assert (tmp_path / DAMAGED).read_bytes() == data
    file.write({"GPU-b": SICK})
    assert file.read() == {"GPU-b": SICK}


def test_an_unwritable_disk_is_logged_once_and_retried(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("in the way")
    file = HealthFile(tmp_path / "data", "boot-1")
    with capture_logs() as lines:
        file.write({"GPU-a": SICK})
        file.write({"GPU-a": SICK})
    assert [line["event"] for line in lines] == ["health record not written"]
    (tmp_path / "data").unlink()
    file.write({"GPU-a": SICK})
    assert HealthFile(tmp_path / "data", "boot-1").read() == {"GPU-a": SICK}
