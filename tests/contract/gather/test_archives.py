"""Every archive in tests/data/archives plays, and the driver works on what it plays.

A contributed archive is put there, and these tests take it up.
"""

import json
from pathlib import Path
from typing import Any

import pytest
from testbed.apiserver.rules import check_slice

import gathering
from dra_driver import gathered
from dra_driver.cli import main
from dra_driver.devices.session import DriverSession
from dra_driver.simulator.archive import profile_of
from gathering import GatheredNode

FOLDER = Path(__file__).parents[2] / "data/archives"
ARCHIVES = {path.name.removesuffix(".tar.gz"): path for path in sorted(FOLDER.glob("*.tar.gz"))}


@pytest.fixture(params=ARCHIVES)
def archive(request: pytest.FixtureRequest) -> Path:
    path: Path = ARCHIVES[request.param]
    return path


@pytest.fixture
def node(archive: Path, tmp_path: Path) -> GatheredNode:
    return gathering.played(tmp_path / "node", archive)


def told(archive: Path, call: str) -> list[Any]:
    """What the GPUs of an archive answered, those that did."""
    gpus = gathered.unpack(archive).documents[gathered.NVML]["gpus"]
    answers = (gpu["calls"].get(call, {}) for gpu in gpus)
    return [answer["value"] for answer in answers if "value" in answer]


def test_it_names_nobody(archive: Path) -> None:
    found = gathered.unpack(archive)
    assert found.manifest["identified"] is False
    assert all(uuid[4:].startswith("00000000-0000-4000-8000-") for uuid in gathering.uuids(found))


def test_the_driver_finds_its_gpus(archive: Path, node: GatheredNode) -> None:
    machine = node.machine
    session = DriverSession(
        driver_root=machine.driver_root,
        dev=machine.dev_root / "dev",
        proc_root=machine.proc_root,
        sys_root=machine.sys_root,
    )
    try:
        inventory = session.look()
    finally:
        session.close()

    assert inventory.driver_version == machine.description.driver_version
    healthy = {gpu.index for gpu in inventory.gpus}
    assert healthy | {gpu.index for gpu in inventory.sick} == set(range(len(machine.gpus)))
    assert [gpu.uuid for gpu in inventory.gpus] == told(archive, "nvmlDeviceGetUUID")
    assert [gpu.product_name for gpu in inventory.gpus] == told(archive, "nvmlDeviceGetName")
    memory = [gpu.memory_bytes for gpu in inventory.gpus]
    assert memory == [one["total"] for one in told(archive, "nvmlDeviceGetMemoryInfo")]


def test_its_slices_are_such_as_the_api_server_takes(archive: Path) -> None:
    published = json.loads(gathering.slices(profile_of(archive)))
    assert published
    for one in published:
        check_slice(one, None)


def words(node: GatheredNode, *command: str) -> list[str]:
    return [
        *command,
        f"--nvidia-driver-root={node.machine.driver_root}",
        f"--container-driver-root={node.machine.driver_root}",
        f"--sys-root={node.machine.sys_root}",
        f"--proc-root={node.machine.proc_root}",
        f"--kubelet-plugins-directory-path={node.plugins}",
    ]


def test_a_cdi_spec_has_its_gpus_and_libraries(
    node: GatheredNode, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words(node, "inspect", "--cdi", "-o", "json")) == 0

    spec = json.loads(capsys.readouterr().out)
    paths = {edit["path"] for device in spec["devices"] for edit in edits(device, "deviceNodes")}
    well = [one.gpu.minor for one in node.machine.status() if not (one.lost or one.mig_mode)]
    assert {f"/dev/nvidia{minor}" for minor in well} <= paths
    mounts = {mount["containerPath"] for mount in edits(spec, "mounts")}
    assert any("/libcuda.so." in path for path in mounts)


def edits(holder: dict[str, Any], kind: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = holder["containerEdits"].get(kind, [])
    return found


def test_doctor_makes_its_checks_of_a_node(
    node: GatheredNode, capsys: pytest.CaptureFixture[str]
) -> None:
    node.plugins.mkdir()
    registry, cdi = (node.folder / name for name in ("registry", "cdi"))
    roots = (f"--kubelet-registrar-directory-path={registry}", f"--cdi-root={cdi}")
    command = ("doctor", "--scope=node", "-o", "json", f"--host-root={node.folder}", *roots)
    assert main(words(node, *command)) in (0, 1)

    found = json.loads(capsys.readouterr().out)["findings"]
    said = {one["id"]: one["seen"] for one in found}
    assert [one for one in said.values() if "check failed" in one] == []
    assert f"{len(node.machine.gpus)} GPUs on PCI" in said["kernel-driver"]
