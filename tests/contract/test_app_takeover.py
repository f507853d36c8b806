"""The whole driver as a process, on a node that NVIDIA's own DRA driver had prepared."""

from pathlib import Path

import pytest
from testbed.kubelet import ClaimName, KubeletClient

from dra_driver.simulator.machine import Machine
from worlds.nvidia import checkpoint
from worlds.nvidia_files import Left
from worlds.process import SLICES, ProcessNode, eventually, process_node

MIG = "gpu-0-mig-1g10gb-19-0"
WHOLE = {f"gpu-{minor}" for minor in range(8)}
PARTS = {"gpu-1-mig-1g10gb-19-0", "gpu-1-mig-3g40gb-9-4"}

node = process_node()


def prepared_by_nvidia(node: ProcessNode, machine: Machine) -> None:
    """Their checkpoint, CDI spec and MIG device for one claim."""
    gpu = next(gpu for gpu in machine.gpus if gpu.minor == 0)
    machine.set_mig_mode(gpu.uuid, enabled=True)
    machine.create_mig(gpu.uuid, "1g.10gb", 0)
    (live,) = machine.mig_devices(gpu.uuid)
    concrete = {
        "parentMinor": 0,
        "giId": live.gpu_instance,
        "ciId": live.compute_instance,
        "migUUID": live.uuid,
        "parentUUID": gpu.uuid,
    }
    told = {
        "Requests": ["gpu"],
        "PoolName": node.place.node,
        "DeviceName": MIG,
        "CDIDeviceIDs": [f"k8s.gpu.nvidia.com/claim=uid-theirs-{MIG}"],
    }
    result = {"request": "gpu", "driver": "gpu.nvidia.com", "pool": node.place.node, "device": MIG}
    claim = {
        "checkpointState": "PrepareCompleted",
        "status": {"allocation": {"devices": {"results": [result]}}},
        "preparedDevices": [
            {
                "devices": [{"gpu": None, "mig": {"concrete": concrete, "device": told}}],
                "configState": {"mpsControlDaemonID": ""},
            }
        ],
    }
    node.place.data.mkdir(parents=True)
    data = checkpoint({"uid-theirs": claim}, boot_id=machine.boot_id)
    (node.place.data / "checkpoint.json").write_bytes(data)
    node.place.cdi_root.mkdir()
    spec(node).write_text(f"kind: k8s.gpu.nvidia.com/claim\ndevices: [name: uid-theirs-{MIG}]\n")


def spec(node: ProcessNode) -> Path:
    return node.place.cdi_root / "k8s.gpu.nvidia.com-claim_uid-theirs.yaml"


def test_its_claims_are_answered_for_from_the_first_call_on_and_taken_back(
    node: ProcessNode,
) -> None:
    machine = node.install_gpus("h100x8")
    prepared_by_nvidia(node, machine)
    text = spec(node).read_text()
    claim = node.allocate("theirs", MIG)
    node.driver.start()
    with KubeletClient(node.place.registry) as kubelet:
        kubelet.register(driver=node.driver)
        (device,) = kubelet.must_prepare(claim)["uid-theirs"].devices
        assert list(device.cdi_device_ids) == [f"k8s.gpu.nvidia.com/claim=uid-theirs-{MIG}"]
        assert node.place.records() == ["uid-theirs.json"]
        assert spec(node).read_text() == text
        name = "name found for a claim taken over"
        assert node.driver.wait_log(name)["claim"] == "default/theirs"
        kubelet.must_unprepare(claim)
    assert node.place.records() == []
    assert not list(node.place.cdi_root.iterdir())
    eventually(lambda: not any(one.mig_mode for one in machine.status()), "MIG mode to be off")
    names = {path.name for path in node.place.data.iterdir()}
    assert "checkpoint.json" not in names
    assert "checkpoint.json.taken-over" in names


@pytest.mark.parametrize("version", ["1.36", "1.37"])
def test_under_the_default_what_was_made_stays_published_and_the_gpu_is_whole_after_it(
    node: ProcessNode, version: str
) -> None:
    machine = node.install_gpus("h100x8")
    node.api.kubernetes = version
    claims = left_by_dynamic_mig(node, machine)
    node.driver.start()
    with KubeletClient(node.place.registry) as kubelet:
        kubelet.register(driver=node.driver)
        eventually(lambda: published(node) == WHOLE - {"gpu-1"} | PARTS, "its MIG devices alone")
        assert node.api.seen("update", SLICES) == []  # nothing else was published before
        kubelet.must_prepare(*claims)
        kubelet.must_unprepare(*claims)
    eventually(lambda: published(node) == WHOLE, "the GPU as a whole")
    assert not any(one.mig_mode for one in machine.status())
    assert node.place.left_over() == []


def test_claims_on_gpus_that_are_left_out_are_taken_over_and_taken_back_too(
    node: ProcessNode,
) -> None:
    machine = node.install_gpus("h100x8")
    claims = left_by_dynamic_mig(node, machine)
    node.driver.env["EXCLUDE_GPUS"] = "*"
    node.driver.start()
    with KubeletClient(node.place.registry) as kubelet:
        kubelet.register(driver=node.driver)
        kubelet.must_prepare(*claims)
        assert len(node.place.records()) == len(claims)
        said = [event["gpu"] for event in node.driver.events("gpu left out")]
        assert sum("; a claim that already has it" in line for line in said) == 3
        assert len(said) == 8
        kubelet.must_unprepare(*claims)
    eventually(lambda: not any(one.mig_mode for one in machine.status()), "MIG mode to be off")
    assert published(node) == set()
    assert node.place.left_over() == []


def left_by_dynamic_mig(node: ProcessNode, machine: Machine) -> list[ClaimName]:
    """Files, MIG devices and claims of that driver with its gate DynamicMIG."""
    left = Left("dynamic-mig")
    left.restore_machine(machine)
    left.restore_files(node.place.data, node.place.cdi_root)
    for claim in left.claims:
        del claim["metadata"]["resourceVersion"]
        node.api.put(claim)
    return [
        ClaimName(namespace=ref.namespace, name=ref.name, uid=ref.uid) for ref in left.refs.values()
    ]


def published(node: ProcessNode) -> set[str]:
    return {
        device["name"]
        for one in node.api.objects(SLICES)
        for device in one["spec"].get("devices", ())
    }
