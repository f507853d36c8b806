"""Which GPUs are on the PCI bus, and which of them virtual machines can have.

In: the PCI bus. Out: each GPU, with what is published about it, or why it is not published
(devices/passthrough/rules.py). A GPU is known by its address alone, because NVML does not see one
that a VFIO driver has.
"""

from collections.abc import Callable
from pathlib import Path

from msgspec.structs import replace

from dra_driver.devices.model import (
    Gpu,
    GpuUuid,
    Inventory,
    MigMode,
    PassthroughGpu,
    PciAddress,
)
from dra_driver.devices.passthrough.bus import PciBus
from dra_driver.devices.passthrough.rules import PassthroughRules
from dra_driver.devices.pci import numa_node, pci_order, pcie_root


class PassthroughGpus:
    """Finds these GPUs at each look. `dev` returns the folder of the kernel's device nodes."""

    def __init__(
        self, bus: PciBus, rules: PassthroughRules, *, sys_root: Path, dev: Callable[[], Path]
    ) -> None:
        self._bus = bus
        self._rules = rules
        self._sys_root = sys_root
        self._dev = dev

    def look(self, inventory: Inventory) -> Inventory:
        """Return an inventory with the GPUs of the PCI bus."""
        addresses = sorted(filter(self._is_gpu, self._bus.addresses()), key=pci_order)
        functions = [self._bus.function(address) for address in addresses]
        physical = [each for each in functions if each is not None and not each.is_virtual]
        common = self._rules.why_none()
        has_iommufd = (self._dev() / "iommu").exists()
        found = (
            PassthroughGpu(
                gpu=self._gpu(each.address),
                number=number,
                vendor_id=each.vendor_id,
                device_id=each.device_id,
                driver=each.driver,
                group=-1 if each.group is None else each.group,
                addressable_bytes=self._bus.addressable_bytes(each.address),
                has_iommufd=has_iommufd,
                problem=common or self._rules.why_not_this(each),
            )
            for number, each in enumerate(physical)
        )
        return replace(inventory, passthrough=tuple(found))

    def _is_gpu(self, address: PciAddress) -> bool:
        kind = self._bus.kind(address)
        return kind is not None and kind.is_nvidia_gpu

    def _gpu(self, address: PciAddress) -> Gpu:
        """Return what is known about a GPU without NVML."""
        uuid = f"GPU-pci-{address}".replace(":", "-").replace(".", "-")
        return Gpu(
            index=-1,
            minor=-1,
            uuid=GpuUuid(uuid),
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
