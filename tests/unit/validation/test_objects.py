"""What is wrong with objects, and ours to say, is an error with its line."""

import pytest

from bad_objects import BAD_OBJECTS, GOOD, BadObject
from dra_driver.admin.validate.findings import check_manifest
from dra_driver.admin.validate.near_misses import is_near_miss


@pytest.mark.parametrize("bad", BAD_OBJECTS, ids=lambda bad: str(bad.name))
def test_objects_that_a_cluster_refuses_are_errors_at_their_line(bad: BadObject) -> None:
    found = [
        finding for finding in check_manifest(bad.text).findings if finding.severity == "error"
    ]
    assert [one.line for one in found] == [line for line, _ in bad.errors]
    for one, (_, text) in zip(found, bad.errors, strict=True):
        assert one.text[: len(text)] == text


def test_what_a_cluster_accepts_is_no_finding() -> None:
    report = check_manifest(GOOD)
    assert report.findings == ()
    assert report.objects == 2
    assert report.others == ("DeviceTaintRule.resource.k8s.io", "DeviceClass.example.com")


def test_the_objects_of_a_list_are_named_with_their_place_in_it() -> None:
    inner = BAD_OBJECTS[0].text.replace("\n", "\n  ")
    (finding,) = check_manifest(f"apiVersion: v1\nkind: List\nitems:\n- {inner}").findings
    assert finding.text.startswith("items[0].apiVersion: gpu.resource.nvidia.com/v1alpha1 with ")
    assert finding.line == 4


@pytest.mark.parametrize(
    "name",
    [
        *("gpu.nvidia.org", "gpus.nvidia.com", "nvidia.com/gpu", "gpu.nvida.com"),
        *("mig.nvidia.com", "gpu.resource.nvidia.com", "nvidia.com", "GPU.nvidia.com"),
    ],
)
def test_a_name_that_is_nearly_the_driver_s_is_a_warning(name: str) -> None:
    text = GOOD.replace("net.example.com", name)
    (finding,) = check_manifest(text).findings
    assert (finding.line, finding.severity) == (22, "warning")
    assert finding.text == (
        f'spec.spec.devices.config[0].opaque.driver: "{name}" is not this driver: did you mean '
        '"gpu.nvidia.com"?'
    )


@pytest.mark.parametrize(
    "name",
    [
        *("gpu.nvidia.com", "compute-domain.nvidia.com", "gpu.amd.com", "gpu.example.com"),
        *("nvidia", "dra.net", "gpu.intel.com"),
    ],
)
def test_other_drivers_are_not_near_misses(name: str) -> None:
    assert not is_near_miss(name)


def test_a_near_miss_in_a_selector_is_a_warning() -> None:
    (finding,) = check_manifest(
        GOOD.replace("device.driver == 'gpu.nvidia.com'", "device.driver == 'gpu.nvidia.org'")
    ).findings
    assert (finding.line, finding.severity) == (17, "warning")
    assert finding.text.endswith(
        '.selectors[0].cel.expression: "gpu.nvidia.org" is not this driver: did you mean '
        '"gpu.nvidia.com"?'
    )


def test_a_claim_that_no_container_names_is_a_warning() -> None:
    (finding,) = check_manifest(GOOD.replace("claims: [{name: gpu, request: other}]", "")).findings
    assert (finding.line, finding.severity) == (33, "warning")
    assert 'no container has "gpu" in its resources.claims' in finding.text
