"""What the admission policy own-node asks of slices is what this driver writes."""

import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import yaml

import make
from dra_driver.slices.pool import build_slices, new_tag
from dra_driver.slices.project import projection
from policies import ACCOUNT, refusal, unneeded, user

WITH_MIG = make.inventory(make.gpu(0, mig=make.mig(make.mig_device(0, "1g.10gb", 0))))
GPU: Any = projection(make.inventory(make.gpu(0))).devices[0]
MIG: Any = projection(WITH_MIG).devices[0]
KUBELET = user("system:node:n1", groups=["system:nodes"])


def published(inventory: Any = WITH_MIG, *, index: int = 0, node: str = "n1", tag: str = "") -> Any:
    """A slice that a driver publishes."""
    made = projection(inventory)
    pool = build_slices(
        made.devices, counter_sets=made.counter_sets, driver="gpu.nvidia.com", node_name=node
    )
    spec = pool.spec(min(index, len(pool.contents) - 1), generation=1)
    return {"metadata": {"name": pool.slice_name(index, tag=tag)}, "spec": deepcopy(spec)}


def said(new: Any, old: Any = None, *, node: str = "n1", **request: Any) -> str | None:
    """What the driver of a node is answered that writes a slice; None: it may."""
    return refusal("own-node", new, old, **{"userInfo": user(node=node), **request})


def changed(name: str = "", device: Any = None, **spec: Any) -> Any:
    """A slice with another name, another first device, or other fields."""
    body = published(make.inventory(make.gpu(0)))
    body["spec"] |= spec | ({"devices": [device]} if device else {})
    return {"metadata": {"name": name or body["metadata"]["name"]}, "spec": body["spec"]}


def without(device: Any, part: str, name: str) -> Any:
    """A device that lacks an attribute or a capacity."""
    return {**device, part: {key: value for key, value in device[part].items() if key != name}}


@pytest.mark.parametrize("node", ["n1", "gpu.nvidia.com-n1", "a.b-c.example.com", "n" * 63])
def test_names_have_the_form_that_it_takes(node: str) -> None:
    for index in (0, 0xFFFFF):
        for tag in ("", new_tag()):
            assert said(published(index=index, node=node, tag=tag), node=node) is None
    others = published(node=f"x-{node}")["metadata"]["name"]
    answer = said({"metadata": {"name": others}, "spec": published(node=node)["spec"]}, node=node)
    assert answer is not None
    assert "may not name a ResourceSlice" in answer


@pytest.mark.parametrize(
    "inventory",
    [
        WITH_MIG,
        make.inventory(),
        make.inventory(make.gpu(0, mig=make.mig())),
        make.inventory(make.gpu(0, memory_bytes=None), driver_version=None, cuda_version=None),
    ],
)
def test_devices_have_the_attributes_that_it_wants(inventory: Any) -> None:
    slices = [published(inventory, index=index) for index in range(3)]
    assert any(one["spec"].get("devices") for one in slices)
    for one in slices:
        assert said(one) is None
        assert said(one, userInfo=KUBELET) is None


LACKING = "each device needs the attributes type"
REFUSED = [
    *(
        ({"new": new, **by}, text)
        for by in ({}, {"userInfo": KUBELET})
        for new, text in (
            (changed(nodeName="n2"), "on node n1 may not write ResourceSlices of node n2"),
            (changed(nodeName=""), "may not write ResourceSlices of several nodes"),
            (changed(pool={"name": "n2"}), "may not write ResourceSlices of pool n2"),
            (changed("00000-gpu.nvidia.com-n2"), "may not name a ResourceSlice"),
            (changed("zzzzz-gpu.nvidia.com-n1"), "may not name a ResourceSlice"),
            (changed("0-00000-gpu.nvidia.com-n1"), "may not name a ResourceSlice"),
            (changed("x"), "may not name a ResourceSlice"),
            (changed(driver="other.example.com"), "publishes for gpu.nvidia.com only"),
            (changed(device=without(GPU, "capacity", "memory")), LACKING),
        )
    ),
    ({"new": changed(), "userInfo": user()}, "the caller's token names no node"),
    ({"new": None, "old": changed(), "userInfo": user()}, "the caller's token names no node"),
    ({"new": None, "old": changed(nodeName="n2")}, "may not write ResourceSlices of node n2"),
    ({"new": changed(nodeName="n2"), "old": changed(nodeName="n2")}, "of node n2"),
    ({"new": None, "old": changed(driver="other.example.com")}, "for gpu.nvidia.com only"),
    *(
        ({"new": changed(device={**GPU, part: GPU[part] | {name: value}})}, LACKING)
        for part, name, value in (
            ("attributes", "brand", {"int": 1}),
            ("attributes", "cudaComputeCapability", {"string": "9.0.0"}),
            ("attributes", "gpu.nvidia.com/type", {"string": "gpu"}),
            ("capacity", "gpu.nvidia.com/memory", {"value": "1Gi"}),
        )
    ),
]


