"""The /sys files that go with simulated GPUs.

In: the GPUs. Out: below a sys folder, the PCI tree of the kernel: devices/pci<root>/<bridges>/
<address> with its attributes, bus/pci/devices/<address> linking there (which is how a PCIe root is
found), the DRM nodes' names, and the module's version. IOMMU groups are in pci_drivers.
"""

import os
import shutil
from collections.abc import Mapping
from pathlib import Path

from dra_driver.simulator.device_nodes import drm_names
from dra_driver.simulator.hardware import NVIDIA_VENDOR, SimulatedGpu

_BRIDGE = {"vendor": "0x8086", "device": "0x352a", "class": "0x060400"}
_WITHOUT_VIRTUAL_FUNCTIONS = frozenset({"kepler", "maxwell", "pascal", "volta", "turing"})
_MIB = 1024**2
# The kernel's flags of a BAR (<linux/ioport.h>): 32-bit, or 64-bit and prefetched.
_NARROW, _WIDE = 0x40200, 0x14220C
# Cards with HBM and these compute capabilities have their registers in a wide BAR as well.
_WIDE_REGISTERS = frozenset({9, 10})
_FIRST_WITH_64_MIB_OF_REGISTERS = 10
_RESOURCES = 13  # six BARs, the ROM, and those of virtual functions


def write_driver(sys: Path, driver_version: str) -> None:
    """Write the files that do not depend on the GPUs."""
    write(sys / "module/nvidia", {"version": driver_version, "initstate": "live"})
    for folder in ("bus/pci/drivers/nvidia", "bus/pci/devices", "kernel/iommu_groups"):
        (sys / folder).mkdir(parents=True, exist_ok=True)


def add_gpu(
    sys: Path, gpu: SimulatedGpu, cpus_per_numa_node: int, *, driver: str | None, drm: bool
) -> None:
    """Write the files of one GPU, which is bound to a driver, and of the bridges above it."""
    folder = sys / "devices" / f"pci{gpu.root_bus}"
    for bridge in gpu.bridges:
        folder /= bridge
        write(folder, {**_BRIDGE, "numa_node": str(gpu.numa_node)})
        link(sys / "bus/pci/devices" / bridge, folder)
    folder /= gpu.pci
    first = max(gpu.numa_node, 0) * cpus_per_numa_node
    attributes = {
        "vendor": f"0x{NVIDIA_VENDOR:04x}",
        "device": gpu.card.device_id,
        "subsystem_vendor": gpu.card.subsystem_vendor,
        "subsystem_device": gpu.card.subsystem_id,
        "class": gpu.card.pci_class,
        "numa_node": str(gpu.numa_node),
        "local_cpulist": f"{first}-{first + cpus_per_numa_node - 1}",
        "enable": "1",
        "resource": _resource(gpu),
    }
    if gpu.card.architecture not in _WITHOUT_VIRTUAL_FUNCTIONS:
        attributes["sriov_numvfs"] = "0"
    add_function(sys, folder, attributes)
    for name, _, _ in drm_names(gpu) if drm else ():
        (folder / "drm" / name).mkdir(parents=True, exist_ok=True)
    set_driver(sys, gpu.pci, driver)


def add_function(sys: Path, folder: Path, attributes: Mapping[str, str]) -> None:
    """Write the files of one PCI function, which has no driver yet."""
    write(folder, attributes)
    link(sys / "bus/pci/devices" / folder.name, folder)


def add_nvswitch(sys: Path, address: str, device_id: str) -> None:
    """Write the files of an NVSwitch."""
    attributes = {"vendor": f"0x{NVIDIA_VENDOR:04x}", "device": device_id, "class": "0x068000"}
    add_function(sys, sys / "devices" / f"pci{address[:7]}" / address, attributes)
    set_driver(sys, address, "nvidia-nvswitch")


def set_driver(sys: Path, pci: str, driver: str | None) -> None:
    """Link a PCI function to its driver, or remove the link."""
    folder = device(sys, pci)
    if (before := driver_of(sys, pci)) is not None:
        (sys / "bus/pci/drivers" / before / pci).unlink(missing_ok=True)
        (folder / "driver").unlink()
    if driver is not None:
        (sys / "bus/pci/drivers" / driver).mkdir(parents=True, exist_ok=True)
        link(sys / "bus/pci/drivers" / driver / pci, folder)
        link(folder / "driver", sys / "bus/pci/drivers" / driver)


def driver_of(sys: Path, pci: str) -> str | None:
    """Return a PCI function's driver; None if it has none, or does not exist."""
    try:
        return (sys / "bus/pci/devices" / pci / "driver").readlink().name
    except OSError:
        return None


def device(sys: Path, pci: str) -> Path:
    """Return the folder of a PCI function."""
    return (sys / "bus/pci/devices" / pci).resolve()


def remove_gpu(sys: Path, gpu: SimulatedGpu) -> None:
    """Remove the files of one GPU; the bridges stay, as when a card is removed."""
    set_driver(sys, gpu.pci, None)
    for path in (
        sys / "bus/pci/devices" / gpu.pci,
        *sys.glob(f"kernel/iommu_groups/*/devices/{gpu.pci}"),
    ):
        path.unlink(missing_ok=True)
    folder = (sys / "devices" / f"pci{gpu.root_bus}").joinpath(*gpu.bridges, gpu.pci)
    shutil.rmtree(folder, ignore_errors=True)


def write(folder: Path, attributes: Mapping[str, str]) -> None:
    """Write attributes of a device."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, value in attributes.items():
        (folder / name).write_text(f"{value}\n")


def link(path: Path, target: Path) -> None:
    """Make a relative link."""
    path.unlink(missing_ok=True)
    path.symlink_to(os.path.relpath(target, path.parent))


def _resource(gpu: SimulatedGpu) -> str:
    """Return the text of `resource`: BARs for registers, memory, and another 32 MiB.

    A wide BAR takes two lines, the second all zeros. Addresses are made up and do not overlap.
    """
    generation = int(gpu.card.compute_capability.partition(".")[0])
    registers = 64 if generation >= _FIRST_WITH_64_MIB_OF_REGISTERS else 16
    memory = gpu.card.memory.bar1_mib if gpu.card.memory else 0
    has_wide = generation in _WIDE_REGISTERS
    start = (0x2000_0000_0000 if has_wide else 0x8000_0000) + gpu.slot * 64 * _MIB
    lines = [_line(start, registers, _WIDE if has_wide else _NARROW)]
    start = 0x3800_0000_0000 + gpu.slot * 1024**4
    for size in (memory, 32):
        wide = _line(start, size, _WIDE)
        lines += ["", wide] if has_wide else [wide, ""]
        start += size * _MIB
    lines += [""] * (_RESOURCES - len(lines))
    return "\n".join(line or _line(0, 0, 0) for line in lines)


def _line(start: int, mib: int, flags: int) -> str:
    end = start + mib * _MIB - 1 if mib else 0
    return f"0x{start if mib else 0:016x} 0x{end:016x} 0x{flags if mib else 0:016x}"
