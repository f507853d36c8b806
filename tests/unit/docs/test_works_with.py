"""docs/works-with.md writes manifests of what this driver publishes."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from documents import values
from dra_driver.admin.cel.selector import Selector, Subject
from dra_driver.admin.doctor.facts import shipped
from dra_driver.admin.inspect.command import Inspect
from dra_driver.admin.inspect.slices import OF_DEFAULTS, slices_of
from dra_driver.devices.names import DRIVER_NAME
from dra_driver.simulator.instance_types import profile_of
from dra_driver.simulator.nodes import inventory_of

DOCS = Path(__file__).parents[3] / "docs"
PAGE = (DOCS / "works-with.md").read_text()
BLOCKS = re.findall(r"^```yaml\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)


def documents() -> list[Any]:
    return [one for block in BLOCKS for one in yaml.safe_load_all(block)]


def test_every_class_that_is_named_is_shipped_or_made_on_the_page() -> None:
    found = documents()
    made = {one["metadata"]["name"] for one in found if one.get("kind") == "DeviceClass"}
    named = {name for names in values(found, "deviceClassNames") for name in names}
    named |= set(values(found, "deviceClassName"))
    for queue in (one for one in found if one.get("kind") == "Queue"):
        keys = queue["spec"]["capability"]
        named |= {key.partition("deviceclass/")[2] for key in keys}
    assert {"gpu.nvidia.com", "mig.nvidia.com"} <= named
    assert named <= shipped.device_classes().keys() | made


@pytest.mark.parametrize("expression", sorted(set(values(documents(), "expression"))))
def test_every_selector_has_a_value_on_any_device_and_selects_no_other_drivers(
    expression: str,
) -> None:
    # One that fails on a device would end the scheduling of the claim everywhere.
    assert not Selector.of(expression).selects(Subject(driver="other.example.com"))


def test_attributes_that_constraints_match_are_published() -> None:
    published = {
        name if "/" in name else f"{DRIVER_NAME}/{name}"
        for one in slices_of(inventory_of("h100x8"), "n1", OF_DEFAULTS)
        for found in one["spec"].get("devices", [])
        for name in found["attributes"]
    }
    matched = set(values(documents(), "matchAttribute"))
    matched |= set(re.findall(r"`matchAttribute: ([\w./]+)`", PAGE))
    assert len(matched) == 2
    assert matched <= published


def test_commands_on_the_page_have_options_and_machine_types_that_there_are() -> None:
    (console,) = re.findall(r"^```console\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    options = {option.replace("_", "-") for option in Inspect.options}
    assert set(re.findall(r"--([a-z-]+)", console)) <= options
    for name in re.findall(r"--instance-type (\S+)", console):
        profile_of(name)
