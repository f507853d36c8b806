"""What the admission policy own-node asks of slices is what this driver writes."""

import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import yaml
from testbed import manifests

import make
from dra_driver.slices.pool import build_slices, new_tag
from dra_driver.slices.project import projection

(POLICY,) = (
    one
    for one in manifests.installed("ValidatingAdmissionPolicy")
    if one["metadata"]["name"].endswith("own-node")
)
RULES = "\n".join(validation["expression"] for validation in POLICY["spec"]["validations"])


def only(pattern: str) -> str:
    """The one place in the rules that a pattern finds."""
    (found,) = re.findall(pattern, RULES)
    return str(found)


@pytest.mark.parametrize("node", ["n1", "gpu.nvidia.com-n1", "a.b-c.example.com", "n" * 63])
def test_names_have_the_form_that_it_takes(node: str) -> None:
    form = re.compile(only(r"matches\('(\^\[0-9a-f\]\{5\}.*?)'\)"))
    pool = build_slices((), driver="gpu.nvidia.com", node_name=node)
    for index in (0, 0xFFFFF):
        for tag in ("", new_tag()):
            assert form.fullmatch(pool.slice_name(index, tag=tag).removesuffix(node))
    others = build_slices((), driver="gpu.nvidia.com", node_name=f"x-{node}")
    assert not form.fullmatch(others.slice_name(0).removesuffix(node))


@pytest.mark.parametrize(
    "inventory",
    [
        make.inventory(),
        make.inventory(make.gpu(0, mig=make.mig())),
        make.inventory(make.gpu(0, mig=make.mig(make.mig_device(0, "1g.10gb", 0)))),
        make.inventory(make.gpu(0, memory_bytes=None), driver_version=None, cuda_version=None),
    ],
)
def test_devices_have_the_attributes_that_it_wants(inventory: Any) -> None:
    devices = projection(inventory).devices
    assert devices
    for device in devices:
        attributes: Any = device["attributes"]
        capacity: Any = device["capacity"]
        type_ = attributes["type"]["string"]
        demanded = demanded_of(type_)
        assert {"type", "productName", "brand", "architecture"} < demanded["attributes"]
        for name in demanded["attributes"]:
            value = "version" if name == "cudaComputeCapability" else "string"
            assert value in attributes[name]
        assert demanded["capacity"] <= capacity.keys()
        assert not any(name.startswith("gpu.nvidia.com/") for name in [*attributes, *capacity])


def demanded_of(type_: str) -> dict[str, set[str]]:
    """What the policy demands of devices of a type."""
    texts, capacities = (
        only(r"(\[[^]]*\])\.all\(name, device\.\?attributes"),
        only(r"(\[[^]]*\])\.all\(name, device\.\?capacity"),
    )
    versions = only(r"attributes\[\?'(\w+)'\]\.\?version\.hasValue")
    of_mig = only(r"string != 'mig' \|\| device\.attributes\.\?(\w+)")
    attributes = {*re.findall(r"'(\w+)'", texts), versions, *([of_mig] if type_ == "mig" else [])}
    return {"attributes": attributes, "capacity": set(re.findall(r"'(\w+)'", capacities))}


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
    of_gpus, of_migs = demanded_of("gpu"), demanded_of("mig")
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
