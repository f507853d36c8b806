"""One look at the machine: NVML's facts and /sys's put together.

In: an open NVML library, the PCI bus. Out: an `Inventory`. A GPU that cannot be described becomes a
`SickGpu` with the reason, and never hides another. GPUs are in order of PCI address, so that equal
machines give equal inventories whatever order NVML counts in.
"""

from collections.abc import Set as AbstractSet
from dataclasses import fields, replace
from typing import Protocol

from dra_driver.devices.model import Gpu, GpuUuid, Inventory, MigMode, MigSlot, SickGpu
from dra_driver.devices.nvml.library import NvmlFacts
from dra_driver.devices.pci import PciBus
from dra_driver.errors import DeviceError, LostError, SilenceError

# The display part of a DGX Station; it cannot compute, and NVIDIA's tools leave it out too.
_DISPLAY_ONLY = ("DGX Display", "NVIDIA DGX Display")


class Nvml(Protocol):
    """What discovery asks of an NVML library; see devices/nvml/library.py."""

    def driver_version(self) -> str:
        """Return the version of the kernel driver."""

    def cuda_version(self) -> tuple[int, int]:
        """Return the highest CUDA version, as (major, minor)."""

    def gpu_count(self) -> int:
        """Return how many GPUs there are."""

    def gpu_facts(self, index: int) -> NvmlFacts:
        """Return the facts of one GPU, or raise DeviceError; SilenceError if it does not answer."""


def discover(nvml: Nvml, pci: PciBus) -> Inventory:
    """Look at all GPUs once.

    Raises:
        DeviceError: the driver as a whole cannot be asked.
    """
    gpus: list[Gpu] = []
    sick: list[SickGpu] = []
    for index in range(nvml.gpu_count()):
        try:
            facts = nvml.gpu_facts(index)
        except DeviceError as error:
            sick.append(
                SickGpu(
                    index=index,
                    reason=str(error),
                    is_silent=isinstance(error, SilenceError),
                    is_lost=isinstance(error, LostError),
                )
            )
        else:
            if facts.product_name not in _DISPLAY_ONLY:
                gpus.append(_gpu(index, facts, pci))
    return Inventory(
        driver_version=nvml.driver_version(),
        cuda_version=nvml.cuda_version(),
        gpus=tuple(sorted(gpus, key=lambda gpu: gpu.pci_address)),
        sick=tuple(sick),
    )


def with_ownership(
    inventory: Inventory,
    made_here: AbstractSet[MigSlot],
    turned_on: AbstractSet[GpuUuid] = frozenset(),
) -> Inventory:
    """Return the inventory with what of MIG this driver did marked as such.

    Args:
        inventory: as it was found.
        made_here: the slots of the instances that this driver made.
        turned_on: the GPUs whose MIG mode it turned on.
    """
    gpus = tuple(_with_ownership(gpu, made_here, turned_on) for gpu in inventory.gpus)
    return inventory if gpus == inventory.gpus else replace(inventory, gpus=gpus)


def _with_ownership(
    gpu: Gpu, made_here: AbstractSet[MigSlot], turned_on: AbstractSet[GpuUuid]
) -> Gpu:
    if gpu.mig is None or gpu.mig_mode is not MigMode.ENABLED:
        return gpu
    instances = tuple(
        replace(instance, made_here=instance.slot in made_here) for instance in gpu.mig.instances
    )
    mig = replace(gpu.mig, instances=instances, turned_on_here=gpu.uuid in turned_on)
    return replace(gpu, mig=mig)


def _gpu(index: int, facts: NvmlFacts, pci: PciBus) -> Gpu:
    place = pci.facts(facts.pci_address)
    return Gpu(
        index=index,
        pcie_root=place.pcie_root,
        numa_node=place.numa_node,
        **{field.name: getattr(facts, field.name) for field in fields(facts)},
    )
