"""The whole driver as a process, on GPUs that are not well."""

import json
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from testbed.apiserver.rules import without_device_fields
from testbed.apiserver.server import ApiServer
from testbed.commands import wait_until
from testbed.kubelet import KubeletClient

from dra_driver.cli import main
from dra_driver.devices.health.record import FILE
from dra_driver.errors import SetupError
from dra_driver.simulator.health_cli import Health, raise_xid_on_device, report
from worlds.process import SLICES, ProcessNode, eventually, process_node
from worlds.sick import KNOWS_NO_RECOVERY, looked, machine_of, uuid_of, wait_until_heard

XID = ["gpu.nvidia.com/xid"]

node = process_node()


def start(node: ProcessNode, gpus: int) -> None:
    node.driver.start()
    node.driver.wait_log("driver started")
    node.wait_devices(gpus)
    wait_until_heard(node, gpus)


def specs(node: ProcessNode) -> list[Any]:
    return [one["spec"] for one in node.api.objects(SLICES)]


def versions(node: ProcessNode) -> list[str]:
    return [one["metadata"]["resourceVersion"] for one in node.api.objects(SLICES)]


def contents(node: ProcessNode) -> list[Any]:
    """What the slices say of devices, without the pool's generation."""
    return [{**spec, "pool": spec["pool"]["name"]} for spec in specs(node)]


def tainted(node: ProcessNode, wanted: Mapping[str, list[str]]) -> None:
    eventually(lambda: node.taints() == wanted, f"taints {wanted}")


def untainted(node: ProcessNode) -> None:
    eventually(lambda: node.taints() == {}, "taints to be lifted")


def test_xid_79_taints_its_gpu_at_once_and_is_lifted_when_the_gpu_is_back(
    node: ProcessNode,
) -> None:
    machine = machine_of(node, "t4x4", KNOWS_NO_RECOVERY)
    start(node, 4)
    before = contents(node)
    gpu = uuid_of(machine, 2)
    machine.emit_xid(gpu, 79)
    tainted(node, {"gpu-2": XID})
    machine.lose_gpu(gpu)
    tainted(node, {"gpu-2": [*XID, "gpu.nvidia.com/gpu-lost"]})
    with KubeletClient(node.place.registry) as kubelet:
        kubelet.register()
        error = kubelet.prepare(node.allocate("ill", "gpu-2"))["uid-ill"].error
        assert "is lost" in error
        assert kubelet.prepare(node.allocate("well", "gpu-1"))["uid-well"].error == ""
    machine.restore_gpu(gpu)
    untainted(node)
    assert contents(node) == before


def test_what_programs_cause_changes_nothing_and_steady_sickness_writes_nothing(
    node: ProcessNode,
) -> None:
    machine = machine_of(node, "t4x4")
    start(node, 4)
    before = versions(node)
    for xid in (13, 31, 43, 45, 68, 109, 94):
        machine.emit_xid(uuid_of(machine, 2), xid)
    wait_until(lambda: len(node.driver.events("xid passed over")) == 7, "xids", timeout=20)
    looked(machine, 2)
    assert (versions(node), node.taints()) == (before, {})
    assert not (node.place.data / FILE).exists()
    report(machine, uuid_of(machine, 1), Health(gpu="1", recovery_action="node-reboot"))
    tainted(node, {"gpu-1": ["gpu.nvidia.com/recovery-action"]})
    before = versions(node)
    looked(machine, 6)
    assert versions(node) == before


def test_a_killed_driver_forgets_nothing_and_its_successor_lifts(node: ProcessNode) -> None:
    machine = machine_of(node, "t4x4")
    start(node, 4)
    before, gpu = contents(node), uuid_of(machine, 3)
    machine.emit_xid(gpu, 62)
    tainted(node, {"gpu-3": XID})
    report(machine, gpu, Health(gpu="3", recovery_action="gpu-reset"))
    both = {"gpu-3": [*XID, "gpu.nvidia.com/recovery-action"]}
    tainted(node, both)
    sick, written = specs(node), versions(node)
    node.driver.kill()
    machine.reset_gpu(gpu)
    report(machine, gpu, Health(gpu="3", recovery_action="gpu-reset"))
    node.driver.start()
    node.driver.wait_log("slices published")
    assert (specs(node), versions(node)) == (sick, written)
    report(machine, gpu, Health(gpu="3", recovery_action="none"))
    untainted(node)
    assert contents(node) == before
    assert len(node.driver.events("gpu healed")) == 2


