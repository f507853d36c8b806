import json

import pytest
import yaml

from bad_configs import BAD_CONFIGS
from dra_driver.admin.validate.findings import check_manifest

TEMPLATE = """\
apiVersion: v1
kind: Pod
metadata: {name: pod}
---
apiVersion: resource.k8s.io/v1
kind: ResourceClaimTemplate
metadata:
  name: shared
spec:
  spec:
    devices:
      requests:
      - name: gpu
        exactly: {deviceClassName: gpu.nvidia.com}
      config:
      - opaque:
          driver: gpu.nvidia.com
          parameters:
            apiVersion: resource.nvidia.com/v1beta1
            kind: GpuConfig
            sharing:
              strategy: TimeSlice
"""


def claim(parameters: str, driver: str = "gpu.nvidia.com") -> str:
    config = f'{{"opaque": {{"driver": "{driver}", "parameters": {parameters}}}}}'
    return (
        '{"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", '
        f'"metadata": {{"name": "c"}}, "spec": {{"devices": {{"config": [{config}]}}}}}}'
    )


def test_every_bad_config_is_found_with_the_driver_s_own_error() -> None:
    before = "spec.devices.config[0].opaque.parameters"
    for bad in BAD_CONFIGS:
        report = check_manifest(claim(bad.json))
        texts = [finding.text.removeprefix(before).lstrip(": .") for finding in report.findings]
        assert "; ".join(texts) == bad.error
        assert all(finding.text.startswith(before) for finding in report.findings)
        assert report.configs == 1


def test_an_error_stands_where_the_wrong_field_stands() -> None:
    (finding,) = check_manifest(TEMPLATE).findings
    assert (finding.line, finding.column) == (22, 15)
    assert finding.subject == "ResourceClaimTemplate shared"
    assert finding.text == (
        "spec.spec.devices.config[0].opaque.parameters.sharing.strategy: must be TimeSlicing or "
        'MPS, not "TimeSlice"'
    )


def test_a_missing_field_stands_where_it_should_be() -> None:
    (finding,) = check_manifest(TEMPLATE.replace("strategy: TimeSlice", "mpsConfig: {}")).findings
    assert (finding.line, finding.column) == (21, 13)
    assert finding.text.endswith('missing field "sharing.strategy": must be TimeSlicing or MPS')


def misplaced(kind: str, *requests: str, named: str = "", also: str = "") -> list[str]:
    """What is said of a claim with a config of a kind, and its requests as YAML."""
    text = """\
apiVersion: resource.k8s.io/v1
kind: ResourceClaim
metadata: {name: c}
spec:
  devices:
    requests:
"""
    text += "".join(f"    - {request}\n" for request in requests) + "    config:\n"
    for one in filter(None, (kind, also)):
        text += f"    - requests: [{named}]\n      opaque:\n        driver: gpu.nvidia.com\n"
        text += "        parameters:\n          apiVersion: resource.nvidia.com/v1beta1\n"
        text += f"          kind: {one}\n"
    return [
        f"{finding.line}:{finding.column} {finding.text}"
        for finding in check_manifest(text).findings
    ]


G = "{name: g, exactly: {deviceClassName: gpu.nvidia.com}}"
M = "{name: m, exactly: {deviceClassName: mig.nvidia.com}}"
V = "{name: v, exactly: {deviceClassName: vfio.gpu.nvidia.com}}"


def test_a_config_that_is_for_other_devices_than_its_request_gets_is_found() -> None:
    text = (
        "spec.devices.config[0].opaque.parameters.kind: a GpuConfig has no effect on the devices "
        "of request m, which asks for DeviceClass mig.nvidia.com: write MigDeviceConfig"
    )
    assert misplaced("GpuConfig", M) == [f"14:11 {text}"]
    assert misplaced("GpuConfig", M, named="m") == [f"14:11 {text}"]
    assert misplaced("GpuConfig", G, M, named="g, m") == [f"15:11 {text}"]
    (found,) = misplaced("MigDeviceConfig", G)
    assert found.endswith("request g, which asks for DeviceClass gpu.nvidia.com: write GpuConfig")
    (found,) = misplaced("GpuConfig", V)
    assert found.endswith("DeviceClass vfio.gpu.nvidia.com: write VfioDeviceConfig")
    both = misplaced("VfioDeviceConfig", M, also="GpuConfig")
    assert [text.split(": a ")[1].split()[0] for text in both] == ["VfioDeviceConfig", "GpuConfig"]
    assert all(text.endswith("mig.nvidia.com: write MigDeviceConfig") for text in both)


def test_the_second_of_two_equal_keys_is_pointed_at() -> None:
    report = check_manifest(TEMPLATE.replace("TimeSlice", "MPS") + "              strategy: MPS\n")
    (finding,) = report.findings
    assert (finding.line, finding.column) == (23, 15)
    assert finding.text.endswith('parameters: duplicate field "sharing.strategy"')


def test_device_classes_and_lists_are_checked() -> None:
    parameters = {"apiVersion": "resource.nvidia.com/v1beta1", "kind": "GpuConfg"}
    device_class = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "DeviceClass",
        "metadata": {"name": "mine"},
        "spec": {"config": [{"opaque": {"driver": "gpu.nvidia.com", "parameters": parameters}}]},
    }
    inner = {"apiVersion": "resource.k8s.io/v1", "kind": "DeviceClassList", "items": [device_class]}
    pod = {"apiVersion": "v1", "kind": "Pod"}
    (finding,) = check_manifest(
        yaml.safe_dump({"apiVersion": "v1", "kind": "List", "items": [pod, inner]})
    ).findings
    assert finding.subject == "DeviceClass mine"
    assert finding.text.startswith(
        "items[1].items[0].spec.config[0].opaque.parameters: "
        'unknown kind "GpuConfg": did you mean "GpuConfig"?'
    )


@pytest.mark.parametrize(
    "text",
    [
        "",
        "apiVersion: apps/v1\nkind: Deployment\nspec: {config: [{opaque: {driver: x}}]}",
        claim('{"sharings": 1}', driver="net.example.com"),
        claim(
            '{"apiVersion": "resource.nvidia.com/v1beta1", "kind": "ComputeDomainChannelConfig"}',
            driver="compute-domain.nvidia.com",
        ),
    ],
)
def test_other_drivers_configs_are_skipped(text: str) -> None:
    report = check_manifest(text)
    assert report.findings == ()
    assert report.configs == 0


def test_our_config_under_another_driver_s_name_is_pointed_at() -> None:
    good = json.dumps({"apiVersion": "resource.nvidia.com/v1beta1", "kind": "GpuConfig"})
    (finding,) = check_manifest(claim(good, driver="gpu.nvidia.con")).findings
    assert finding.text == (
        'spec.devices.config[0].opaque.driver: a GpuConfig for driver "gpu.nvidia.con" has no '
        "effect: write gpu.nvidia.com"
    )


def test_a_config_without_parameters_is_refused() -> None:
    text = (
        "apiVersion: resource.k8s.io/v1\nkind: ResourceClaim\n"
        "spec: {devices: {config: [{opaque: {driver: gpu.nvidia.com}}]}}"
    )
    (finding,) = check_manifest(text).findings
    assert finding.text.endswith("a config must be a JSON object with apiVersion and kind")


def test_errors_before_a_broken_document_are_kept() -> None:
    first, second = check_manifest(TEMPLATE + "---\na: [\n").findings
    assert first.line == 22
    assert second.line == 25
    assert second.text.startswith("not valid YAML: ")
