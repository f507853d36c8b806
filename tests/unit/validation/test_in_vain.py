"""What `validate` says of manifests that a cluster takes, and that do not do what they seem to."""

import json
from typing import Any

import pytest
import yaml

from dra_driver.admin.inspect.slices import OF_DEFAULTS, slices_of
from dra_driver.admin.validate.findings import check_manifest
from dra_driver.admin.validate.selectors import published
from dra_driver.simulator.nodes import inventory_of

OWN = "device.attributes['gpu.nvidia.com']"
OF_ITS_OWN = (
    f"{OWN}.deviceID == '0x2330' && !{OWN}.iommuFDEnabled && "
    "device.capacity['gpu.nvidia.com'].addressableMemory.compareTo(quantity('1Gi')) > 0"
)
GPU = "nvidia.com/gpu"
SEVERAL = (
    "version: v1\nsharing: {mps: {failRequestsGreaterThanOne: false, "
    "resources: [{name: gpu, replicas: 4, devices: %s}]}}\n"
)
SHARED = "version: v1\nsharing: {timeSlicing: {resources: [{name: nvidia.com/gpu, %s: 4}]}}\n"


def said(*things: Any) -> list[tuple[str, str]]:
    report = check_manifest("---\n".join(map(yaml.safe_dump, things)))
    return [(finding.severity, finding.text) for finding in report.findings]


def pod(limits: dict[str, int], **spec: Any) -> dict[str, Any]:
    container = {"name": "c", "image": "x", "resources": {"limits": limits}}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "p"},
        "spec": {"containers": [container], **spec},
    }


def claim(*configs: dict[str, Any], selector: str = "", **request: Any) -> dict[str, Any]:
    exactly: dict[str, Any] = {"deviceClassName": "gpu.nvidia.com", **request}
    if selector:
        exactly["selectors"] = [{"cel": {"expression": selector}}]
    devices: dict[str, Any] = {"requests": [{"name": "gpu", "exactly": exactly}]}
    if configs:
        devices["config"] = list(configs)
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": "c"},
        "spec": {"devices": devices},
    }


def config(*requests: str, kind: str = "GpuConfig") -> dict[str, Any]:
    parameters = {"apiVersion": "resource.nvidia.com/v1beta1", "kind": kind}
    named = {"requests": list(requests)} if requests else {}
    return {**named, "opaque": {"driver": "gpu.nvidia.com", "parameters": parameters}}


# Pods


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("alpha.kubernetes.io/nvidia-gpu", "Kubernetes before 1.11 used this name; ask for"),
        ("nvidia.com/gpus", "the name is nvidia.com/gpu"),
        ("nvidia.com/GPU", "the name is nvidia.com/gpu"),
        ("nvidia.com/GRID_A100-5C", "this is a vGPU for virtual machines"),
    ],
)
def test_an_unserved_resource_name_is_reported(name: str, text: str) -> None:
    ((severity, found),) = said(pod({name: 1}))
    assert severity == "warning"
    assert text in found


@pytest.mark.parametrize(
    "name", [GPU, "nvidia.com/gpu.shared", "nvidia.com/mig-1g.5gb", "example.com/own"]
)
def test_names_that_may_be_served_are_not_reported(name: str) -> None:
    assert said(pod({name: 1})) == []


def test_a_pod_that_names_its_node_gets_no_devices() -> None:
    ((severity, found),) = said(pod({GPU: 1}, nodeName="n1"))
    assert severity == "warning"
    assert f"the pod bypasses the scheduler, so nothing allocates {GPU}" in found
    assert "nodeSelector or affinity on kubernetes.io/hostname" in found
    by_claim = pod({}, nodeName="n1", resourceClaims=[{"name": "c", "resourceClaimName": "c"}])
    assert any("nothing allocates its claims" in text for _, text in said(by_claim))
    assert said(pod({"cpu": 1}, nodeName="n1")) == []
    assert said({**pod({GPU: 1}, nodeName="n1"), "status": {"phase": "Running"}}) == []


