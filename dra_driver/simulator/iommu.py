"""A profile's IOMMU: which PCI functions share a group, and which drivers they are bound to.

In: a profile's YAML. Out: a validated `Iommu`, and each PCI function's group. As on a server
whose bridges have ACS, every function, bridges included, has its own group, except those that the
profile puts together.
"""

from collections.abc import Iterable, Sequence
from typing import Annotated, Literal, Self

import pydantic

from dra_driver.simulator.parts import HexWord, PciAddress, PciClass

NVIDIA, VFIO = "nvidia", "vfio-pci"
AUDIO = "0x040300"

DriverName = Annotated[str, pydantic.StringConstraints(pattern=r"^[\w-]{1,60}$")]


class _Part(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="forbid", frozen=True)


class Function(_Part):
    """A PCI function that is not a GPU, in the group of the GPU that it is `beside`.

    By default it is the audio function of a card with outputs. With driver null it is unbound.
    """

    pci: PciAddress
    beside: PciAddress
    vendor: HexWord = "0x10de"
    device: HexWord
    pci_class: PciClass = AUDIO
    driver: DriverName | None = "snd_hda_intel"


class Iommu(_Part):
    """The machine has an IOMMU.

    `iommufd`: the kernel has /dev/iommu, and a character device for each function bound to
    vfio-pci. `groups` are functions that share one. `drivers` is what GPUs are bound to if not to
    nvidia: to vfio-pci, as by the kernel's command line, or to none.
    """

    iommufd: bool = False
    groups: list[Annotated[list[PciAddress], pydantic.Field(min_length=2)]] = []
    functions: list[Function] = []
    drivers: dict[PciAddress, Literal["nvidia", "vfio-pci", "none"]] = {}

    @pydantic.model_validator(mode="after")
    def _groups_differ(self) -> Self:
        grouped = [pci for group in self.groups for pci in group]
        if doubled := {pci for pci in grouped if grouped.count(pci) > 1}:
            raise ValueError(f"groups: {sorted(doubled)} is named twice")
        return self

    def check(self, gpus: Sequence[str], bridges: Iterable[str]) -> None:
        """Check that all addresses are of this machine. Raises ValueError if one is not."""
        others = [function.pci for function in self.functions]
        taken = [*gpus, *set(bridges), *others]
        if doubled := {pci for pci in taken if taken.count(pci) > 1}:
            raise ValueError(f"iommu.functions: {sorted(doubled)} exists already")
        named = {
            "functions": ([function.beside for function in self.functions], gpus),
            "drivers": (self.drivers, gpus),
            "groups": ([pci for group in self.groups for pci in group], taken),
        }
        for field, (addresses, known) in named.items():
            if unknown := sorted(set(addresses) - set(known)):
                what = "GPU" if known is gpus else "PCI function"
                raise ValueError(f"iommu.{field}: the machine has no {what} {unknown[0]}")

    def driver_of(self, pci: str) -> str | None:
        """Return the driver that a GPU is bound to, or None."""
        chosen = self.drivers.get(pci, NVIDIA)
        return None if chosen == "none" else chosen

    def group_of(self, addresses: Iterable[str]) -> dict[str, int]:
        """Return the number of each function's group; they are in order of first address."""
        first = {pci: min(group) for group in self.groups for pci in group}
        for function in self.functions:
            first[function.pci] = first.get(function.beside, function.beside)
        leaders = {pci: first.get(pci, pci) for pci in sorted(addresses)}
        numbers = {leader: number for number, leader in enumerate(sorted(set(leaders.values())))}
        return {pci: numbers[leader] for pci, leader in leaders.items()}
