"""Which GPUs of the node can be given to virtual machines, and why others cannot.

In: the PCI bus, and what a look at NVML found. Out: each GPU on the bus, bound to the GPU driver or
not, with what is published about it or why it is not published. Rules: a virtual machine gets a
whole IOMMU group (Documentation/driver-api/vfio.rst), so only bridges, the GPU's own other
functions, and unused functions may be in it besides the GPU. A GPU with virtual functions stays
with its driver. A GPU behind NVSwitches needs Fabric Manager's partitions, which are not made here.
"""

import os
from collections.abc import Callable, Mapping
from pathlib import Path

from msgspec.structs import replace

from dra_driver.devices.model import (
    GPU_DRIVER,
    Gpu,
    GpuUuid,
    Inventory,
    MigMode,
    PassthroughGpu,
    PciAddress,
)
from dra_driver.devices.passthrough.bus import Function, PciBus
from dra_driver.devices.pci import numa_node, pci_order, pcie_root

_NVIDIA = "0x10de"
_DISPLAY = ("0x0300", "0x0302")
"""VGA and 3D controllers (PCI Code and ID Assignment Specification, base class 03h)."""


class PassthroughGpus:
    """Finds these GPUs at each look, and remembers how the GPU driver described them."""

    def __init__(
        self,
        bus: PciBus,
        *,
        sys_root: Path,
        proc_root: Path,
        dev: Callable[[], Path],
        recorded: Callable[[], Mapping[PciAddress, GpuUuid]],
    ) -> None:
        """Take where to look; `recorded` returns the GPUs that claims have, by address."""
        self._bus = bus
        self._sys_root = sys_root
        self._of_driver = proc_root / "driver" / "nvidia" / "gpus"
        self._switches = proc_root / "driver" / "nvidia-nvswitch" / "devices"
        self._dev = dev
        self._recorded = recorded
        self._described: dict[PciAddress, Gpu] = {}

    def look(self, inventory: Inventory) -> Inventory:
        """Return an inventory with the GPUs that virtual machines can have."""
        self._described |= {gpu.pci_address: gpu for gpu in inventory.gpus}
        there = {gpu.pci_address: gpu for gpu in inventory.gpus}
        addresses = sorted(filter(self._is_gpu, self._bus.addresses()), key=pci_order)
        functions = [self._bus.function(address) for address in addresses]
        physical = [each for each in functions if each is not None and not each.is_virtual]
        common = self._why_none()
        has_iommufd = (self._dev() / "iommu").exists()
        hanging = self._bus.hanging()
        found = (
            PassthroughGpu(
                gpu=there.get(each.address) or self._away(each.address),
                number=number,
                vendor_id=each.vendor_id,
                device_id=each.device_id,
                driver=each.driver,
                group=-1 if each.group is None else each.group,
                addressable_bytes=self._bus.addressable_bytes(each.address),
                has_iommufd=has_iommufd,
                hangs=each.address in hanging or self._is_leaving(each),
                problem=common or self._why_not(each),
            )
            for number, each in enumerate(physical)
        )
        return replace(inventory, passthrough=tuple(found))

    def _is_gpu(self, address: PciAddress) -> bool:
        vendor, class_id = self._bus.vendor_and_class(address)
        return vendor == _NVIDIA and class_id.startswith(_DISPLAY)

    def _is_leaving(self, function: Function) -> bool:
        """Tell whether the GPU driver is letting go of a GPU: the link to it disappears first."""
        return function.driver is None and (self._of_driver / function.address).exists()

    def _away(self, address: PciAddress) -> Gpu:
        """Return what is known about a GPU that the GPU driver does not have."""
        if (described := self._described.get(address)) is not None:
            return described
        uuid = self._recorded().get(address, GpuUuid(f"GPU-pci-{address.replace(':', '-')}"))
        return Gpu(
            index=-1,
            minor=-1,
            uuid=GpuUuid(uuid.replace(".", "-")),
            pci_address=address,
            product_name="",
            brand="",
            architecture="",
            cuda_compute_capability=(0, 0),
            memory_bytes=None,
            mig_mode=MigMode.UNSUPPORTED,
            pcie_root=pcie_root(self._sys_root, address),
            numa_node=numa_node(self._sys_root, address),
        )

    def _why_none(self) -> str | None:
        if not self._bus.has_iommu():
            return (
                "the kernel has no IOMMU in use: turn it on in the firmware (VT-d, AMD-Vi) and on "
                "the kernel's command line (intel_iommu=on)"
            )
        try:
            has_switches = bool(os.listdir(self._switches))  # noqa: PTH208 (names are enough)
        except OSError:
            return None
        return (
            "this machine has NVSwitches, and a GPU behind them needs a partition of Fabric "
            "Manager, which this driver does not make"
            if has_switches
            else None
        )

    def _why_not(self, function: Function) -> str | None:
        if function.group is None:
            return f"{function.address} is in no IOMMU group"
        if function.virtual_functions:
            return f"{function.address} has SR-IOV virtual functions: remove them (sriov_numvfs)"
        if function.driver not in {None, GPU_DRIVER} and not is_vfio(function.driver):
            return f"{function.address} is bound to {function.driver}"
        others = [
            each
            for address in self._bus.members(function.group)
            if not _is_same_slot(address, function.address)
            and (each := self._bus.function(address)) is not None
            and not each.is_bridge
            and each.driver is not None
            and not is_vfio(each.driver)
        ]
        if others:
            names = ", ".join(f"{each.address} (driver {each.driver})" for each in others)
            return (
                f"IOMMU group {function.group} also has {names}, which a virtual machine would "
                "have to get, too: move one of the cards to another slot, or unbind the others"
            )
        return None


def companions(bus: PciBus, function: Function) -> tuple[Function, ...]:
    """Return a GPU's other functions in its IOMMU group, such as audio, which go where it goes."""
    members = () if function.group is None else bus.members(function.group)
    others = (
        bus.function(address)
        for address in members
        if address != function.address and _is_same_slot(address, function.address)
    )
    return tuple(each for each in others if each is not None and not each.is_bridge)


def is_vfio(driver: str | None) -> bool:
    """Tell whether a driver is one for virtual machines: vfio-pci, or a variant of it."""
    return driver is not None and "vfio" in driver


def _is_same_slot(one: PciAddress, other: PciAddress) -> bool:
    return one.rpartition(".")[0] == other.rpartition(".")[0]
