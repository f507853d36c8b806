"""The /sys files that go with simulated GPUs.

In: the GPUs. Out: below a sys folder, the PCI tree the kernel shows: devices/pci<root>/<bridges>/
<address> with its attributes, bus/pci/devices/<address> linking there (which is how a PCIe root is
found), the DRM nodes' names, and the module's version.
"""

import os
import shutil
from collections.abc import Mapping
from pathlib import Path

from dra_driver.simulator.device_nodes import drm_names
from dra_driver.simulator.hardware import NVIDIA_VENDOR, SimulatedGpu

_CLASS_3D = "0x030200"
_CLASS_BRIDGE = "0x060400"


def write_driver(sys: Path, driver_version: str) -> None:
    """Write the files that do not depend on the GPUs."""
    _write(sys / "module/nvidia", {"version": driver_version, "initstate": "live"})
    (sys / "bus/pci/drivers/nvidia").mkdir(parents=True, exist_ok=True)
    (sys / "bus/pci/devices").mkdir(parents=True, exist_ok=True)


def add_gpu(sys: Path, gpu: SimulatedGpu, cpus_per_numa_node: int, *, drm: bool) -> None:
    """Write the files of one GPU and of the bridges above it."""
    folder = sys / "devices" / f"pci{gpu.root_bus}"
    for bridge in gpu.bridges:
        folder /= bridge
        _write(folder, {"class": _CLASS_BRIDGE, "numa_node": str(gpu.numa_node)})
        _link(sys / "bus/pci/devices" / bridge, folder)
    folder /= gpu.pci
    first = max(gpu.numa_node, 0) * cpus_per_numa_node
    attributes = {
        "vendor": f"0x{NVIDIA_VENDOR:04x}",
        "device": gpu.card.device_id,
        "subsystem_vendor": gpu.card.subsystem_vendor,
        "subsystem_device": gpu.card.subsystem_id,
        "class": _CLASS_3D,
        "numa_node": str(gpu.numa_node),
        "local_cpulist": f"{first}-{first + cpus_per_numa_node - 1}",
        "enable": "1",
    }
    _write(folder, attributes)
    for name, _, _ in drm_names(gpu) if drm else ():
        (folder / "drm" / name).mkdir(parents=True, exist_ok=True)
    _link(sys / "bus/pci/devices" / gpu.pci, folder)
    _link(sys / "bus/pci/drivers/nvidia" / gpu.pci, folder)
    _link(folder / "driver", sys / "bus/pci/drivers/nvidia")


def remove_gpu(sys: Path, gpu: SimulatedGpu) -> None:
    """Remove the files of one GPU; the bridges stay, as when a card is pulled."""
    (sys / "bus/pci/devices" / gpu.pci).unlink(missing_ok=True)
    (sys / "bus/pci/drivers/nvidia" / gpu.pci).unlink(missing_ok=True)
    folder = (sys / "devices" / f"pci{gpu.root_bus}").joinpath(*gpu.bridges, gpu.pci)
    shutil.rmtree(folder, ignore_errors=True)


def _write(folder: Path, attributes: Mapping[str, str]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, value in attributes.items():
        (folder / name).write_text(f"{value}\n")


def _link(link: Path, target: Path) -> None:
    link.unlink(missing_ok=True)
    link.symlink_to(os.path.relpath(target, link.parent))
