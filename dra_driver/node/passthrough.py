"""What gives GPUs to virtual machines on this node, put together (`--vfio`)."""

import platform
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from dra_driver.cdi.roots import Roots
from dra_driver.claims.model.record import ClaimRecord
from dra_driver.devices.holders import Holder
from dra_driver.devices.model import GpuUuid, Inventory, PciAddress
from dra_driver.devices.passthrough.bus import PciBus
from dra_driver.devices.passthrough.gpus import PassthroughGpus
from dra_driver.devices.passthrough.variants import module_for, vfio_driver
from dra_driver.devices.session import DriverSession
from dra_driver.sharing.passthrough import Passthrough, PassthroughNode
from dra_driver.sharing.steps import PassThrough

_HOST_DEV = "/dev"


def passthrough_gpus(
    bus: PciBus, roots: Roots, records: Callable[[], Iterable[ClaimRecord]]
) -> PassthroughGpus:
    """Return what finds the GPUs that virtual machines can have, or have by the claims' records."""

    def recorded() -> Mapping[PciAddress, GpuUuid]:
        return {
            step.address: step.gpu
            for record in records()
            for step in record.steps
            if isinstance(step, PassThrough)
        }

    return PassthroughGpus(
        bus,
        sys_root=roots.sys,
        proc_root=roots.proc,
        dev=lambda: _dev(roots)[0],
        recorded=recorded,
    )


def vfio_modules(bus: PciBus, roots: Roots, addresses: Iterable[PciAddress]) -> set[str]:
    """Return the kernel modules that GPUs need for virtual machines, and that are not loaded."""
    found = ((bus.modalias(address), _aliases(roots)) for address in addresses)
    return {
        module_for(modalias, files)
        for modalias, files in found
        if vfio_driver(modalias, files, bus.has_driver) is None
    }


def passthrough(
    bus: PciBus,
    session: DriverSession,
    roots: Roots,
    *,
    holders: Callable[[int], tuple[Holder, ...]],
    on_switched: Callable[[], None],
    clock: Callable[[], float],
) -> Passthrough:
    """Return what gives GPUs to virtual machines, and takes them back.

    It is there without `--vfio`, too: claims that were prepared with it have to end.
    """
    node = PassthroughNode(
        bus=bus,
        proc=roots.proc,
        dev=lambda: _dev(roots),
        aliases=_aliases(roots),
        holders=holders,
        on_switched=on_switched,
        clock=clock,
    )
    return Passthrough(node, session)


def stuck(inventory: Inventory) -> dict[GpuUuid, str]:
    """Return the GPUs of which nothing is offered while the kernel is in the switch, and why."""
    return {
        card.gpu.uuid: "the kernel has not come back from the switch of its driver"
        for card in inventory.passthrough
        if card.hangs
    }


def _aliases(roots: Roots) -> tuple[Path, ...]:
    path = f"lib/modules/{platform.release()}/modules.alias"
    return Path("/") / path, roots.driver / path


def _dev(roots: Roots) -> tuple[Path, str]:
    """Return where the kernel's own nodes are, and the same on the host.

    A driver container's /dev may have NVIDIA's alone.
    """
    roots = roots.now()
    if roots.dev_can_move and not (roots.dev / "vfio").is_dir():
        return Path(_HOST_DEV), _HOST_DEV
    return roots.dev, roots.dev_on_host
