"""A GPU's place in the machine, from /sys."""

from pathlib import Path

import pytest

from dra_driver.devices.model import PciAddress
from dra_driver.devices.pci import numa_node, pcie_root

ADDRESS = PciAddress("0000:65:00.0")


def add_device(sys: Path, numa_node: str, target: str) -> None:
    real = (sys / "bus/pci/devices" / target).resolve()
    real.mkdir(parents=True)
    (real / "numa_node").write_text(numa_node)
    (sys / "bus/pci/devices").mkdir(parents=True, exist_ok=True)
    (sys / "bus/pci/devices" / ADDRESS).symlink_to(target)


@pytest.mark.parametrize("text", ["-1\n", "", "none\n"])
def test_a_missing_numa_node_is_none(tmp_path: Path, text: str) -> None:
    (tmp_path / "bus/pci/devices").mkdir(parents=True)
    add_device(tmp_path, text, "../../../devices/pci0000:64/0000:65:00.0")

    assert numa_node(tmp_path, ADDRESS) is None


def test_a_device_that_is_not_there_has_no_place(tmp_path: Path) -> None:
    assert (pcie_root(tmp_path, ADDRESS), numa_node(tmp_path, ADDRESS)) == (None, None)


def test_a_device_below_another_kind_of_bus_has_no_pcie_root(tmp_path: Path) -> None:
    (tmp_path / "bus/pci/devices").mkdir(parents=True)
    add_device(tmp_path, "0\n", "../../../devices/platform/0000:65:00.0")

    assert (pcie_root(tmp_path, ADDRESS), numa_node(tmp_path, ADDRESS)) == (None, 0)
