"""`dra-driver inspect` over a simulated machine, as people run it."""

import json
from pathlib import Path

import pytest
import yaml

import make
from dra_driver.claims.model.claim import ClaimUid
from dra_driver.claims.model.record import MakeMigDevices
from dra_driver.claims.state.ledger import Ledger
from dra_driver.cli import main
from dra_driver.devices.device import Device, Mig
from dra_driver.devices.model import GpuUuid, Placement
from dra_driver.shares.notes import CONFIG_FILE, KeptConfig, keep
from dra_driver.simulator import profile as profiles
from dra_driver.simulator.machine import Machine


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine.create(tmp_path / "root", "mixed")


def words(machine: Machine, *more: str) -> list[str]:
    return [
        "inspect",
        f"--nvidia-driver-root={machine.driver_root}",
        f"--container-driver-root={machine.driver_root}",
        f"--sys-root={machine.sys_root}",
        f"--proc-root={machine.proc_root}",
        *more,
    ]


def test_a_table_names_every_gpu(machine: Machine, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words(machine)) == 0

    shown = capsys.readouterr()
    assert shown.err == ""
    for gpu in machine.gpus:
        assert gpu.uuid in shown.out
    assert f"would publish {len(machine.gpus)} devices" in shown.out


@pytest.mark.parametrize(("output", "parse"), [("json", json.loads), ("yaml", yaml.safe_load)])
def test_programs_get_gpus_and_devices(
    machine: Machine, capsys: pytest.CaptureFixture[str], output: str, parse: object
) -> None:
    assert main(words(machine, f"--output={output}")) == 0

    found = parse(capsys.readouterr().out)  # type: ignore[operator]
    assert {gpu["uuid"] for gpu in found["gpus"]} == {gpu.uuid for gpu in machine.gpus}
    assert {device["name"] for device in found["devices"]} == {
        f"gpu-{gpu.minor}" for gpu in machine.gpus
    }
    assert {gpu["problem"] for gpu in found["gpus"]} == {None}


