"""What convert prints passes validate, and what does not is told."""

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from dra_driver.admin.convert.manifests import Converted, convert
from dra_driver.admin.validate.findings import check_manifest
from dra_driver.kube.fields import at
from dra_driver.kube.manifest import read_documents
from generated_configs import anything

Json = Any

names = st.sampled_from(["a", "b", "team"])
sharing = st.one_of(
    st.builds(
        lambda slice_: {"strategy": "TimeSlicing", "timeSlicingConfig": {"interval": slice_}},
        st.sampled_from(["Default", "Short", "Medium", "Long"]),
    ),
    st.builds(
        lambda percentage, limit: {
            "strategy": "MPS",
            "mpsConfig": {
                "defaultActiveThreadPercentage": percentage,
                "defaultPinnedDeviceMemoryLimit": limit,
                "defaultPerDevicePinnedMemoryLimit": {"0": limit},
            },
        },
        st.integers(min_value=0, max_value=100),
        st.sampled_from(["1Gi", "512Mi", 2**30]),
    ),
)


@st.composite
def devices_claims(draw: st.DrawFn) -> list[Json]:
    """A claim of v1alpha3 or later."""
    version = draw(st.sampled_from(["v1alpha3", "v1beta1", "v1beta2", "v1"]))
    asks: Json = {"deviceClassName": draw(st.sampled_from(["gpu.nvidia.com", "mine"]))}
    asks |= draw(
        st.fixed_dictionaries(
            {},
            optional={
                "count": st.integers(1, 4),
                "allocationMode": st.just("ExactCount"),
                "adminAccess": st.just(False),
                "tolerations": st.just([{"key": "a", "operator": "Exists"}]),
                "selectors": st.just([{"cel": {"expression": "device.driver == 'a'"}}]),
            },
        )
    )
    flat = version in ("v1alpha3", "v1beta1")
    request = {"name": "r", **asks} if flat else {"name": "r", "exactly": asks}
    group = draw(st.sampled_from(["gpu.nvidia.com/v1alpha1", "resource.nvidia.com/v1beta1"]))
    config = {"apiVersion": group, "kind": "GpuConfig", "sharing": draw(sharing)}
    opaque = {"opaque": {"driver": "gpu.nvidia.com", "parameters": config}}
    return [
        {
            "apiVersion": f"resource.k8s.io/{version}",
            "kind": "ResourceClaim",
            "metadata": {"name": draw(names)},
            "spec": {"devices": {"requests": [request], "config": [opaque]}},
        }
    ]


@st.composite
def pods(draw: st.DrawFn) -> list[Json]:
    """A pod as it was written for a device plugin, or for claims before Kubernetes 1.31."""
    resources = st.sampled_from(
        ["nvidia.com/gpu", "nvidia.com/mig-1g.5gb", "nvidia.com/gpu.shared", "nvidia.com/hostdev"]
    )
    limits = st.dictionaries(resources, st.integers(0, 4), max_size=3)
    containers = [
        {"name": f"c{index}", "image": "i", "resources": {"limits": one, "requests": one}}
        for index, one in enumerate(draw(st.lists(limits, min_size=1, max_size=4)))
    ]
    middle = draw(st.integers(0, len(containers) - 1))
    return [
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": draw(names)},
            "spec": {
                "initContainers": containers[:middle],
                "containers": containers[middle:],
                "resourceClaims": [{"name": "gpu", "source": {"resourceClaimName": "mine"}}],
            },
        }
    ]


manifests = st.lists(st.one_of(devices_claims(), pods()), min_size=1, max_size=3)


def of(objects: list[Json]) -> Converted:
    return convert({"f": "---\n".join(json.dumps(one) + "\n" for one in objects)})


def errors(text: str) -> list[str]:
    return [
        finding.text for finding in check_manifest(text).findings if finding.severity == "error"
    ]


@given(manifests)
def test_converted_output_passes_validate(groups: list[list[Json]]) -> None:
    printed = of([one for group in groups for one in group]).text
    assert errors(printed) == []
    assert convert({"f": printed}).text == printed


@given(manifests, st.data())
def test_unconvertible_objects_are_reported(groups: list[list[Json]], data: st.DataObject) -> None:
    """Anything may stand anywhere: it is told, or what is printed is right."""
    objects = [one for group in groups for one in group]
    holder: Json = data.draw(st.sampled_from(objects))
    while True:
        keys = list(holder) if isinstance(holder, dict) else range(len(holder))
        key = data.draw(st.sampled_from(keys))
        if not holder[key] or not isinstance(holder[key], dict | list) or data.draw(st.booleans()):
            break
        holder = holder[key]
    holder[key] = data.draw(anything)
    found = of(objects)
    lost = found.reports["f"].findings
    assert all(one.text and "\n" not in one.text for one in lost)
    assert lost or errors(found.text) == []


@given(anything)
def test_an_unrelated_value_stays_as_it_is(value: Json) -> None:
    claim = {
        "apiVersion": "resource.k8s.io/v1beta1",
        "kind": "ResourceClaim",
        "metadata": {"name": "c", "annotations": {"a": value}},
        "spec": {"devices": {}},
    }
    (before,) = read_documents(json.dumps(claim))
    (after,) = read_documents(of([claim]).text)
    assert at(after.value, "metadata") == at(before.value, "metadata")
