"""docs/migrating-from-the-device-plugin.md: its CEL selects the cards whose labels stand beside it.

Labels of GPU feature discovery are told as the page has them; the devices are those that this
driver publishes of the same cards.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest
from msgspec.structs import replace

from dra_driver.admin.api.slices import Device, read_slice
from dra_driver.admin.cel.selector import Selector
from dra_driver.admin.inspect.command import shares_of
from dra_driver.admin.inspect.slices import Offered, slices_of
from dra_driver.devices.model import Inventory, MigMode
from dra_driver.shares.config import read_node_config
from dra_driver.simulator.nodes import inventory_of

PAGE = Path(__file__).parents[3] / "docs" / "migrating-from-the-device-plugin.md"
H100, A100, T4 = "h100x8", "a100x8", "t4x4"
MIB = 1024**2


cards = cache(inventory_of)


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A node with a card, and how its share config divides it."""

    profile: str
    replicas: int = 1
    is_in_mig_mode: bool = False
    driver: str = "580.65.06"
    cuda: tuple[int, int] = (13, 0)

    @property
    def inventory(self) -> Inventory:
        """What this driver finds there."""
        found = cards(self.profile)
        gpu = found.gpus[0]
        if self.is_in_mig_mode:
            gpu = replace(gpu, mig_mode=MigMode.ENABLED)
        return replace(found, gpus=(gpu,), driver_version=self.driver, cuda_version=self.cuda)

    def devices(self) -> list[Device]:
        """What this driver publishes of the node."""
        text = (
            "version: v1\nsharing:\n  timeSlicing:\n    resources:\n"
            f"    - {{name: nvidia.com/gpu, replicas: {self.replicas}}}\n"
        )
        share = shares_of(read_node_config(text.encode(), "default"), self.inventory)
        slices = slices_of(self.inventory, "node", Offered(share=share))
        return [device for one in slices for device in read_slice(one).devices]


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """Devices of a node that the row's expression selects, by the form of their names.

    Others of the node, and all of the other nodes, it does not.
    """

    on: Node
    selects: str
    others: Sequence[Node] = ()


WHOLE, SHARE, ANY = r"gpu-\d", r"gpu-\d-share-\d-of-10", r".*"
ROWS: Mapping[str, Row] = {
    "nvidia.com/gpu.product=NVIDIA-H100-80GB-HBM3": Row(
        on=Node(profile=H100), selects=ANY, others=(Node(profile=A100), Node(profile=T4))
    ),
    "nvidia.com/gpu.product=…-SHARED": Row(
        on=Node(profile=H100, replicas=10),
        selects=SHARE,
        others=(Node(profile=H100), Node(profile=H100, replicas=4)),
    ),
    "nvidia.com/gpu.family=hopper": Row(
        on=Node(profile=H100), selects=ANY, others=(Node(profile=A100), Node(profile=T4))
    ),
    "nvidia.com/gpu.compute.major=9": Row(
        on=Node(profile=H100), selects=ANY, others=(Node(profile=A100), Node(profile=T4))
    ),
    "nvidia.com/gpu.memory=81559": Row(
        on=Node(profile=H100, replicas=10),
        selects=rf"{WHOLE}|gpu-\d-mig-7g80gb-.*",
        others=(Node(profile=A100), Node(profile=T4)),
    ),
    "nvidia.com/cuda.driver-version.full=580.65.06": Row(
        on=Node(profile=H100), selects=ANY, others=(Node(profile=H100, driver="580.65.05"),)
    ),
    "nvidia.com/cuda.runtime-version.full=13.0": Row(
        on=Node(profile=H100), selects=ANY, others=(Node(profile=H100, cuda=(12, 9)),)
    ),
    "nvidia.com/mig-1g.5gb.count": Row(
        on=Node(profile=A100, is_in_mig_mode=True),
        selects=r"gpu-\d-mig-1g5gb-\d.*",
        others=(Node(profile=H100), Node(profile=T4)),
    ),
}
"""By the first label of a row: what its expression is to select."""


def expressions() -> dict[str, str]:
    """The CEL of the page's rows, by their first label; rows that have none are left out."""
    _, _, table = PAGE.read_text().partition("| label | CEL in a claim")
    found = {}
    for line in table.splitlines()[2:]:
        if not line.startswith("|"):
            break
        labels, cel = (re.findall(r"`([^`]+)`", cell) for cell in line.split("|")[1:3])
        # Others name a field of a request, or an attribute alone.
        if cel and re.search(r" (==|>=) ", cel[0]):
            found[labels[0]] = re.sub(r"\ba\.", "device.attributes['gpu.nvidia.com'].", cel[0])
    return found


@pytest.mark.parametrize("label", ROWS)
def test_an_expression_selects_the_devices_of_the_card_that_its_label_names(label: str) -> None:
    selector, row = Selector.of(expressions()[label]), ROWS[label]
    devices = row.on.devices()
    selected = {device.id.device for device in devices if selector.selects(device.subject)}
    names = {device.id.device for device in devices}
    assert selected == {name for name in names if re.fullmatch(row.selects, name)}
    assert selected
    for node in row.others:
        assert not any(selector.selects(device.subject) for device in node.devices())
