"""What /sys knows of a GPU and NVML does not: its PCIe root and its NUMA node.

In: a PCI address. Out: the name of the root complex, as Kubernetes' standard attribute
resource.kubernetes.io/pcieRoot wants it, and the NUMA node. Both come from the kernel's device
tree (Documentation/ABI/testing/sysfs-bus-pci) and may be missing in virtual machines.
"""

import re
from pathlib import Path

from msgspec import Struct

from dra_driver.devices.model import PciAddress

_BUS_ID = re.compile(r"[0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-7]")
_ROOT = re.compile(r"(?:^|/)devices/(pci[0-9a-f]{4,}:[0-9a-f]{2})/")


class PciFacts(Struct, frozen=True, kw_only=True):
    """A device's place: `pcie_root` such as `pci0000:64`, `numa_node` counted from 0."""

    pcie_root: str | None
    numa_node: int | None


def pci_facts(sys_root: Path, address: PciAddress) -> PciFacts:
    """Return what is known of a device; a device that is not there has no facts."""
    device = sys_root / "bus" / "pci" / "devices" / address
    return PciFacts(pcie_root=_pcie_root(device), numa_node=_numa_node(device))


def pci_address(bus_id: str) -> PciAddress:
    """Return NVML's address, whose domain has eight digits, as the kernel writes it."""
    if _BUS_ID.fullmatch(bus_id) is None:
        raise ValueError(f"{bus_id!r} is not a PCI address")
    domain, _, rest = bus_id.lower().partition(":")
    return PciAddress(f"{int(domain, 16):04x}:{rest}")


def pci_order(address: str) -> str:
    """Return what sorts addresses as NVML orders GPUs: a domain above ffff has more digits."""
    return address.zfill(len("00000000:00:00.0"))


def _pcie_root(device: Path) -> str | None:
    try:
        match = _ROOT.search(str(device.readlink()))
    except OSError:
        return None
    return match[1] if match else None


def _numa_node(device: Path) -> int | None:
    try:
        node = int((device / "numa_node").read_text())
    except (OSError, ValueError):
        return None
    return node if node >= 0 else None  # the kernel says -1 for "no node"
