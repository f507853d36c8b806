"""What convert prints passes validate, and its selectors select what the first driver's did."""

import fnmatch
import json
import re
from functools import cache
from typing import Any

from hypothesis import assume, example, given
from hypothesis import strategies as st

from dra_driver.admin.api.slices import Device, read_slice
from dra_driver.admin.cel.selector import Selector
from dra_driver.admin.convert.manifests import Converted, convert
from dra_driver.admin.convert.selectors import expression
from dra_driver.admin.inspect.slices import Offered, slices_of
from dra_driver.admin.validate.findings import check_manifest
from dra_driver.kube.fields import at
from dra_driver.kube.manifest import read_documents
from dra_driver.simulator.nodes import inventory_of
from generated_configs import anything
from resource_nvidia_com.quantity import Quantity

Json = Any

OPERATORS = {
    "Equals": (0,),
    "LessThan": (-1,),
    "LessThanOrEqualTo": (-1, 0),
    "GreaterThan": (1,),
    "GreaterThanOrEqualTo": (0, 1),
}
names = st.sampled_from(["a", "b", "team"])
sharing = st.one_of(
    st.builds(
        lambda slice_: {"strategy": "TimeSlicing", "timeSlicingConfig": {"timeSlice": slice_}},
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


def compared(values: list[str]) -> st.SearchStrategy[Json]:
    return st.builds(
        lambda value, operator: {"value": value, "operator": operator},
        st.sampled_from(values),
        st.sampled_from(list(OPERATORS)),
    )


properties = st.one_of(
    st.builds(lambda value: {"migEnabled": value}, st.booleans()),
    st.builds(
        lambda field, value: {field: value},
        st.sampled_from(["productName", "brand", "architecture"]),
        st.sampled_from(["*", "*h100*", "A100", "nvidia*80gb", "tesla t4", "a(.)", "'x\\d'"]),
    ),
    st.builds(lambda value: {"memory": value}, compared(["16G", "75Gi", "15360Mi"])),
    st.builds(
        lambda value: {"cudaComputeCapability": value}, compared(["7.5", "8.0", "v9", "9.0.1"])
    ),
    st.builds(
        lambda field, value: {field: value},
        st.sampled_from(["driverVersion", "cudaDriverVersion"]),
        compared(["12.2", "535.054.03", "1.0.0"]),
    ),
)
selectors: st.SearchStrategy[Json] = st.recursive(
    properties,
    lambda inner: st.builds(
        lambda field, terms: {field: terms},
        st.sampled_from(["andExpression", "orExpression"]),
        st.lists(inner, min_size=1, max_size=3),
    ),
    max_leaves=8,
)


def gpu_parameters(count: int, selector: Json, shared: Json) -> Json:
    return {"count": count, "selector": selector, "sharing": shared}


@st.composite
def first_drivers(draw: st.DrawFn) -> list[Json]:
    """A claim or template of v1alpha2 and its parameters."""
    kind, spec = draw(
        st.one_of(
            st.tuples(
                st.just("GpuClaimParameters"),
                st.builds(gpu_parameters, st.integers(1, 8), selectors, sharing),
            ),
            st.tuples(
                st.just("MigDeviceClaimParameters"),
                st.builds(
                    lambda profile, shared: {"profile": profile, "sharing": shared},
                    st.sampled_from(["1g.5gb", "1g.10gb+me"]),
                    sharing.filter(lambda one: one["strategy"] == "MPS"),
                ),
            ),
        )
    )
    metadata = {"name": draw(names), "namespace": draw(names)}
    reference = {"apiGroup": "gpu.resource.nvidia.com", "kind": kind, "name": metadata["name"]}
    asks = {"resourceClassName": "gpu.nvidia.com", "parametersRef": reference}
    template = draw(st.booleans())
    return [
        {
            "apiVersion": "gpu.resource.nvidia.com/v1alpha1",
            "kind": kind,
            "metadata": metadata,
            "spec": spec,
        },
        {
            "apiVersion": f"resource.k8s.io/{draw(st.sampled_from(['v1alpha1', 'v1alpha2']))}",
            "kind": "ResourceClaimTemplate" if template else "ResourceClaim",
            "metadata": metadata,
            "spec": {"spec": asks} if template else asks,
        },
    ]


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
    shared = json.loads(json.dumps(draw(sharing)).replace("timeSlice", "interval"))
    shared = json.loads(json.dumps(shared).replace("intervalingConfig", "timeSlicingConfig"))
    group = draw(st.sampled_from(["gpu.nvidia.com/v1alpha1", "resource.nvidia.com/v1beta1"]))
    config = {"apiVersion": group, "kind": "GpuConfig", "sharing": shared}
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


manifests = st.lists(st.one_of(first_drivers(), devices_claims(), pods()), min_size=1, max_size=3)


def of(objects: list[Json]) -> Converted:
    return convert({"f": "---\n".join(json.dumps(one) + "\n" for one in objects)})


def errors(text: str) -> list[str]:
    return [
        finding.text for finding in check_manifest(text).findings if finding.severity == "error"
    ]


@given(manifests)
def test_what_is_printed_passes_validate(groups: list[list[Json]]) -> None:
    printed = of([one for group in groups for one in group]).text
    assert errors(printed) == []
    assert convert({"f": printed}).text == printed


@given(manifests, st.data())
def test_what_does_not_pass_is_told(groups: list[list[Json]], data: st.DataObject) -> None:
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
def test_a_value_that_is_not_looked_at_stays_as_it_is(value: Json) -> None:
    claim = {
        "apiVersion": "resource.k8s.io/v1beta1",
        "kind": "ResourceClaim",
        "metadata": {"name": "c", "annotations": {"a": value}},
        "spec": {"devices": {}},
    }
    (before,) = read_documents(json.dumps(claim))
    (after,) = read_documents(of([claim]).text)
    assert at(after.value, "metadata") == at(before.value, "metadata")


@cache
def gpus() -> tuple[Device, ...]:
    return tuple(
        device
        for profile in ("h100x8", "a100x8", "t4x4")
        for one in slices_of(inventory_of(profile), "node", Offered())
        for device in read_slice(one).devices
        if device.attribute("type") == "gpu"
    )


def matched(selector: Json, device: Device) -> bool:
    """What the first driver made of a selector: NVIDIA's k8s-dra-driver, api/utils/selector."""
    ((field, value),) = selector.items()
    if field == "andExpression":
        return all(matched(one, device) for one in value)
    if field == "orExpression":
        return any(matched(one, device) for one in value)
    if field == "migEnabled":
        return value is False
    if field == "memory":
        held = device.capacities["memory"].total
        asked = Quantity.parse(value["value"]).nanos
        return (held > asked) - (held < asked) in OPERATORS[value["operator"]]
    if isinstance(value, str):
        name = str(device.attribute(field)).lower()
        escaped = re.sub(r"([\[\]?])", r"[\1]", value.lower())
        return fnmatch.fnmatchcase(name, f"*{escaped}*")
    held_version, asked_version = (
        [int(part) for part in str(one).removeprefix("v").split(".")]
        for one in (device.attribute(field) or "0.0.0", value["value"])
    )
    asked_version += [0] * (3 - len(asked_version))
    comes = (held_version > asked_version) - (held_version < asked_version)
    return comes in OPERATORS[value["operator"]]


@given(selectors)
@example({"productName": "A100"})
@example({"memory": {"value": "75Gi", "operator": "GreaterThanOrEqualTo"}})
def test_a_selector_selects_what_it_did(selector: Json) -> None:
    losses: list[Any] = []
    term = expression(selector, ("spec", "selector"), losses)
    assume(not losses)
    for device in gpus():
        if isinstance(term, str):
            assert Selector.of(term).selects(device.subject) == matched(selector, device)
        else:
            assert term == matched(selector, device)
