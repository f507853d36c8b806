"""What /sys knows about a GPU and NVML does not: its PCIe root and its NUMA node.

In: a PCI address. Out: the name of the root complex, as Kubernetes' standard attribute
resource.kubernetes.io/pcieRoot needs it, and the NUMA node. Both come from the kernel's device
tree (Documentation/ABI/testing/sysfs-bus-pci) and may be missing in virtual machines.
"""

import re
from pathlib import Path

from dra_driver.devices.model import PciAddress

_BUS_ID = re.compile(r"[0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-7]")
_ROOT = re.compile(r"(?:^|/)devices/(pci[0-9a-f]{4,}:[0-9a-f]{2})/")


def pci_address(bus_id: str) -> PciAddress:
    """Return NVML's PCI address, whose domain has eight digits, in the kernel's form."""
    if _BUS_ID.fullmatch(bus_id) is None:
        raise ValueError(f"{bus_id!r} is not a PCI address")
    domain, _, rest = bus_id.lower().partition(":")
    return PciAddress(f"{int(domain, 16):04x}:{rest}")


def pci_order(address: str) -> str:
    """Return a key that sorts addresses as NVML does: a domain above ffff has more digits."""
    return address.zfill(len("00000000:00:00.0"))


def pcie_root(sys_root: Path, address: PciAddress) -> str | None:
    """Return a device's root complex, such as `pci0000:64`; None if /sys does not know it."""
    try:
        match = _ROOT.search(str(_device(sys_root, address).readlink()))
    except OSError:
        return None
    return match[1] if match else None


def numa_node(sys_root: Path, address: PciAddress) -> int | None:
    """Return a device's NUMA node, counted from 0; None if /sys does not know it."""
    try:
        node = int((_device(sys_root, address) / "numa_node").read_text())
    except (OSError, ValueError):
        return None
    return node if node >= 0 else None  # the kernel says -1 for "no node"


def _device(sys_root: Path, address: PciAddress) -> Path:
    return sys_root / "bus" / "pci" / "devices" / address
