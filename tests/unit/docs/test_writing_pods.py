"""README and docs/writing-pods.md: `validate` takes the examples, and selectors find devices."""

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from documents import values
from dra_driver.admin.api.slices import Device, read_slice
from dra_driver.admin.cel.selector import Selector, Subject
from dra_driver.admin.doctor.facts import shipped
from dra_driver.admin.inspect.slices import OF_DEFAULTS, slices_of
from dra_driver.simulator.nodes import inventory_of

REPOSITORY = Path(__file__).parents[3]
PAGE = (REPOSITORY / "docs" / "writing-pods.md").read_text()
README = (REPOSITORY / "README.md").read_text()
SECTIONS = dict(re.findall(r"^## (\d+)\. .*?\n(.*?)(?=^## )", PAGE, re.MULTILINE | re.DOTALL))
BLOCK = re.compile(r"^```yaml\n(.*?)^```", re.MULTILINE | re.DOTALL)
MACHINES = ("h100x8-mig", "l4x2", "a100x8", "t4x4")
SELECTS = {
    ("4", ""): {"h100x8-mig"},
    ("5", "h100"): {"h100x8-mig"},
    ("5", "two-l4"): {"l4x2"},
    ("8", ""): {"h100x8-mig"},
}
"""On which machines a request finds devices, where that is not all of them."""


def documents(number: str) -> list[dict[str, Any]]:
    (text,) = BLOCK.findall(SECTIONS[number])
    return list(yaml.safe_load_all(text))


def devices(machine: str) -> list[Device]:
    slices = slices_of(inventory_of(machine), "n1", OF_DEFAULTS)
    return [device for one in slices for device in read_slice(one).devices]


def test_validate_accepts_every_example_and_the_readmes(tmp_path: Path) -> None:
    manifests = [text for text in BLOCK.findall(PAGE + README) if "kind: Pod\n" in text]
    manifests += [text for text in BLOCK.findall(PAGE) if text not in manifests]
    for number, text in enumerate(manifests, start=1):
        (tmp_path / f"{number}.yaml").write_text(text)
    command = [str(Path(sys.executable).parent / "dra-driver"), "validate", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
    said = done.stdout + done.stderr
    # The example of a part of a GPU, which says itself what the driver needs for it.
    (warning,) = [line for line in said.splitlines() if ": warning: " in line]
    assert "--consumable-shares" in warning
    assert said.splitlines()[-1].endswith("3 configs in 11 files: no errors, 1 warning")


def requests(number: str) -> Iterator[dict[str, Any]]:
    """Each request for devices of one class, alternatives too."""
    yield from values(documents(number), "exactly")
    for alternatives in values(documents(number), "firstAvailable"):
        yield from alternatives


def selectors(request: dict[str, Any]) -> list[Selector]:
    """What a device has to meet, in the scheduler's order: the class's selectors come first."""
    of_class = shipped.device_classes()[request["deviceClassName"]]
    expressions = [*values(of_class, "expression"), *values(request, "expression")]
    return [Selector.of(expression) for expression in expressions]


@pytest.mark.parametrize("number", SECTIONS)
def test_each_request_finds_the_cards_that_it_is_for_and_fails_on_no_device(number: str) -> None:
    for request in requests(number):
        asked = selectors(request)
        found = {
            machine
            for machine in MACHINES
            for device in devices(machine)
            if all(one.selects(device.subject) for one in asked)
        }
        assert found == SELECTS.get((number, request.get("name", "")), set(MACHINES))
        assert not all(one.selects(Subject(driver="other.example.com")) for one in asked)
