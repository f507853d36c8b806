"""A gathered node, played by the simulator, is that very node to anyone who looks at it."""

import json
import re
import subprocess
from pathlib import Path

import pytest

import gathering
from dra_driver import gathered
from dra_driver.cli import main
from dra_driver.devices.session import DriverSession
from dra_driver.simulator import profile as profiles
from dra_driver.simulator.archive import profile_of
from dra_driver.simulator.hardware import Fact
from dra_driver.simulator.machine import Machine
from sampling import EVERYTHING

MEMORY_INFO, NAME = "nvmlDeviceGetMemoryInfo_v2", "nvmlDeviceGetName"
ENERGY = "nvmlDeviceGetTotalEnergyConsumption"


PLAYED = profiles.names() if EVERYTHING else ("a30x4", "h100x8-mig", "laptop", "mixed")
"""With MIG, in MIG mode, without most facts, and with cards of several kinds."""


@pytest.mark.parametrize("name", PLAYED)
def test_an_archive_of_each_profile_plays_it_and_with_stand_ins_only_uuids_differ(
    name: str, tmp_path: Path
) -> None:
    node = gathering.node(tmp_path, name)
    archive = node.gathered("--identify")

    again = gathering.played(tmp_path / "again", archive)

    expected = gathering.slices(name)
    assert gathering.slices(profile_of(archive)) == expected
    assert gathering.facts(again.gathered("--identify")) == gathering.facts(archive)

    archive = node.gathered(name="stand-ins")
    own = [gpu.uuid for gpu in sorted(node.machine.gpus, key=lambda gpu: gpu.pci)]
    for uuid, stand_in in zip(own, gathering.uuids(gathered.unpack(archive)), strict=True):
        assert uuid != stand_in
        expected = expected.replace(uuid, stand_in)
    assert gathering.slices(profile_of(archive)) == expected


def instances(machine: Machine) -> list[object]:
    return [machine.mig_devices(gpu.uuid) for gpu in machine.gpus]


def test_mig_devices_are_there_again(tmp_path: Path) -> None:
    node = gathering.node(tmp_path, "h100x8-mig")
    uuid = node.machine.find("5").uuid
    for profile, start in (("1g.10gb", 2), ("3g.40gb", 4), ("1g.10gb", 0)):
        node.machine.create_mig(uuid, profile, start)
    node.machine.destroy_mig(node.machine.mig_devices(uuid)[0].uuid)  # its index is a hole now
    archive = node.gathered("--identify")

    again = gathering.played(tmp_path / "again", archive)

    assert instances(again.machine) == instances(node.machine)
    assert len(again.machine.mig_devices(uuid)) == 2
    assert gathering.facts(again.gathered("--identify")) == gathering.facts(archive)
    again.machine.destroy_mig(again.machine.mig_devices(uuid)[0].uuid)
    assert again.machine.create_mig(uuid, "2g.20gb", 4)


def test_health_links_and_modes_are_played(tmp_path: Path) -> None:
    node = gathering.node(tmp_path, "h100x8")
    machine, gpus = node.machine, node.machine.gpus
    machine.set_fact(gpus[0].uuid, Fact.ROWS_PENDING, 1)
    machine.set_fact(gpus[1].uuid, Fact.SLOWDOWN, 0x40)
    machine.set_fact(gpus[2].uuid, Fact.FABRIC_STATE, 2)
    machine.set_fact(gpus[3].uuid, Fact.MODULE_ID, None)
    machine.set_fact(gpus[4].uuid, Fact.ECC_UNCORRECTED_VOLATILE, 3)
    machine.set_nvlink(gpus[5].uuid, 7, is_up=False)
    machine.set_mig_mode(gpus[6].uuid, enabled=True)
    archive = node.gathered("--identify")

    again = gathering.played(tmp_path / "again", archive)

    assert gathering.facts(again.gathered("--identify")) == gathering.facts(archive)
    for gpu in gpus[:6]:
        there, here = (m.find(gpu.uuid) for m in (machine, again.machine))
        assert there.pci == here.pci


def test_calls_that_failed_fail_again_with_their_codes(tmp_path: Path) -> None:
    node = gathering.node(tmp_path, "l4x2")
    node.machine.fail_call(MEMORY_INFO, 999, uuid=node.machine.gpus[1].uuid)
    node.machine.fail_call(NAME, 4, uuid=node.machine.gpus[0].uuid)
    archive = node.gathered("--identify")

    again = gathering.played(tmp_path / "again", archive)

    assert gathering.facts(again.gathered("--identify")) == gathering.facts(archive)
    calls = [gpu["calls"] for gpu in gathering.facts(archive)[gathered.NVML]["gpus"]]
    assert calls[1][MEMORY_INFO] == {"code": 999}
    assert calls[0][NAME] == {"code": 4}