# Selectors


@pytest.mark.parametrize(
    ("selector", "severity", "text"),
    [
        ("device.driver == 'gpu.nvidia.com' &&", "error", "not valid CEL, from 'the end' at 37"),
        ("device.driver = 'x'", "error", "this is not valid CEL, from the character '='"),
        (f"{OWN}.memory >= quantity('40Gi')", "error", "compareTo(quantity('40Gi')) >= 0`"),
        ("1 > quantity('1')", "error", "compare quantities: write `a.compareTo(b) > 0`"),
        (f"{OWN}.memory >= 80", "warning", "memory is a capacity, not an attribute: write"),
        (f"{OWN}.index == 0", "warning", "no device has an attribute index"),
        (f"{OWN}.cudaComputeCapability >= 8.0", "warning", "compareTo(semver('8.0.0')) >= 0`"),
        (f"{OWN}.profile == '1g.5gb'", "warning", "this fails on each device of this driver"),
    ],
)
def test_a_selector_that_selects_nothing_gets_advice(
    selector: str, severity: str, text: str
) -> None:
    ((found, said_of_it),) = said(claim(selector=selector))
    assert found == severity
    assert text in said_of_it


@pytest.mark.parametrize(
    "selector",
    [
        f"{OWN}.productName == 'NVIDIA H200'",
        f"{OWN}.?profile.orValue('') == '1g.5gb'",
        "device.capacity['gpu.nvidia.com'].memory.compareTo(quantity('40Gi')) >= 0",
        f"{OWN}.cudaComputeCapability.compareTo(semver('8.0.0')) >= 0",
        "device.attributes['resource.kubernetes.io'].pcieRoot == 'pci0000:00'",
        "ip('10.0.0.1').family() == 4",
    ],
)
def test_a_selector_that_may_select_something_is_fine(selector: str) -> None:
    assert said(claim(selector=selector)) == []


def test_a_gpu_for_a_virtual_machine_has_attributes_of_its_own() -> None:
    for selector, is_told in ((f"{OWN}.profile == '1g.10gb'", True), (OF_ITS_OWN, False)):
        asked = claim(selector=selector, deviceClassName="vfio.gpu.nvidia.com")
        assert ["fails on each device" in text for _, text in said(asked)] == [True] * is_told


def test_selectors_of_other_drivers_are_left_alone() -> None:
    other = claim(selector="device.attributes['nic.example.com'].speed > 10")
    other["spec"]["devices"]["requests"][0]["exactly"]["deviceClassName"] = "nic.example.com"
    assert said(other) == []


def test_the_devices_that_selectors_are_tried_on_have_what_the_driver_publishes() -> None:
    found: dict[str, tuple[set[str], set[str]]] = {}
    for profile in ("h100x8", "h100x8-mig"):
        for one in slices_of(inventory_of(profile), "n1", OF_DEFAULTS):
            for device in one["spec"].get("devices", ()):
                kind = device["attributes"]["type"]["string"]
                names = found.setdefault(kind, (set(), set()))
                names[0].update(device["attributes"])
                names[1].update(device["capacity"])
    assert found.keys() == {"gpu", "mig"}
    for kind, (attributes, capacities) in found.items():
        assert attributes <= published()[kind].attributes.keys()
        assert capacities == published()[kind].capacity.keys()


# Claims


def test_a_part_of_a_device_needs_a_setting() -> None:
    part = {"capacity": {"requests": {"memory": "10Gi"}}}
    one = {"name": "mig", "deviceClassName": "mig.nvidia.com", **part}
    either = claim()
    either["spec"]["devices"]["requests"] = [{"name": "gpu", "firstAvailable": [one]}]
    for asked in (claim(**part), either):
        ((severity, found),) = said(asked)
        assert severity == "warning"
        assert "--consumable-shares" in found


