"""A claim whose config some cards cannot follow, and that may get such a card, is warned of."""

from pathlib import Path

import pytest
import yaml

from dra_driver.admin.validate.findings import check_manifest

DEMOS = Path(__file__).parents[3] / "manifests" / "demos"
LONG = "sharing: {strategy: TimeSlicing, timeSlicingConfig: {interval: Long}}"
LIMITED = "sharing: {strategy: MPS, mpsConfig: {defaultPinnedDeviceMemoryLimit: 1Gi}}"
CAN = "device.attributes['gpu.nvidia.com'].cudaComputeCapability.compareTo(semver('7.0.0')) >= 0"
BIG = "device.capacity['gpu.nvidia.com'].memory.compareTo(quantity('10Gi')) >= 0"


def claim(
    sharing: str,
    *,
    selector: str = "",
    class_name: str = "gpu.nvidia.com",
    extra: str = "",
    kind: str = "GpuConfig",
) -> str:
    selectors = f', selectors: [{{cel: {{expression: "{selector}"}}}}]' if selector else ""
    return f"""\
apiVersion: resource.k8s.io/v1
kind: ResourceClaim
metadata: {{name: shared}}
spec:
  devices:
    requests:
    - name: gpu
      exactly: {{deviceClassName: {class_name}{selectors}{extra}}}
    config:
    - opaque:
        driver: gpu.nvidia.com
        parameters: {{apiVersion: resource.nvidia.com/v1beta1, kind: {kind}, {sharing}}}
"""


@pytest.mark.parametrize(
    ("sharing", "what"), [(LONG, "the time-slice interval Long"), (LIMITED, "MPS limits")]
)
@pytest.mark.parametrize("selector", ["", BIG])
def test_a_config_that_some_cards_cannot_follow_is_a_warning_with_the_selector(
    sharing: str, what: str, selector: str
) -> None:
    report = check_manifest(claim(sharing, selector=selector))
    (found,) = report.findings
    assert (found.severity, found.line, report.errors) == ("warning", 8, 0)
    assert found.text == (
        f"spec.devices.requests[0].exactly: the config sets {what}, which some cards, such as the "
        f"Tesla P4, do not support; select GPUs that do: {CAN}"
    )


@pytest.mark.parametrize(
    "text",
    [
        claim(LONG, selector=CAN),
        claim(LONG, selector="device.attributes['gpu.nvidia.com'].productName == 'Tesla T4'"),
        claim(LIMITED, selector=CAN),
        claim(LONG, class_name="a100"),
        claim(LONG, extra=", adminAccess: true"),
        claim("sharing: {strategy: TimeSlicing}"),
        claim("sharing: {strategy: TimeSlicing, timeSlicingConfig: {interval: Default}}"),
        claim("sharing: {strategy: MPS}"),
        claim(LIMITED, class_name="mig.nvidia.com", kind="MigDeviceConfig"),
    ],
)
def test_configs_for_every_card_or_chosen_cards_pass(text: str) -> None:
    assert check_manifest(text).findings == ()


def test_each_request_and_alternative_is_checked() -> None:
    value = yaml.safe_load(claim(LONG))
    any_gpu = {"deviceClassName": "gpu.nvidia.com"}
    sure = any_gpu | {"selectors": [{"cel": {"expression": CAN}}]}
    value["spec"]["devices"]["requests"] = [
        {"name": "other", "exactly": any_gpu},
        {"name": "gpu", "firstAvailable": [{"name": "a"} | sure, {"name": "b"} | any_gpu]},
    ]
    (config,) = value["spec"]["devices"]["config"]
    for named, wanted in (
        (["gpu"], ["spec.devices.requests[1].firstAvailable[1]"]),
        (["gpu/a"], []),
        (["gpu/b"], ["spec.devices.requests[1].firstAvailable[1]"]),
        (["other"], ["spec.devices.requests[0].exactly"]),
    ):
        config["requests"] = named
        template = {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceClaimTemplate",
            "metadata": {"name": "shared"},
            "spec": {"spec": value["spec"]},
        }
        found = check_manifest(yaml.safe_dump(value)).findings
        assert [one.text.partition(": ")[0] for one in found] == wanted
        found = check_manifest(yaml.safe_dump(template)).findings
        assert [one.text.partition(": ")[0] for one in found] == [f"spec.{one}" for one in wanted]


@pytest.mark.parametrize(
    "path", sorted(DEMOS.glob("*/demo.yaml")), ids=lambda path: path.parent.name
)
def test_no_demo_may_get_a_card_that_cannot(path: Path) -> None:
    found = check_manifest(path.read_text()).findings
    assert [one.text for one in found if "the config wants" in one.text] == []