@pytest.mark.leaves("what hangs for good keeps its thread")
@pytest.mark.parametrize(
    ("function", "hanging"),
    [("nvmlDeviceGetNvLinkState", "nvmlDeviceGetNvLinkState"), ("nvmlDeviceGetName", "*")],
)
def test_a_call_that_hung_hangs_again(function: str, hanging: str, tmp_path: Path) -> None:
    node = gathering.node(tmp_path, "h100x8")
    one = node.machine.find("1")
    node.machine.slow_call(function, 600_000, uuid=one.uuid)
    archive = node.gathered("--identify", "--timeout=12")
    node.machine.clear_faults()

    again = gathering.played(tmp_path / "again", archive)

    (fault,) = again.machine.faults()
    assert (fault.function, again.machine.gpus[fault.slot].uuid) == (hanging, one.uuid)
    assert again.machine.find("1").card == again.machine.find("0").card
    if hanging == "*":
        return
    facts = gathering.facts(again.gathered("--identify", "--timeout=12"))
    again.machine.clear_faults()
    assert facts == gathering.facts(archive)


def test_a_function_that_the_simulator_does_not_have_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    documents = gathered.unpack(gathering.node(tmp_path, "l4x2").gathered()).documents
    calls = documents[gathered.NVML]["gpus"][1]["calls"]
    assert calls[ENERGY] == {"code": 13}, "the simulator has it now: take another one"
    calls[ENERGY] = {"code": 0, "value": True}
    calls["nvmlDeviceGetNews_v9(1)"] = {"code": 3}
    calls["nvmlDeviceGetOlder"] = {"code": 13}
    archive = tmp_path / "newer.tar.gz"
    archive.write_bytes(gathered.pack({}, documents))
    capsys.readouterr()

    up = ["simulate", "up", f"--root={tmp_path / 'again'}", "--nodes=placeholder"]
    assert main([*up, f"--from={archive}"]) == 0

    said = capsys.readouterr().err
    named = f"nvmlDeviceGetNews_v9, {ENERGY}"
    assert f"not played, as the simulated NVML does not have it: {named}\n" in said


def test_a_gpu_that_fell_off_the_bus_is_lost_when_it_is_played(tmp_path: Path) -> None:
    node = gathering.node(tmp_path, "a100x8")
    lost = node.machine.gpus[3]
    node.machine.lose_gpu(lost.uuid)
    archive = node.gathered("--identify")

    again = gathering.played(tmp_path / "again", archive).machine

    assert [one.gpu.uuid for one in again.status() if one.lost] == [lost.uuid]
    assert again.find(lost.uuid).pci == lost.pci
    found, expected = (sick_of(machine) for machine in (again, node.machine))
    assert found == expected == [(3, True)]
    again.restore_gpu(lost.uuid)
    assert sick_of(again) == []
    assert again.find(lost.uuid).card == again.gpus[0].card
    assert again.faults() == []


def sick_of(machine: Machine) -> list[tuple[int, bool]]:
    session = DriverSession(
        driver_root=machine.driver_root,
        dev=machine.dev_root / "dev",
        proc_root=machine.proc_root,
        sys_root=machine.sys_root,
    )
    try:
        return [(one.index, one.is_lost) for one in session.look().sick]
    finally:
        session.close()


def test_the_gpu_drivers_files_lie_where_they_were(tmp_path: Path) -> None:
    node = gathering.node(tmp_path, "h100x8-mig")
    node.machine.create_mig(node.machine.find("4").uuid, "1g.10gb")
    debian = node.machine.library_folder.relative_to(node.machine.driver_root)
    documents = gathered.unpack(node.gathered()).documents
    text = json.dumps(documents[gathered.FILES]).replace(f"/{debian}", "/usr/lib64")
    files = json.loads(text.replace("/usr/bin/", "/opt/bin/"))
    archive = tmp_path / "other.tar.gz"
    archive.write_bytes(gathered.pack({}, {**documents, gathered.FILES: files}))

    again = gathering.played(tmp_path / "again", archive)

    machine = again.machine
    assert machine.library == machine.driver_root / "usr/lib64/libnvidia-ml.so.1"
    assert machine.nvidia_smi == machine.driver_root / "opt/bin/nvidia-smi"
    assert gathering.facts(again.gathered()) == gathering.facts(archive)
    environment = {"LD_LIBRARY_PATH": str(machine.library_folder)}
    listed = subprocess.check_output([machine.nvidia_smi, "-L"], env=environment, text=True)
    assert listed.count("GPU ") == 8


def test_people_play_an_archive(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    archive = gathering.node(tmp_path, "l4x2").gathered()
    up = ["simulate", "up", f"--root={tmp_path / 'again'}", "--nodes=placeholder"]
    capsys.readouterr()

    assert main([*up, f"--from={archive}"]) == 0
    assert "node: 2 GPUs in" in capsys.readouterr().out
    again = Machine(tmp_path / "again")
    assert re.fullmatch(r"stand-ins: .*gathered node", again.description.userspace)
    assert [gpu.uuid[-2:] for gpu in again.gpus] == ["01", "02"]
    assert main([*up, f"--from={archive}"]) == 0  # it is there already

    assert main([*up, f"--from={archive}", "--profile=l4x2"]) == 2
    assert "give either --profile or --from" in capsys.readouterr().err