@pytest.mark.parametrize(("asked", "text"), REFUSED)
def test_everything_else_is_refused(asked: dict[str, Any], text: str) -> None:
    assert text in (said(**asked) or "")
    if "old" not in asked and "may not name" not in text:
        assert text in (said(**asked, old=asked["new"]) or ""), "although it is there already"


def test_every_rule_is_needed() -> None:
    asked = [{"userInfo": user(node="n1"), **one} for one, _ in REFUSED]
    assert unneeded("own-node", asked) == []


@pytest.mark.parametrize(
    "asked",
    [
        {"new": None, "old": changed("nvidia-made-this-up")},
        {"new": changed("nvidia-made-this-up"), "old": changed("nvidia-made-this-up")},
        {"new": changed(devices=None)},  # as Kubernetes 1.34 has a slice without devices
        {"new": changed(device=without(GPU, "attributes", "brand")), "dryRun": True},
        {"new": changed(driver="a.example.com", nodeName="n2", name="x"), "userInfo": KUBELET},
        {"new": None, "old": changed(nodeName="n2"), "userInfo": KUBELET},
        {"new": changed(nodeName="n2"), "userInfo": user(f"{ACCOUNT}-2")},
    ],
)
def test_unrelated_objects_are_accepted(asked: dict[str, Any]) -> None:
    assert said(**asked) is None


def demanded_of(device: Any) -> dict[str, set[str]]:
    """What the policy demands of a device: it refuses one that lacks it."""
    return {
        part: {name for name in device[part] if said(changed(device=without(device, part, name)))}
        for part in ("attributes", "capacity")
    }


def test_each_attribute_that_it_names_is_demanded() -> None:
    of_gpus, of_migs = demanded_of(GPU), demanded_of(MIG)
    texts = {"type", "productName", "brand", "architecture"}
    assert of_gpus == {"attributes": {*texts, "cudaComputeCapability"}, "capacity": {"memory"}}
    assert of_migs == {**of_gpus, "attributes": {*of_gpus["attributes"], "profile"}}


TREE = Path(__file__).parents[3]
READ = re.compile(
    r"""device\.(attributes|capacity)\[\\?['"]gpu\.nvidia\.com\\?['"]\]\.\s*(?!\?)(\w+)"""
)


def written() -> Iterator[tuple[str, str]]:
    """Each page, demo and class of this repository, and its text; abbreviations written out."""
    for root in ("README.md", "docs", "manifests", "deviceclasses"):
        top = TREE / root
        for path in [top] if top.is_file() else sorted(top.rglob("*")):
            if path.suffix in {".md", ".yaml"}:
                text = path.read_text()
                full = "device.attributes['gpu.nvidia.com']."
                yield str(path.relative_to(TREE)), re.sub(r"`a\.", f"`{full}", text)


def requests_of(value: object) -> Iterator[Mapping[str, Any]]:
    """Each request of a class with selectors, wherever it stands in an object."""
    if isinstance(value, Mapping):
        if "deviceClassName" in value and "selectors" in value:
            yield value
        for one in value.values():
            yield from requests_of(one)
    elif isinstance(value, list):
        for one in value:
            yield from requests_of(one)


def objects_of(text: str, path: str) -> Iterator[object]:
    """What is written as YAML in a file or on a page; templates of the chart are not."""
    for block in (
        [text] if path.endswith(".yaml") else re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)
    ):
        with suppress(yaml.YAMLError):
            yield from yaml.safe_load_all(block)


def test_all_that_our_own_selectors_read_without_a_guard_is_demanded() -> None:
    """A selector on what one device lacks stops its pod, whatever other nodes offer (KEP-4381)."""
    of_gpus, of_migs = demanded_of(GPU), demanded_of(MIG)
    reads = [
        (path, part, name)
        for path, text in written()
        if not path.endswith(("own-node-policy.yaml", "device-metadata.md"))
        for part, name in READ.findall(text)
    ]
    assert {("attributes", "productName"), ("capacity", "memory")} <= {one[1:] for one in reads}
    assert [one for one in reads if one[2] not in of_migs[one[1]]] == []
    requests = [
        (path, one)
        for path, text in written()
        for value in objects_of(text, path)
        for one in requests_of(value)
    ]
    assert len(requests) > 5
    for path, one in requests:
        demanded = of_migs if one["deviceClassName"] == "mig.nvidia.com" else of_gpus
        for part, name in READ.findall(str(one["selectors"])):
            assert name in demanded[part], f"{path}: {one['selectors']}"
