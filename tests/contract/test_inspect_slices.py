"""`dra-driver inspect --slices`: slices without a cluster or a GPU, as people run it."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from testbed.apiserver.rules import check_slice

from dra_driver.cli import main
from dra_driver.devices.names import DRIVER_NAME
from dra_driver.simulator.nodes import inventory_of, on_node
from dra_driver.slices.pool import build_slices
from dra_driver.slices.project import projection
from dra_driver.slices.publish.writes import Create, owner_reference, writes_for

Printed = Callable[..., list[Any]]


@pytest.fixture
def printed(capsys: pytest.CaptureFixture[str]) -> Printed:
    def run(*words: str) -> list[Any]:
        assert main(["inspect", "--slices", *words]) == 0
        shown = capsys.readouterr()
        assert shown.err == ""
        return list(yaml.load_all(shown.out, Loader=yaml.CSafeLoader))

    return run


def devices(slices: list[Any]) -> list[str]:
    return [device["name"] for one in slices for device in one["spec"].get("devices", [])]


def uuids(slices: list[Any], attribute: str) -> set[str]:
    devices = [device for one in slices for device in one["spec"].get("devices", [])]
    found = [device["attributes"].get(attribute) for device in devices]
    return {value["string"] for value in found if value}


def test_they_are_what_the_driver_creates_on_a_node_that_has_none(printed: Printed) -> None:
    found = printed("--profile=h100x8", "--node-name=n1", "--mig=on-demand")

    published = projection(on_node(inventory_of("h100x8"), "n1"))
    pool = build_slices(
        published.devices, driver=DRIVER_NAME, node_name="n1", counter_sets=published.counter_sets
    )
    writes = writes_for(pool, (), owner=owner_reference(name="n1", uid="made-up"))
    created: list[Any] = [write.body for write in writes if isinstance(write, Create)]
    for body in created:
        del body["metadata"]["ownerReferences"]
    assert found == created
    assert len(found) == 5


@pytest.mark.parametrize("profile", ["mixed", "rtxpro6000x8"])
def test_an_api_server_takes_them_as_printed(printed: Printed, profile: str) -> None:
    for one in printed(f"--profile={profile}", "--node-name=n1"):
        check_slice(one, None)


@pytest.mark.parametrize("setting", ["memory", "4"])
@pytest.mark.parametrize("profile", ["h100x8", "t4x4"])
def test_with_parts_by_capacity_an_api_server_takes_them_too(
    printed: Printed, profile: str, setting: str
) -> None:
    words = (f"--profile={profile}", "--node-name=n1", f"--consumable-shares={setting}")
    found = printed(*words)
    for one in found:
        check_slice(one, None)
    there = [device for one in found for device in one["spec"].get("devices", [])]
    shared = [device for device in there if device.get("allowMultipleAllocations")]
    assert {device["name"] for device in shared} == {
        device["name"] for device in there if device["attributes"]["type"] == {"string": "gpu"}
    }
    for device in shared:
        assert all("requestPolicy" in capacity for capacity in device["capacity"].values())
        assert ("shares" in device["capacity"]) == setting.isdecimal()


def test_many_nodes_have_names_and_uuids_of_their_own(printed: Printed) -> None:
    found = printed("--profile=h100x8", "--node-name=pool", "--count=2", "--mig=on-demand")
    nodes = {
        name: [one for one in found if one["spec"]["nodeName"] == name]
        for name in ("pool-0", "pool-1")
    }
    assert sum(len(slices) for slices in nodes.values()) == len(found)
    assert len({one["metadata"]["name"] for one in found}) == len(found)
    first, second = (uuids(slices, "uuid") for slices in nodes.values())
    assert (len(first), len(second), first & second) == (8, 8, set())
    for slices in nodes.values():
        assert uuids(slices, "parentUUID") == uuids(slices, "uuid")


@pytest.mark.parametrize(("profiles", "most"), [("", 210_000), ("1g.10gb,3g.40gb", 90_000)])
def test_a_node_of_eight_h100_costs_the_api_server_so_much(
    printed: Printed, profiles: str, most: int
) -> None:
    words = ("--profile=h100x8", "--node-name=n1", "--mig=on-demand", f"--mig-profiles={profiles}")
    specs = [json.dumps(one["spec"], separators=(",", ":")) for one in printed(*words)]
    assert sum(map(len, specs)) < most


def test_the_mig_offer_takes_the_drivers_settings(printed: Printed) -> None:
    words = ("--profile=h100x8", "--node-name=n1")
    whole = devices(printed(*words, "--mig=existing"))
    assert whole == [f"gpu-{minor}" for minor in range(8)]
    assert devices(printed(*words)) == whole, "no GPU of it is in MIG mode"
    some = devices(printed(*words, "--mig=on-demand", "--mig-profiles=1g.10gb,3g.40gb"))
    assert {name.split("-")[3] for name in some if "-mig-" in name} == {"1g10gb", "3g40gb"}


def test_the_drivers_node_name_is_not_used(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NODE_NAME", "this-node")
    assert main(["inspect", "--slices", "--profile=t4x4"]) == 2
    assert "--node-name is missing" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--template=karpenter",), "give --profile, or a cloud's --instance-type"),
        (("--driver-version=580.1",), "give --profile, or a cloud's --instance-type"),
        (("--cdi", "--profile=t4x4"), "--cdi is only for this node"),
        (("--profile=t4x4", "--instance-type=g4dn.xlarge"), "give either --profile, or"),
        (("--profile=t4x4", "--template=karpenter", "--count=2"), "a template is for one node"),
    ],
)
def test_contradictory_words_are_refused(
    words: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["inspect", "--slices", "--node-name=n1", *words]) == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("instance_type", "count", "product"),
    [
        ("p5.4xlarge", 1, "NVIDIA H100 80GB HBM3"),
        ("g4dn.metal", 8, "Tesla T4"),
        ("p3.8xlarge", 4, "Tesla V100-SXM2-16GB"),
        ("a2-megagpu-16g", 16, "NVIDIA A100-SXM4-40GB"),
        ("Standard_NC24s_v3", 4, "Tesla V100-PCIE-16GB"),
        ("BM.GPU.B200.8", 8, "NVIDIA B200"),
        ("g5.48xlarge", 8, "NVIDIA A10G"),
        ("g6e.12xlarge", 4, "NVIDIA L40S"),
    ],
)
def test_a_machine_type_has_the_gpus_that_its_cloud_documents(
    printed: Printed, instance_type: str, count: int, product: str
) -> None:
    words = (f"--instance-type={instance_type}", "--node-name=n1", "--mig=off", "-o", "json")
    (listed,) = printed(*words)
    assert (listed["apiVersion"], listed["kind"]) == ("v1", "List")
    for one in listed["items"]:
        check_slice(one, None)
    there = [device for item in listed["items"] for device in item["spec"].get("devices", [])]
    assert [device["attributes"]["productName"]["string"] for device in there] == [product] * count
    buses = {device["attributes"]["resource.kubernetes.io/pciBusID"]["string"] for device in there}
    assert len(buses) == count


def test_a_template_says_what_every_node_of_the_type_has_and_nothing_else(printed: Printed) -> None:
    words = ("--instance-type=p5.48xlarge", "--mig=off", "--template=cluster-autoscaler")
    found = printed(*words)
    for one in found:
        check_slice(one, None)
        assert one["spec"]["nodeName"] == one["spec"]["pool"]["name"] == "template"
    there = [device for one in found for device in one["spec"].get("devices", [])]
    assert [device["name"] for device in there] == [f"gpu-{minor}" for minor in range(8)]
    assert there[0]["attributes"] == {
        "type": {"string": "gpu"},
        "productName": {"string": "NVIDIA H100 80GB HBM3"},
        "brand": {"string": "Nvidia"},
        "architecture": {"string": "Hopper"},
        "cudaComputeCapability": {"version": "9.0.0"},
    }
    assert there[0]["capacity"]["memory"] == {"value": "81559Mi"}


def test_karpenters_template_has_partitions_counters_and_what_devices_will_share(
    printed: Printed,
) -> None:
    mig = ("--mig=on-demand", "--mig-profiles=3g.40gb")
    (resources,) = printed("--instance-type=p5.48xlarge", *mig, "--template=karpenter")
    templates = resources["resourceSliceTemplates"]
    assert {template["driver"] for template in templates} == {DRIVER_NAME}
    assert {template["pool"]["name"] for template in templates} == {"p5.48xlarge"}
    # Karpenter leaves out the devices of a template that has counter sets too.
    assert [sorted(template.keys() & {"devices", "sharedCounters"}) for template in templates] == [
        ["sharedCounters"],
        *[["devices"]] * (len(templates) - 1),
    ]
    there = {
        device["name"]: device for template in templates for device in template.get("devices", [])
    }
    assert all("consumesCounters" in device for device in there.values())
    assert all(
        device["attributes"].keys().isdisjoint({"uuid", "parentUUID"}) for device in there.values()
    )
    of_one_gpu = [
        {device["device"] for device in binding["devices"]}
        for binding in resources["attributeBindings"]
        if binding["attribute"] == "gpu.nvidia.com/parentUUID"
    ]
    assert sorted(map(sorted, of_one_gpu)) == [
        [f"gpu-{minor}-mig-3g40gb-9-0", f"gpu-{minor}-mig-3g40gb-9-4"] for minor in range(8)
    ]


def test_an_unknown_machine_type_names_the_known_ones(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", "--slices", "--instance-type=p5.48xlrge", "--node-name=n1"]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(
        "error: no instance type 'p5.48xlrge' is known; did you mean p5.48xlarge"
    )
    assert "GCP: a2-highgpu-1g, " in line


@pytest.mark.parametrize("kind", ["mps", "timeSlicing"])
def test_shares_are_printed_as_a_share_config_says(
    printed: Printed, tmp_path: Path, kind: str
) -> None:
    file = tmp_path / "config.yaml"
    resources = [{"name": "nvidia.com/gpu", "replicas": 10}]
    sharing = {kind: {"failRequestsGreaterThanOne": True, "resources": resources}}
    file.write_text(yaml.safe_dump({"version": "v1", "sharing": sharing}))
    found = printed("--profile=h100x8", "--node-name=n1", f"--share-config={file}")
    for one in found:
        check_slice(one, None)
    assert sum("share" in name for name in devices(found)) == 80
    assert len(devices(found)) == 88


def test_before_1_37_shares_are_printed_alone_unless_both_are_asked_for(
    printed: Printed, tmp_path: Path
) -> None:
    file = tmp_path / "config.yaml"
    resources = [{"name": "nvidia.com/gpu", "replicas": 10}]
    file.write_text(
        yaml.safe_dump({"version": "v1", "sharing": {"timeSlicing": {"resources": resources}}})
    )
    words = ("--profile=h100x8", "--node-name=n1", f"--share-config={file}", "--kubernetes=1.36")
    found = printed(*words)
    assert len(devices(found)) == 80
    assert "sharedCounters" not in str(found)
    both = printed(*words, "--whole-gpus-beside-shares=always")
    assert len(devices(both)) == 88
