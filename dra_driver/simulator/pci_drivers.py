"""The IOMMU groups of a machine with an IOMMU, and the nodes of functions bound to vfio-pci.

In: a driver root with the files of its PCI functions, each bound to its driver (sysfs.py). Out: the
groups, and the device nodes by which virtual machines open functions. A function keeps its driver
as long as the machine exists, as if an admin had bound it at boot.
"""

import shutil
from pathlib import Path

from msgspec import Struct

from dra_driver.simulator import device_nodes, sysfs
from dra_driver.simulator.device_nodes import NodePlan
from dra_driver.simulator.iommu import AUDIO, VFIO, Iommu


class Bus(Struct, frozen=True, kw_only=True):
    """The PCI functions of the machine in the folder `root`.

    `addresses` are those of GPUs (including removed ones), bridges and NVSwitches.
    """

    root: Path
    iommu: Iommu
    addresses: tuple[str, ...]
    nodes: NodePlan

    @property
    def _sys(self) -> Path:
        return self.root / "sys"

    @property
    def _dev(self) -> Path:
        return self.root / "dev"

    def make(self) -> None:
        """Make the files of all functions other than GPUs and NVSwitches, and all groups."""
        device_nodes.make_iommu_nodes(self._dev, self.nodes, iommufd=self.iommu.iommufd)
        for function in self.iommu.functions:
            card = sysfs.device(self._sys, function.beside)
            attributes = {
                "vendor": function.vendor,
                "device": function.device,
                "subsystem_vendor": function.vendor,
                "subsystem_device": "0x0000",
                "class": function.pci_class,
                "numa_node": (card / "numa_node").read_text().strip(),
            }
            sysfs.add_function(self._sys, card.with_name(function.pci), attributes)
            sysfs.set_driver(self._sys, function.pci, function.driver)
        self.join()

    def join(self) -> None:
        """Link every function to its group; those with a group keep it."""
        # Removed cards count as well, because numbers are assigned at boot.
        everything = {*self.addresses, *(function.pci for function in self.iommu.functions)}
        for pci, number in self.iommu.group_of(everything).items():
            group = self._sys / f"kernel/iommu_groups/{number}"
            (group / "devices").mkdir(parents=True, exist_ok=True)
            folder = sysfs.device(self._sys, pci)
            if folder.exists():
                sysfs.link(group / "devices" / pci, folder)
                sysfs.link(folder / "iommu_group", group)
            if sysfs.driver_of(self._sys, pci) == VFIO and not self._vfio_devices(pci):
                self._make_vfio(pci)
        for function in self.iommu.functions:
            card = sysfs.device(self._sys, function.beside)
            if function.pci_class == AUDIO and card.exists():  # it sleeps only if the card does
                between = f"virtual/devlink/pci:{card.name}--pci:{function.pci}"
                (self._sys / "devices" / between).mkdir(parents=True, exist_ok=True)
                sysfs.link(card / f"consumer:pci:{function.pci}", self._sys / "devices" / between)

    def leave(self, pci: str) -> None:
        """Remove the nodes by which virtual machines open a removed function."""
        for path in self._vfio_devices(pci):
            (self._dev / "vfio/devices" / path.name).unlink(missing_ok=True)
            shutil.rmtree(path.parent)
        group = self._group(pci)
        if not any(group.glob("devices/*/vfio-dev")):
            (self._dev / "vfio" / group.name).unlink(missing_ok=True)

    def _group(self, pci: str) -> Path:
        return (self._sys / "bus/pci/devices" / pci / "iommu_group").resolve()

    def _vfio_devices(self, pci: str) -> list[Path]:
        return list((self._sys / "bus/pci/devices").glob(f"{pci}/vfio-dev/vfio*"))

    def _make_vfio(self, pci: str) -> None:
        taken = {path.name for path in self._vfio_devices("*")}
        number = next(n for n in range(256) if f"vfio{n}" not in taken)
        folder = sysfs.device(self._sys, pci) / f"vfio-dev/vfio{number}"
        folder.mkdir(parents=True)
        device_nodes.make_group_node(self._dev, int(self._group(pci).name), self.nodes)
        if self.iommu.iommufd:
            sysfs.write(folder, {"dev": f"{self.nodes.vfio_device_major}:{number}"})
            device_nodes.make_vfio_node(self._dev, number, self.nodes)
