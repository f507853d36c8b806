"""Which GPUs are on the PCI bus, and which of them virtual machines can have now.

In: the PCI bus. Out: each GPU, with what is published about it, or why it is not published: the
reason for people and, behind a colon, what to do. It is asked again when a claim is prepared.
Whatever cannot be read counts as refused. A GPU is known by its address alone, because NVML does
not see one that a VFIO driver has. Rules:

- A virtual machine gets a whole IOMMU group (Documentation/driver-api/vfio.rst). So besides the GPU
  only bridges and the card's own other functions may be in it, such as audio, and these without a
  driver of the host. Another function is refused whatever its driver is: two machines would have
  the same group, or one would have the other's network card.
- Only a GPU that has a VFIO driver is offered, and it keeps it (dra-driver-nvidia-gpu#1089).
- A GPU behind NVSwitches needs Fabric Manager's partitions, which are not made here. The switches
  are on the bus whether or not a GPU driver runs.
"""

from collections.abc import Callable, Iterable, Iterator
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
from dra_driver.devices.passthrough.bus import Function, PciBus
from dra_driver.devices.pci import numa_node, pci_order, pcie_root
from dra_driver.host.files import entries_of


class PassthroughRules:
    """The rules on one node."""

    def __init__(self, bus: PciBus, proc_root: Path) -> None:
        self._bus = bus
        self._switches = proc_root / "driver" / "nvidia-nvswitch" / "devices"

    def why_not(self, address: PciAddress) -> str | None:
        """Return why the GPU at an address cannot be given to a virtual machine; None if it can."""
        function = self._bus.function(address)
        if function is None:
            return f"{address} is not on the PCI bus any more"
        return self.why_none() or self.why_not_this(function)

    def why_none(self) -> str | None:
        """Return why no GPU of the node can be given to a virtual machine; None if one can."""
        if not self._bus.has_iommu():
            return (
                "the kernel has no IOMMU in use: turn it on in the firmware (VT-d, AMD-Vi) and on "
                "the kernel's command line (intel_iommu=on)"
            )
        has_switches = bool(entries_of(self._switches))
        for address in self._bus.addresses():
            kind = self._bus.kind(address)
            if kind is None:
                return f"{address} on the PCI bus cannot be read, and it may be an NVSwitch"
            has_switches |= kind.is_nvswitch
        return (
            "this machine has NVSwitches, and a GPU behind them needs a partition of Fabric "
            "Manager, which this driver does not make"
            if has_switches
            else None
        )

    def why_not_this(self, function: Function) -> str | None:
        """Return why one GPU cannot be given to a virtual machine on a node where others can."""
        return next(self._reasons(function), None)

    def _reasons(self, function: Function) -> Iterator[str]:
        if function.is_virtual:
            yield "it is an SR-IOV virtual function"
        if function.virtual_functions:
            yield "it has SR-IOV virtual functions: remove them (sriov_numvfs)"
        if function.group is None:
            yield "it is in no IOMMU group"
            return
        found = {each: self._bus.function(each) for each in self._bus.members(function.group)}
        members = [each for each in found.values() if each is not None]
        if function.address not in found or len(members) < len(found):
            yield f"the functions of its IOMMU group, {function.group}, cannot be read"
        others = [each for each in members if each.address != function.address]
        own = [each for each in others if _is_companion(each, function)]
        if strangers := [each for each in others if each not in own and not each.is_bridge]:
            yield (
                f"its IOMMU group, {function.group}, also has {_named(strangers)}, which the "
                "virtual machine could reach: move one of the cards to another slot"
            )
        if not function.has_vfio_driver:
            ids = f"{function.vendor_id}:{function.device_id}".replace("0x", "")
            yield (
                f"it is bound to {function.driver or 'no driver'}: if virtual machines should have "
                f"it, bind it to vfio-pci at boot (vfio-pci.ids={ids} on the kernel's command "
                "line, driverctl, or GPU Operator's vfio-manager), and restart the node"
            )
        if used := [each for each in own if each.driver and not each.has_vfio_driver]:
            yield (
                f"its other functions, {_named(used)}, are in use on the node: bind them to "
                "vfio-pci at boot as well, or to no driver"
            )


class PassthroughGpus:
    """Finds the GPUs at each look. `dev` returns the folder of the kernel's device nodes."""

    def __init__(
        self, bus: PciBus, rules: PassthroughRules, *, sys_root: Path, dev: Callable[[], Path]
    ) -> None:
        self._bus = bus
        self._rules = rules
        self._sys_root = sys_root
        self._dev = dev

    def look(self, inventory: Inventory) -> Inventory:
        """Return an inventory with the GPUs of the PCI bus."""
        kinds = {address: self._bus.kind(address) for address in self._bus.addresses()}
        gpus = [address for address, kind in kinds.items() if kind and kind.is_nvidia_gpu]
        functions = [self._bus.function(address) for address in sorted(gpus, key=pci_order)]
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


def _is_companion(other: Function, gpu: Function) -> bool:
    """Tell whether a function is of the same card as a GPU, and no GPU itself."""
    is_same_slot = other.address.rpartition(".")[0] == gpu.address.rpartition(".")[0]
    return is_same_slot and not other.is_display


def _named(functions: Iterable[Function]) -> str:
    return ", ".join(f"{each.address} ({each.driver or 'no driver'})" for each in functions)
