"""The door to the PCI bus: what /sys says about a function, and the switch of its driver.

In: PCI addresses. Out: facts (Documentation/ABI/testing/sysfs-bus-pci), or another driver. A write
that takes the driver from a function can hang in the kernel forever, and no signal ends it:
NVIDIA's module waits in it until nobody has the GPU open (nv_pci_remove_helper). So a separate
process makes the writes, with a deadline. One that hangs is left where it is, and no second one is
started for the same function.
"""

import os
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

from msgspec import Struct

from dra_driver.devices.model import PciAddress
from dra_driver.errors import DeviceError, TransientError
from dra_driver.host.children import ends_within

_WRITES = """
import os, sys
words = sys.argv[1:]
for path, text in zip(words[::2], words[1::2]):
    try:
        file = os.open(path, os.O_WRONLY | os.O_TRUNC)
        os.write(file, text.encode())
    except OSError as error:
        sys.exit(f"{path}: {error.strerror}")
"""
"""The program of that process; with `-I -S` it starts in about 15 ms."""

_MEMORY_64_BIT = 0x00100000  # IORESOURCE_MEM_64 (include/linux/ioport.h)
_REGIONS = 6
_BRIDGE = "0x0604"


class Function(Struct, frozen=True, kw_only=True):
    """A function on the PCI bus, with ids as the kernel writes them, such as `0x10de`.

    `driver` is the driver that it is bound to, and `group` is its IOMMU group; None without one.
    """

    address: PciAddress
    vendor_id: str
    device_id: str
    class_id: str
    driver: str | None
    group: int | None
    is_virtual: bool = False
    virtual_functions: int = 0

    @property
    def is_bridge(self) -> bool:
        """Whether it is a bridge, which does not matter in an IOMMU group."""
        return self.class_id.startswith(_BRIDGE)


