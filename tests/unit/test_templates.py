"""What a template of a node keeps of its slices."""

import pytest

from dra_driver.admin.inspect.slices import OF_DEFAULTS, slices_of
from dra_driver.admin.inspect.templates import OF_THE_TYPE, SHARED, template_of
from dra_driver.simulator.nodes import inventory_of
from dra_driver.simulator.profile import names

OF_THE_NODE = {"uuid", "parentUUID", "driverVersion", "cudaDriverVersion", "addressingMode"}
OF_THE_NODE |= {"nvlinkIsland", "fabricClusterUUID", "fabricClique"}
OF_THE_NODE |= {f"resource.kubernetes.io/{name}" for name in ("pciBusID", "pcieRoot", "numaNode")}


@pytest.mark.parametrize("profile", names())
def test_each_attribute_is_known_to_templates_or_not(profile: str) -> None:
    published = {
        name
        for one in slices_of(inventory_of(profile), "n1", OF_DEFAULTS)
        for device in one["spec"].get("devices", [])
        for name in device["attributes"]
    }
    assert published - OF_THE_TYPE - OF_THE_NODE == set()


def test_an_attribute_is_either_the_types_or_the_nodes() -> None:
    assert OF_THE_TYPE.isdisjoint(OF_THE_NODE)
    assert SHARED < OF_THE_NODE


def test_the_slices_themselves_stay_as_they_were() -> None:
    (one,) = slices_of(inventory_of("l4x2"), "n1", OF_DEFAULTS)
    before = str(one)
    (left,) = template_of([one])
    assert str(one) == before
    assert left["metadata"] == one["metadata"]
    assert left["spec"]["pool"] == one["spec"]["pool"]