def test_gpus_for_virtual_machines_are_shown_as_the_setting_says(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    profile = profiles.load("t4x4")
    iommu = {"drivers": {gpu.pci: "vfio-pci" for gpu in profile.gpus[2:]}}
    machine = Machine.create(tmp_path / "vms", profiles.changed(profile, {"iommu": iommu}))
    assert main(words(machine)) == 0
    assert "gpu-vfio" not in capsys.readouterr().out
    assert main(words(machine, "--vfio", "--output=json")) == 0
    found = json.loads(capsys.readouterr().out)
    names = [device["name"] for device in found["devices"]]
    assert names == ["gpu-0", "gpu-1", "gpu-vfio-2", "gpu-vfio-3"]
    (note,) = found["notes"]
    addresses = ", ".join(gpu.pci for gpu in profile.gpus[:2])
    assert note["text"].startswith(f"not offered to virtual machines: {addresses}: it is bound to")


def test_a_spec_has_a_gpu_in_mig_mode_by_its_mig_devices_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    hopper = Machine.create(tmp_path / "h100", "h100x8")
    divided, empty = (gpu.uuid for gpu in hopper.gpus[:2])
    for uuid in (divided, empty):
        hopper.set_mig_mode(uuid, enabled=True)
    hopper.create_mig(divided, "3g.40gb", 4)

    assert main(words(hopper, "--cdi", "--output=json")) == 0
    spec = json.loads(capsys.readouterr().out)
    names = [device["name"] for device in spec["devices"] if device["name"][:5] in "gpu-0 gpu-1"]
    assert names == ["gpu-0-mig-3g40gb-9-4"]


def test_nodes_that_are_missing_are_named(
    machine: Machine, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "other/dev").mkdir(parents=True)

    assert main(words(machine, "--cdi", f"--nvidia-dev-root={tmp_path / 'other'}")) == 1
    error = capsys.readouterr().err
    for gpu in machine.gpus:
        assert f"{tmp_path}/other/dev/nvidia{gpu.minor} of GPU {gpu.uuid} is missing" in error


def test_without_driver_there_is_one_line_and_status_1(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["inspect", f"--nvidia-driver-root={tmp_path}"]) == 1

    shown = capsys.readouterr()
    assert shown.out == ""
    [line] = shown.err.splitlines()
    assert line.startswith(f"error: libnvidia-ml.so.1 not found under {tmp_path}")


def test_mig_devices_of_claims_differ_from_those_made_by_hand(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    hopper = Machine.create(tmp_path / "h100", "h100x8")
    uuid = hopper.gpus[0].uuid
    hopper.set_mig_mode(uuid, enabled=True)
    hopper.create_mig(uuid, "3g.40gb", 4)
    plugins = tmp_path / "plugins"
    asked = words(hopper, f"--kubelet-plugins-directory-path={plugins}", "--mig=on-demand")

    assert main(asked) == 0
    by_hand = capsys.readouterr().out
    place = Mig(
        gpu=GpuUuid(uuid), profile="3g.40gb", profile_id=9, placement=Placement(start=4, size=4)
    )
    step = MakeMigDevices(devices=(Device(base=place),), claim=ClaimUid("claim"))
    ledger = Ledger(plugins / "gpu.nvidia.com", boot_id=hopper.boot_id)
    ledger.write(make.record(uid="claim", boot_id=hopper.boot_id, steps=(step,)))
    assert main(asked) == 0
    by_claim = capsys.readouterr().out

    assert "not published as a whole" in by_hand
    assert "would publish 197 devices" in by_hand
    assert "not published as a whole" not in by_claim
    assert "would publish 208 devices" in by_claim
    assert f"gpu-{hopper.gpus[0].minor}-mig-3g40gb-9-4  3g.40gb  4-7" in by_claim


def test_shares_by_the_drivers_last_good_config_are_shown(
    machine: Machine, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    data = (
        b"version: v1\nsharing:\n  mps:\n    failRequestsGreaterThanOne: true\n    resources:\n"
        b"    - name: nvidia.com/gpu\n      devices: [0]\n      replicas: 4\n"
    )
    plugins = tmp_path / "plugins"
    keep(plugins / "gpu.nvidia.com" / CONFIG_FILE, KeptConfig(data=data, origin="file /etc/shares"))
    assert main(words(machine, f"--kubelet-plugins-directory-path={plugins}")) == 0

    shown = capsys.readouterr()
    (line,) = (row for row in shown.out.splitlines() if "shares of" in row)
    assert line.endswith(": 4 of nvidia.com/gpu by MPS")
    assert f"would publish {len(machine.gpus) + 4} devices" in shown.out


def test_parts_by_capacity_follow_the_drivers_setting(
    machine: Machine, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CONSUMABLE_SHARES", "2")  # as in the driver's own container
    assert main(words(machine)) == 0
    lines = capsys.readouterr().out.splitlines()
    start = lines.index("for several claims at once, with --consumable-shares 2:")
    assert len(lines[start + 2 :]) == 3 * len(machine.gpus)  # memory, shares, cores

    assert main(words(machine, "--output=json")) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["consumableShares"] == "2"
    for device in found["devices"]:
        assert device["capacity"]["shares"]["requestPolicy"]["validRange"]["max"] == "2"


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("--consumable-shares=none", "--consumable-shares"),
        ("--count=2", "works only with --slices"),
    ],
)
def test_wrong_settings_and_those_without_what_they_are_for_are_refused(
    machine: Machine, capsys: pytest.CaptureFixture[str], word: str, said: str
) -> None:
    assert main(words(machine, word)) == 2
    assert said in capsys.readouterr().err


def test_it_says_what_older_kubernetes_is_offered(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    hopper = Machine.create(tmp_path / "h100", "h100x8")
    for gpu in hopper.gpus[:2]:
        hopper.set_mig_mode(gpu.uuid, enabled=True)
    assert main(words(hopper)) == 0
    newest = capsys.readouterr().out
    assert "MIG devices for claims: auto (on Kubernetes 1.37, unless" in newest
    assert "would publish 56 devices" in newest
    assert main(words(hopper, "--kubernetes=1.36")) == 0
    older = capsys.readouterr().out
    assert "MIG devices for claims: existing (--mig auto makes none on Kubernetes 1.36" in older
    assert "would publish 6 devices" in older
    assert older.count(", or set --mig on-demand\n") == 2
    assert older.count("--mig on-demand makes them, at a cost: ") == 1
    assert older.count("1.1 pods a second instead of 44") == 1


def test_a_profile_is_shown_as_a_node_with_such_gpus(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", "--profile=t4x4", "--exclude-gpus=0"]) == 0
    shown = capsys.readouterr()
    assert shown.err == ""
    assert "would publish 3 devices" in shown.out
    assert "cannot be prepared" not in shown.out


def test_this_nodes_slices_are_those_that_the_driver_would_create(
    machine: Machine, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words(machine, "--slices", "--node-name=n1")) == 0
    slices = list(yaml.safe_load_all(capsys.readouterr().out))
    found = {
        device["attributes"]["uuid"]["string"]
        for each in slices
        for device in each["spec"].get("devices", [])
    }
    assert found == {gpu.uuid for gpu in machine.gpus}
