"""Which driver the PCI functions of a machine with an IOMMU have, and what follows from it.

In: a driver root with the GPUs' files, and what binds or unbinds a function (kernel.py). Out: the
links, IOMMU groups, nodes and /proc files as the kernel and the drivers leave them. NVML has a GPU
while nvidia has it; while nvidia lets go of it, only for processes that already have NVML open.
"""

import platform
import shutil
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from dra_driver.simulator import device_nodes, procfs, sysfs
from dra_driver.simulator.device_nodes import NodePlan
from dra_driver.simulator.hardware import SimulatedGpu
from dra_driver.simulator.iommu import AUDIO, NVIDIA, VFIO, Iommu
from dra_driver.simulator.layout import ABSENT, Fact
from dra_driver.simulator.state import State, clear_mig

_MODES = (Fact.COMPUTE_MODE, Fact.TIME_SLICE, Fact.PERSISTENCE_MODE)
# One module for all that says so, and one that knows a card better.
_ALIASES = """\
alias vfio_pci:v*d*sv*sd*bc*sc*i* vfio_pci
alias vfio_pci:v000010DEd00002342sv*sd*bc*sc*i* nvgrace_gpu_vfio_pci
"""


class Bus(Struct, frozen=True, kw_only=True):
    """The PCI functions of the machine in the folder `root`, GPUs as they are after boot."""

    root: Path
    iommu: Iommu
    gpus: tuple[SimulatedGpu, ...]
    nodes: NodePlan
    driver_version: str

    @property
    def _sys(self) -> Path:
        return self.root / "sys"

    @property
    def _dev(self) -> Path:
        return self.root / "dev"

    @property
    def drivers(self) -> set[str]:
        """The drivers that there are."""
        others = {function.driver for function in self.iommu.functions}
        return {NVIDIA, VFIO, *(name for name in others if name is not None)}

    # After boot

    def make(self) -> None:
        """Make the files of all functions other than GPUs, and all groups."""
        for driver in self.drivers:
            (self._sys / "bus/pci/drivers" / driver).mkdir(parents=True, exist_ok=True)
        sysfs.write(self._sys / "module/vfio_pci", {"initstate": "live"})
        aliases = self.root / "lib/modules" / platform.release() / "modules.alias"
        aliases.parent.mkdir(parents=True, exist_ok=True)
        aliases.write_text(_ALIASES)
        device_nodes.make_iommu_nodes(self._dev, self.nodes, iommufd=self.iommu.iommufd)
        for function in self.iommu.functions:
            card = sysfs.device(self._sys, function.beside)
            folder = card.with_name(function.pci)
            attributes = {
                "vendor": function.vendor,
                "device": function.device,
                "subsystem_vendor": function.vendor,
                "subsystem_device": "0x0000",
                "class": function.pci_class,
                "numa_node": (card / "numa_node").read_text().strip(),
            }
            sysfs.add_function(self._sys, folder, attributes)
            sysfs.set_driver(self._sys, function.pci, function.driver)
        self.join_groups()

    def join_groups(self) -> None:
        """Link every function with its group; those that have one already keep it."""
        # Pulled cards count, too, because numbers are given out at boot.
        gpus = {address for gpu in self.gpus for address in (gpu.pci, *gpu.bridges)}
        others = {function.pci for function in self.iommu.functions}
        for pci, number in self.iommu.group_of(gpus | others).items():
            group = self._sys / f"kernel/iommu_groups/{number}"
            (group / "devices").mkdir(parents=True, exist_ok=True)
            folder = sysfs.device(self._sys, pci)
            if folder.exists():
                sysfs.link(group / "devices" / pci, folder)
                sysfs.link(folder / "iommu_group", group)
        for function in self.iommu.functions:
            card = sysfs.device(self._sys, function.beside)
            if function.pci_class == AUDIO and card.exists():  # it sleeps only if the card does
                between = f"virtual/devlink/pci:{card.name}--pci:{function.pci}"
                (self._sys / "devices" / between).mkdir(parents=True, exist_ok=True)
                sysfs.link(card / f"consumer:pci:{function.pci}", self._sys / "devices" / between)

    def boot(self, now: State) -> None:
        """Bind every function to its driver after boot, with the number that a GPU has then."""
        functions = [*(gpu.pci for gpu in self.gpus), *(f.pci for f in self.iommu.functions)]
        there = [pci for pci in functions if sysfs.device(self._sys, pci).exists()]
        for node in self._dev.glob("nvidia[0-9]*"):
            node.unlink()
        for pci in there:
            self.leave(now, pci)
            folder = sysfs.device(self._sys, pci)
            forgotten = {"driver_override": sysfs.NO_OVERRIDE, "sriov_numvfs": "0"}
            sysfs.write(
                folder, {name: word for name, word in forgotten.items() if (folder / name).exists()}
            )
        for pci in there:
            gpu = self.gpu(pci)
            self.start(now, pci, minor=gpu.minor if gpu else None)

    def start(self, now: State, pci: str, *, minor: int | None = None) -> None:
        """Bind a function that has no driver to its driver after boot."""
        driver = self.iommu.first_driver(pci)
        sysfs.set_driver(self._sys, pci, driver)
        if driver is not None:
            self.enter(now, pci, driver, minor=minor)

    def probe(self, now: State) -> None:
        """Bind functions without a driver to nvidia, as its module does when it is loaded."""
        for gpu in self.gpus:
            is_free = sysfs.driver_of(self._sys, gpu.pci) is None
            if is_free and self.is_taken_by(NVIDIA, gpu.pci):
                sysfs.set_driver(self._sys, gpu.pci, NVIDIA)
                self.enter(now, gpu.pci, NVIDIA)

    # One function

    def is_taken_by(self, driver: str, pci: str) -> bool:
        """Tell whether a driver takes a function: by driver_override, or because it knows it."""
        path = self._sys / "bus/pci/devices" / pci / "driver_override"
        if "/" in pci or not path.exists():
            return False
        # A plain file: after a shorter word there may be the end of an earlier one.
        named = path.read_text().partition("\n")[0]
        return named == driver or (
            named in ("", sysfs.NO_OVERRIDE) and self.iommu.takes(driver, pci)
        )

    def gpu(self, pci: str) -> SimulatedGpu | None:
        """Return the GPU at an address, as it is after boot."""
        return next((gpu for gpu in self.gpus if gpu.pci == pci), None)

    def group(self, pci: str) -> Path:
        """Return the folder of a function's IOMMU group."""
        return (self._sys / "bus/pci/devices" / pci / "iommu_group").resolve()

    def enter(self, now: State, pci: str, driver: str, *, minor: int | None = None) -> None:
        """Do what follows when a function, which shows its driver already, is bound.

        nvidia gives a GPU the first minor number that is free, unless `minor` is given.
        """
        gpu = self.gpu(pci)
        if driver == VFIO:
            self._enter_vfio(pci)
        elif driver == NVIDIA and gpu is not None:
            taken = {now.fact(each.slot, Fact.MINOR) for each in self.gpus}
            number = next(n for n in range(256) if n not in taken) if minor is None else minor
            now.set_fact(gpu.slot, Fact.MINOR, number)
            gpu = replace(gpu, minor=number)
            procfs.add_gpu(self.root / "proc", gpu, self.driver_version)
            if self.nodes.drm:
                sysfs.add_drm(self._sys, gpu)
            device_nodes.make_gpu_nodes(self._dev, gpu, self.nodes)
            now.set_present(gpu.slot, present=True)

    def leave(self, now: State, pci: str) -> None:
        """Do what follows when a function is unbound, from whatever it has been bound to."""
        sysfs.set_driver(self._sys, pci, None)
        self._leave_vfio(pci)
        gpu = self.gpu(pci)
        if gpu is None or not now.present(gpu.slot):
            return
        gpu = self.as_it_is(now, gpu)
        now.set_present(gpu.slot, present=False)
        with now.locked() as record:
            facts = record.gpus[gpu.slot].facts
            for mode in _MODES:
                if facts[mode] != ABSENT:
                    facts[mode] = 0
            facts[Fact.MINOR] = ABSENT
            clear_mig(record, gpu.slot, is_reload=True)
        for capability in procfs.remove_instances(self.root / "proc", gpu):
            device_nodes.remove_capability(self._dev, capability)
        device_nodes.remove_drm_nodes(self._dev, gpu)  # as there, /dev/nvidia<N> stays
        sysfs.remove_drm(self._sys, gpu)
        procfs.remove_gpu(self.root / "proc", gpu)

    def nodes_of(self, now: State, pci: str) -> list[Path]:
        """List the nodes by which a function is used."""
        group = self._dev / "vfio" / self.group(pci).name
        devices = [self._dev / "vfio/devices" / path.name for path in self._vfio_devices(pci)]
        gpu = self.gpu(pci)
        cards = [self._dev / f"nvidia{self.as_it_is(now, gpu).minor}"] if gpu else []
        paths = [group, *devices] if devices else cards
        return [path for path in paths if path.exists()]

    @staticmethod
    def as_it_is(now: State, gpu: SimulatedGpu) -> SimulatedGpu:
        """Return a GPU with the minor number that it has now: -1 if nvidia does not have it."""
        number = now.fact(gpu.slot, Fact.MINOR)
        return replace(gpu, minor=-1 if number is None else number)

    def _vfio_devices(self, pci: str) -> list[Path]:
        return list((self._sys / "bus/pci/devices").glob(f"{pci}/vfio-dev/vfio*"))

    def _enter_vfio(self, pci: str) -> None:
        taken = {path.name for path in self._vfio_devices("*")}
        number = next(n for n in range(256) if f"vfio{n}" not in taken)
        folder = sysfs.device(self._sys, pci) / f"vfio-dev/vfio{number}"
        folder.mkdir(parents=True)
        device_nodes.make_group_node(self._dev, int(self.group(pci).name), self.nodes)
        if self.iommu.iommufd:
            sysfs.write(folder, {"dev": f"{self.nodes.vfio_device_major}:{number}"})
            device_nodes.make_vfio_node(self._dev, number, self.nodes)

    def _leave_vfio(self, pci: str) -> None:
        for path in self._vfio_devices(pci):
            (self._dev / "vfio/devices" / path.name).unlink(missing_ok=True)
            shutil.rmtree(path.parent)
        group = self.group(pci)
        if not any(group.glob("devices/*/vfio-dev")):
            (self._dev / "vfio" / group.name).unlink(missing_ok=True)