class PciBus:
    """The PCI bus of this node. For any thread; a function has only one switch at a time."""

    def __init__(self, sys_root: Path) -> None:
        self._devices = sys_root / "bus" / "pci" / "devices"
        self._drivers = sys_root / "bus" / "pci" / "drivers"
        self._groups = sys_root / "kernel" / "iommu_groups"
        self._lock = threading.Lock()
        self._hanging: dict[PciAddress, subprocess.Popen[bytes]] = {}

    def addresses(self) -> tuple[PciAddress, ...]:
        """Return the addresses on the bus, unsorted; none if /sys cannot be read."""
        return tuple(map(PciAddress, _names(self._devices)))

    def function(self, address: PciAddress) -> Function | None:
        """Return the function at an address; None if there is none."""
        folder = self._devices / address
        vendor, device, class_id = (_text(folder / name) for name in ("vendor", "device", "class"))
        if not vendor:
            return None
        group = _linked(folder / "iommu_group")
        virtual = _text(folder / "sriov_numvfs")
        return Function(
            address=address,
            vendor_id=vendor,
            device_id=device,
            class_id=class_id,
            driver=self.driver_of(address),
            group=int(group) if group and group.isdecimal() else None,
            is_virtual=_linked(folder / "physfn") is not None,
            virtual_functions=int(virtual) if virtual.isdecimal() else 0,
        )

    def vendor_and_class(self, address: PciAddress) -> tuple[str, str]:
        """Return a function's vendor and class, which tell GPUs from the rest, at little cost."""
        folder = self._devices / address
        vendor = _text(folder / "vendor")
        return vendor, _text(folder / "class") if vendor else ""

    def driver_of(self, address: PciAddress) -> str | None:
        """Return the driver that a function is bound to; None if there is none."""
        return _linked(self._devices / address / "driver")

    def override_of(self, address: PciAddress) -> str:
        """Return the only driver that may be bound to a function; empty if any suitable one may."""
        text = _text(self._devices / address / "driver_override")
        return "" if text == "(null)" else text  # the kernel's text for none

    def modalias(self, address: PciAddress) -> str:
        """Return the name by which the kernel looks for a function's module."""
        return _text(self._devices / address / "modalias")

    def addressable_bytes(self, address: PciAddress) -> int:
        """Return the sum of a function's 64-bit memory regions, rounded up to a power of two."""
        total = 0
        for line in _text(self._devices / address / "resource").splitlines()[:_REGIONS]:
            words = line.split()
            try:
                start, end, flags = (int(word, 16) for word in words)
            except ValueError:
                continue
            if flags & _MEMORY_64_BIT and end > start:
                total += end - start + 1
        return 1 << (total - 1).bit_length() if total else 0

    def members(self, group: int) -> tuple[PciAddress, ...]:
        """Return all functions of an IOMMU group, sorted."""
        return tuple(sorted(map(PciAddress, _names(self._groups / str(group) / "devices"))))

    def has_iommu(self) -> bool:
        """Tell whether the kernel has an IOMMU in use."""
        return bool(_names(self._groups))

    def has_driver(self, name: str) -> bool:
        """Tell whether a driver is loaded."""
        return (self._drivers / name).is_dir()

    def vfio_device(self, address: PciAddress) -> str | None:
        """Return the name of a function's own VFIO device, such as `vfio0`; None without one.

        It is there while the function is bound to a VFIO driver, on kernels since 6.6.
        """
        names = sorted(_names(self._devices / address / "vfio-dev"))
        return names[0] if names else None

    def hanging(self) -> frozenset[PciAddress]:
        """Return the functions whose switch hangs in the kernel."""
        with self._lock:
            ended = [address for address, each in self._hanging.items() if each.poll() is not None]
            for address in ended:
                del self._hanging[address]
            return frozenset(self._hanging)

    def switch(
        self, address: PciAddress, driver: str | None, *, override: str, seconds: float
    ) -> None:
        """Bind a function to a driver, or to none, and leave `override` as its driver_override.

        May be repeated. Raises TransientError while the switch hangs in the kernel, and DeviceError
        if the kernel refuses.
        """
        folder = self._devices / address
        now = self.driver_of(address)
        writes: list[tuple[Path, str]] = []
        if now != driver:
            # The override comes first, so that no other driver takes the function once it is free.
            writes.append((folder / "driver_override", driver or override or "\n"))
            if now is not None:
                writes.append((folder / "driver" / "unbind", address))
            if driver is not None:
                writes.append((self._drivers / driver / "bind", address))
        if (driver if now != driver else self.override_of(address)) != override:
            writes.append((folder / "driver_override", override or "\n"))
        if writes:
            self._write(address, writes, seconds)
        if self.driver_of(address) != driver:
            raise DeviceError(
                f"{address} is bound to {self.driver_of(address) or 'no driver'} after it was "
                f"given to {driver or 'none'}; see dmesg on the node"
            )

    def _write(
        self, address: PciAddress, writes: Sequence[tuple[Path, str]], seconds: float
    ) -> None:
        with self._lock:
            before = self._hanging.get(address)
            if before is not None and before.poll() is None:
                raise _hangs(address, before.pid)
            said = os.fdopen(os.memfd_create("switch"), "w+", errors="replace")
            words = [word for path, text in writes for word in (str(path), text)]
            process = subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", _WRITES, *words],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=said,
                start_new_session=True,
            )
            self._hanging[address] = process
        with said:
            if not ends_within(process, seconds):
                raise _hangs(address, process.pid)
            with self._lock:
                self._hanging.pop(address, None)
            said.seek(0)
            if status := process.wait():
                how = f"the process that writes to /sys ended with status {status}; see dmesg"
                reason = said.read().strip().rpartition("\n")[2] or how
                raise DeviceError(f"the driver of {address} cannot be changed: {reason}")


def _hangs(address: PciAddress, pid: int) -> TransientError:
    return TransientError(
        f"the kernel does not let go of {address} (process {pid} hangs in the write to /sys): "
        "something still has the GPU open; end what uses it, or restart the node"
    )


def _names(folder: Path) -> list[str]:
    try:
        return os.listdir(folder)  # noqa: PTH208 (names are what is wanted)
    except OSError:
        return []


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return ""


def _linked(path: Path) -> str | None:
    try:
        return path.readlink().name
    except OSError:
        return None
