"""A gathered node's archive has its profile: simulated again, it publishes the same devices."""

from pathlib import Path

import pytest

import gathering
from dra_driver.admin.gather.reading import PROFILE
from dra_driver.cli import main
from dra_driver.simulator import profile as profiles
from dra_driver.simulator.machine import Machine
from sampling import EVERYTHING

SIMULATED = profiles.names() if EVERYTHING else ("a30x4", "h100x8-mig", "laptop", "mixed", "v100x8")
"""With MIG, in MIG mode, without most facts, with several kinds of cards, and NVLinks of GPUs."""


@pytest.mark.parametrize("name", SIMULATED)
def test_the_same_devices_are_published_and_with_stand_ins_only_uuids_differ(
    name: str, tmp_path: Path
) -> None:
    node = gathering.node(tmp_path, name)
    expected = gathering.slices(name)

    assert gathering.slices(str(node.gathered("--identify"))) == expected

    archive = str(node.gathered(name="stand-ins"))
    own = sorted(node.machine.gpus, key=lambda gpu: gpu.pci)
    for gpu, stand_in in zip(own, profiles.load(archive).gpus, strict=True):
        assert gpu.uuid != stand_in.uuid
        expected = expected.replace(gpu.uuid, str(stand_in.uuid))
    assert gathering.slices(archive) == expected


def test_people_simulate_an_archive_or_the_profile_in_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    node = gathering.node(tmp_path, "h100x8-mig")
    archive = node.gathered("--identify")
    text = tmp_path / "edited.yaml"
    text.write_text(gathering.unpack(archive).documents[PROFILE])

    for root, profile in ((tmp_path / "one", archive), (tmp_path / "other", text)):
        up = ["simulate", "up", f"--root={root}", "--nodes=placeholder", "--userspace=stand-in"]
        capsys.readouterr()
        assert main([*up, f"--profile={profile}"]) == 0
        assert f"gathered: 8 GPUs in {root}" in capsys.readouterr().out
        assert main([*up, f"--profile={profile}"]) == 0, "it is there already"
        again = Machine(root)
        assert again.description.driver_version == node.machine.description.driver_version
        assert [gpu.uuid for gpu in again.gpus] == [gpu.uuid for gpu in node.machine.gpus]

    assert main(["inspect", "--slices", f"--profile={archive}", "--node-name=n", "-ojson"]) == 0
    assert "NVIDIA H100 80GB HBM3" in capsys.readouterr().out


def test_mig_devices_are_there_again_until_a_reboot(tmp_path: Path) -> None:
    node = gathering.node(tmp_path, "h100x8-mig")
    uuid = node.machine.find("5").uuid
    for profile, start in (("1g.10gb", 2), ("3g.40gb", 4)):
        node.machine.create_mig(uuid, profile, start)

    (tmp_path / "again").mkdir()
    loaded = profiles.load(str(node.gathered("--identify")))
    again = gathering.node(tmp_path / "again", loaded).machine

    def places(machine: Machine) -> set[tuple[str, str, int]]:
        return {(one.uuid, one.profile, one.start) for one in machine.mig_devices(uuid)}

    assert places(again) == places(node.machine)
    assert len(places(again)) == 2
    again.reboot()
    assert places(again) == set()


def test_links_that_fail_at_one_end_are_left_out_of_both(tmp_path: Path) -> None:
    node = gathering.node(tmp_path, "v100x8")
    gpu = node.machine.find("0")
    node.machine.fail_call("nvmlDeviceGetNvLinkRemotePciInfo_v2", 999, uuid=gpu.uuid)

    loaded = profiles.load(str(node.gathered("--identify")))

    there = {each.pci: each.nvlinks for each in loaded.gpus}
    assert there.pop(gpu.pci) == []
    assert all(links and gpu.pci not in links for links in there.values())


def test_a_lost_gpu_is_named_and_left_out(tmp_path: Path) -> None:
    node = gathering.node(tmp_path, "a100x8")
    node.machine.lose_gpu(node.machine.find("3").uuid)
    archive = node.gathered("--identify")

    assert "see nvml.json" in gathering.unpack(archive).missing["GPU 3 in the profile"]
    there = {gpu.uuid for gpu in profiles.load(str(archive)).gpus}
    assert {gpu.uuid for gpu in node.machine.gpus} - there == {node.machine.find("3").uuid}


@pytest.mark.leaves("what hangs for good keeps its thread")
def test_a_gpu_that_hangs_is_named_and_left_out(tmp_path: Path) -> None:
    node = gathering.node(tmp_path, "l4x2")
    node.machine.slow_call("nvmlDeviceGetSerial", 600_000, uuid=node.machine.find("1").uuid)
    archive = node.gathered("--identify", "--timeout=12")
    node.machine.clear_faults()

    assert "GPU 1 in the profile" in gathering.unpack(archive).missing
    assert len(profiles.load(str(archive)).gpus) == 1


def test_functions_that_the_library_lacks_are_missing_again(tmp_path: Path) -> None:
    name = "nvmlDeviceGetModuleId"
    lacking = profiles.changed(profiles.load("l4x2"), {"missing_functions": [name]})
    loaded = profiles.load(str(gathering.node(tmp_path, lacking).gathered()))
    assert name in loaded.missing_functions


def test_without_nvml_there_is_no_profile_but_a_reason(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    node = gathering.node(tmp_path, "l4x2")
    node.machine.unload_driver()
    archive = node.gathered()
    capsys.readouterr()

    assert main(["simulate", "up", f"--profile={archive}", f"--root={tmp_path / 'again'}"]) == 1

    said = capsys.readouterr().err
    assert f"the archive {archive} cannot be used: it has no profile.yaml" in said
    assert "or an older dra-driver made it; gather it again" in said