def test_after_a_reset_an_admin_clears_one_gpu_of_an_old_driver_while_it_runs(
    node: ProcessNode, capsys: pytest.CaptureFixture[str]
) -> None:
    machine = machine_of(node, "t4x4", KNOWS_NO_RECOVERY)
    start(node, 4)
    gpu = uuid_of(machine, 2)
    machine.emit_xid(gpu, 62)
    machine.emit_xid(uuid_of(machine, 1), 62)
    tainted(node, {"gpu-1": XID, "gpu-2": XID})
    with pytest.raises(SetupError, match="has NVML open"):
        machine.reset_gpu(gpu)
    ask = ["--kubelet-plugins-directory-path", str(node.place.plugins)]
    assert main(["health", "release", *ask]) == 0

    def is_reset() -> bool:
        with suppress(SetupError):  # the driver looks at that moment
            machine.reset_gpu(gpu)
            return True
        return False

    eventually(is_reset, "the reset")
    report(machine, gpu, Health(gpu="2", uncorrected=1))
    looked(machine, 6)
    assert node.taints()["gpu-2"] == XID
    capsys.readouterr()
    assert main(["health", "clear", "gpu-2", *ask]) == 0
    cleared, still = capsys.readouterr().out.splitlines()
    assert cleared == "gpu-2: cleared: XID 62: its power management unit halted"
    assert still.startswith("gpu-2: still warning: errors of its memory")
    tainted(node, {"gpu-1": XID})
    assert main(["health", "clear", "2", *ask]) == 1
    assert "no XID is recorded for '2', only for gpu-1;" in capsys.readouterr().err


def test_what_a_mig_device_has_taints_it_alone_until_it_is_gone(node: ProcessNode) -> None:
    machine = machine_of(node, "h100x8", KNOWS_NO_RECOVERY)
    gpu = uuid_of(machine, 0)
    machine.set_mig_mode(gpu, enabled=True)
    mine = machine.create_mig(gpu, "2g.20gb", 0)
    machine.create_mig(gpu, "1g.10gb", 4)
    node.driver.start()
    node.driver.wait_log("driver started")
    eventually(lambda: node.api.objects(SLICES), "slices")
    wait_until_heard(node, 8)
    node.driver.wait_log("slices published")  # 195 devices, which takes a while
    raise_xid_on_device(machine, mine, 62)
    tainted(node, {"gpu-0-mig-2g20gb-14-0": XID})
    looked(machine, 8)  # which takes longer than what heals
    assert node.taints() == {"gpu-0-mig-2g20gb-14-0": XID}
    machine.destroy_mig(mine)
    untainted(node)


def test_without_taints_a_sick_gpu_is_left_out_until_it_is_well(
    tmp_path: Path, api: ApiServer
) -> None:
    api.store.rules.append(without_device_fields("taints"))
    node = ProcessNode(tmp_path, api)
    machine = machine_of(node, "t4x4")
    start(node, 4)
    try:
        before = contents(node)
        report(machine, uuid_of(machine, 1), Health(gpu="1", recovery_action="gpu-reset"))
        node.wait_devices(3)
        assert "gpu-1" not in node.devices()
        withheld = node.driver.wait_log("gpu withheld")
        assert "DRADeviceTaints" in withheld["reason"]
        report(machine, uuid_of(machine, 1), Health(gpu="1", recovery_action="none"))
        node.wait_devices(4)
        assert contents(node) == before
    finally:
        node.driver.kill()


def test_effects_are_as_they_are_set(node: ProcessNode) -> None:
    machine = machine_of(node, "t4x4", KNOWS_NO_RECOVERY)
    node.driver.env |= {
        "TAINT_WARNING": "None",
        "TAINT_FAULT": "NoExecute",
        "TAINT_LOSS": "off",
        "ADDITIONAL_XIDS_TO_IGNORE": "119",
    }
    start(node, 4)
    for minor, xid in ((0, 92), (1, 62), (2, 79), (3, 119)):
        machine.emit_xid(uuid_of(machine, minor), xid)
    tainted(node, {"gpu-0": XID, "gpu-1": XID})
    effects = {
        device["name"]: device["taints"][0]["effect"]
        for spec in specs(node)
        for device in spec["devices"]
        if device.get("taints")
    }
    assert effects == {"gpu-0": "None", "gpu-1": "NoExecute"}
    record = node.place.data / FILE
    eventually(lambda: len(json.loads(record.read_text())["payload"]["gpus"]) == 3, "the third")


def test_xids_of_programs_are_told_as_nvidias_driver_tells_them_where_its_gate_is_on(
    node: ProcessNode,
) -> None:
    machine = machine_of(node, "t4x4")
    node.driver.env |= {
        "FEATURE_GATES": "NVMLDeviceHealthCheck=true",
        "ADDITIONAL_XIDS_TO_IGNORE": "119",
    }
    start(node, 4)
    for minor, xid in ((3, 63), (1, 43), (2, 119)):
        machine.emit_xid(uuid_of(machine, minor), xid)
    tainted(node, {"gpu-1": XID, "gpu-2": XID})
    told = {
        device["name"]: [(taint["value"], taint["effect"]) for taint in device["taints"]]
        for spec in specs(node)
        for device in spec["devices"]
        if device.get("taints")
    }
    assert told == {"gpu-1": [("43", "None")], "gpu-2": [("119", "None")]}
    assert not (node.place.data / FILE).exists()
    assert node.api.objects("events") == []
