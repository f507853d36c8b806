"""The adapter to the PCI bus: what /sys says about its functions. Nothing is written here.

In: PCI addresses. Out: facts (Documentation/ABI/testing/sysfs-bus-pci). Other drivers own the
functions, so any of them can change or disappear between two reads.
"""

from pathlib import Path

from msgspec import Struct

from dra_driver.devices.model import PciAddress
from dra_driver.host.files import entries_of, text_of

_MEMORY_64_BIT = 0x00100000  # IORESOURCE_MEM_64 (include/linux/ioport.h)
_REGIONS = 6

# Classes of the PCI Code and ID Assignment Specification; of displays only VGA and 3D controllers,
# as in NVIDIA's DRA driver, because devices are numbered by them.
_DISPLAYS = ("0x0300", "0x0302")
_DISPLAY_CLASS = "0x03"
_BRIDGES = ("0x0600", "0x0604")  # host bridges, and those to another PCI bus
_NVSWITCHES = "0x0680"  # bridges of another kind
_NVIDIA = "0x10de"


class FunctionKind(Struct, frozen=True, kw_only=True):
    """What a function on the PCI bus is: vendor and class as the kernel writes them."""

    vendor_id: str
    class_id: str

    @property
    def is_nvidia_gpu(self) -> bool:
        """Whether it is a GPU of NVIDIA."""
        return self.vendor_id == _NVIDIA and self.class_id.startswith(_DISPLAYS)

    @property
    def is_nvswitch(self) -> bool:
        """Whether it is an NVSwitch."""
        return self.vendor_id == _NVIDIA and self.class_id.startswith(_NVSWITCHES)

    @property
    def is_display(self) -> bool:
        """Whether it is a display controller of any vendor, such as a GPU."""
        return self.class_id.startswith(_DISPLAY_CLASS)

    @property
    def is_bridge(self) -> bool:
        """Whether it is a bridge, which does not matter in an IOMMU group."""
        return self.class_id.startswith(_BRIDGES)


class Function(FunctionKind, frozen=True, kw_only=True):
    """A function on the PCI bus.

    `driver` is the driver that it is bound to, and `group` is its IOMMU group; None without one.
    """

    address: PciAddress
    device_id: str
    driver: str | None
    group: int | None
    is_virtual: bool = False
    virtual_functions: int = 0

    @property
    def has_vfio_driver(self) -> bool:
        """Whether it is bound to a VFIO driver."""
        return is_vfio(self.driver)


class PciBus:
    """The PCI bus of this node. For any thread."""

    def __init__(self, sys_root: Path) -> None:
        self._devices = sys_root / "bus" / "pci" / "devices"
        self._groups = sys_root / "kernel" / "iommu_groups"

    def addresses(self) -> tuple[PciAddress, ...]:
        """Return the addresses on the bus, unsorted; none if /sys cannot be read."""
        return tuple(map(PciAddress, entries_of(self._devices)))

    def kind(self, address: PciAddress) -> FunctionKind | None:
        """Return what a function is, at little cost; None if /sys does not say."""
        folder = self._devices / address
        vendor, class_id = text_of(folder / "vendor").strip(), text_of(folder / "class").strip()
        return FunctionKind(vendor_id=vendor, class_id=class_id) if vendor and class_id else None

    def function(self, address: PciAddress) -> Function | None:
        """Return the function at an address; None if there is none, or /sys does not say."""
        kind = self.kind(address)
        if kind is None:
            return None
        folder = self._devices / address
        group = _linked(folder / "iommu_group")
        virtual = text_of(folder / "sriov_numvfs").strip()
        return Function(
            address=address,
            vendor_id=kind.vendor_id,
            device_id=text_of(folder / "device").strip(),
            class_id=kind.class_id,
            driver=self.driver_of(address),
            group=int(group) if group and group.isdecimal() else None,
            is_virtual=_linked(folder / "physfn") is not None,
            virtual_functions=int(virtual) if virtual.isdecimal() else 0,
        )

    def driver_of(self, address: PciAddress) -> str | None:
        """Return the driver that a function is bound to; None if there is none."""
        return _linked(self._devices / address / "driver")

    def addressable_bytes(self, address: PciAddress) -> int:
        """Return the sum of a function's 64-bit memory regions, rounded up to a power of two."""
        total = 0
        for line in text_of(self._devices / address / "resource").splitlines()[:_REGIONS]:
            words = line.split()
            try:
                start, end, flags = (int(word, 16) for word in words)
            except ValueError:
                continue
            if flags & _MEMORY_64_BIT and end > start:
                total += end - start + 1
        return 1 << (total - 1).bit_length() if total else 0

    def members(self, group: int) -> tuple[PciAddress, ...]:
        """Return all functions of an IOMMU group, sorted; none if /sys cannot be read."""
        return tuple(sorted(map(PciAddress, entries_of(self._groups / str(group) / "devices"))))

    def has_iommu(self) -> bool:
        """Tell whether the kernel has an IOMMU in use."""
        return bool(entries_of(self._groups))

    def vfio_device(self, address: PciAddress) -> str | None:
        """Return the name of a function's own VFIO device, such as `vfio0`; None without one.

        It is there while the function is bound to a VFIO driver, on kernels since 6.6.
        """
        names = sorted(entries_of(self._devices / address / "vfio-dev"))
        return names[0] if names else None


def is_vfio(driver: str | None) -> bool:
    """Tell whether a driver is one for virtual machines: vfio-pci, or a variant of it."""
    return driver is not None and "vfio" in driver


def _linked(path: Path) -> str | None:
    try:
        return path.readlink().name
    except OSError:
        return None