def test_a_capacity_with_the_drivers_name_is_found_only_by_newer_schedulers() -> None:
    asked = {"gpu.nvidia.com/memory": "10Gi", "cores": "1"}
    _, (severity, found) = said(claim(capacity={"requests": asked}))
    assert severity == "warning"
    assert 'no device has "gpu.nvidia.com/memory"' in found


@pytest.mark.parametrize(
    ("first", "second", "is_told"),
    [
        (config(), config(), True),
        (config(), config("gpu"), True),
        (config("gpu"), config(), True),
        (config("gpu"), config("gpu", kind="MigDeviceConfig"), False),
    ],
)
def test_a_config_overridden_by_another_is_reported(
    first: dict[str, Any], second: dict[str, Any], is_told: bool
) -> None:
    texts = [
        text for _, text in said(claim(first, second)) if "a later GpuConfig of this claim" in text
    ]
    assert len(texts) == is_told
    assert all(text.startswith("spec.devices.config[0].opaque") for text in texts)


# Share configs


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (
            "version: v1\nflags: {renameByDefault: true}\n",
            "did you mean sharing.timeSlicing.rename",
        ),
        ("version: v1\nimex: {required: true}\n", "imex: has no effect"),
        ("version: v1\nflags: {plugin: {passDeviceSpecs: true}}\n", "flags.plugin.passDeviceSpecs"),
        (SHARED.replace(": 4", ": 1") % "replicas", "one replica is the whole device"),
        (SEVERAL % "all", "use such requests only on nodes with one divided GPU"),
    ],
)
def test_fields_without_effect_give_a_warning(text: str, told: str) -> None:
    ((severity, found),) = [
        (finding.severity, finding.text) for finding in check_manifest(text).findings
    ]
    assert severity == "warning"
    assert told in found


@pytest.mark.parametrize("text", [SEVERAL % "1", SEVERAL.replace("false", "true") % "all"])
def test_requests_that_stay_on_one_gpu_give_no_warning(text: str) -> None:
    told = [finding.text for finding in check_manifest(text).findings]
    assert not any("belong on nodes" in one for one in told)


def test_share_configs_in_values_releases_and_literals_are_found() -> None:
    wrong = SHARED % "replica"
    values = {"config": {"map": {"small": wrong}}}
    release = {"apiVersion": "helm.toolkit.fluxcd.io/v2", "kind": "HelmRelease", "spec": values}
    generator = {"configMapGenerator": [{"name": "s", "literals": [f"default={wrong}"]}]}
    kustomization = {"kind": "Kustomization", **generator}
    for one in (values, release, kustomization):
        assert any('did you mean "replicas"?' in text for _, text in said(one)), one


def test_a_share_config_of_one_line_in_a_config_map_is_found() -> None:
    resources = [{"name": GPU, "replica": 4}]
    config = {"version": "v1", "sharing": {"mps": {"resources": resources}}}
    data = {"default": json.dumps(config)}
    found = said({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c"}, "data": data})
    assert any('did you mean "replicas"?' in text for _, text in found)


def test_fields_that_lost_their_indent_get_advice() -> None:
    opaque = {"driver": "gpu.nvidia.com", "parameters": None, "sharing": {}}
    wanted = 'spec.devices.config[0].opaque: unknown field "sharing": it belongs under `parameters`'
    assert ("error", wanted) in said(claim({"opaque": opaque}))
    resources = [{"name": GPU, "replicas": 4}]
    share = {"version": "v1", "sharing": {"mps": None, "resources": resources}}
    wanted = '; if it belongs to "mps", which is empty, indent it further'
    assert [text.endswith(wanted) for _, text in said(share) if "unknown field" in text] == [True]


def test_a_way_of_sharing_that_is_null_is_left_out_where_there_is_another() -> None:
    other = {"timeSlicing": {"resources": [{"name": GPU, "replicas": 4}]}}
    assert said({"version": "v1", "sharing": {"mps": None, **other}}) == []
    ((severity, _),) = said({"version": "v1", "sharing": {"mps": None}})
    assert severity == "error"
