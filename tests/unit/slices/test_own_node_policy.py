"""What the admission policy own-node asks of slices is what this driver writes."""

import re
from typing import Any

import pytest
from testbed import manifests

import make
from dra_driver.slices.pool import build_slices, new_tag
from dra_driver.slices.project import projection

(POLICY,) = (
    one
    for one in manifests.installed("ValidatingAdmissionPolicy")
    if one["metadata"]["name"].endswith("own-node")
)
RULES = "\n".join(one["expression"] for one in POLICY["spec"]["validations"])


def only(pattern: str) -> str:
    """The one place in the rules that a pattern finds."""
    (found,) = re.findall(pattern, RULES)
    return str(found)


@pytest.mark.parametrize("node", ["n1", "gpu.nvidia.com-n1", "a.b-c.example.com", "n" * 63])
def test_names_have_the_form_that_it_takes(node: str) -> None:
    form = re.compile(only(r"matches\('(\^\(probe-.*?)'\)"))
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
    wanted = re.findall(r"'(\w+)'", only(r"(\[[^]]*\])\.all\(name"))
    assert wanted == ["type", "productName", "brand", "architecture"]
    devices = projection(inventory).devices
    assert devices
    for device in devices:
        attributes: Any = device["attributes"]
        names = [*wanted, "profile"] if attributes["type"]["string"] == "mig" else wanted
        assert all("string" in attributes[name] for name in names)
        assert not any(name.startswith("gpu.nvidia.com/") for name in attributes)
