"""Which GPUs NVLink joins, as islands (dra-driver-nvidia-gpu#174). Pure.

In: the GPUs of a node, each with its links and its fabric. Out: the island of each GPU, under a
name that does not change. Rules: a link counts while one of its ends says that it is active.
NVSwitches are joined with each other, so they join all GPUs that have links to one. A GPU that
reports a fabric (Hopper and newer) is joined only once it has joined the fabric, and only within
its clique.
A GPU that an admin has put into MIG mode has no peer access over NVLink (MIG User Guide), so it is
in no island; a GPU that this driver switches as claims come and go keeps its place.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from itertools import combinations

from dra_driver.devices.model import Gpu, GpuUuid
from dra_driver.devices.pci import pci_order


def joined(gpus: Iterable[Gpu]) -> Mapping[GpuUuid, GpuUuid]:
    """Return the island of each GPU that is joined to another one; other GPUs are not included.

    An island is all GPUs that can be reached over NVLink, through others if need be. Its name is
    the UUID of its GPU with the lowest PCI address.
    """
    able = [gpu for gpu in gpus if not gpu.was_put_in_mig_mode]
    near: defaultdict[GpuUuid, set[GpuUuid]] = defaultdict(set)
    for one, other in _links(able):
        near[one].add(other)
        near[other].add(one)
    islands: dict[GpuUuid, GpuUuid] = {}
    for gpu in sorted(able, key=lambda gpu: pci_order(gpu.pci_address)):
        edge = {gpu.uuid} & near.keys() - islands.keys()
        while edge:
            here = edge.pop()
            islands[here] = gpu.uuid
            edge |= near[here] - islands.keys()
    return islands


def _links(gpus: Collection[Gpu]) -> Iterable[tuple[GpuUuid, GpuUuid]]:
    """Yield the pairs of GPUs that are linked to each other, or to NVSwitch."""
    at = {gpu.pci_address: gpu.uuid for gpu in gpus}
    to_switch: dict[GpuUuid, Gpu] = {}
    for gpu in gpus:
        for link in gpu.nvlinks:
            if not link.is_active:
                continue
            if link.peer in at and link.peer != gpu.pci_address:
                yield gpu.uuid, at[link.peer]
            elif link.to_switch:
                to_switch[gpu.uuid] = gpu
    for one, other in combinations(to_switch.values(), 2):
        if _switched(one, other):
            yield one.uuid, other.uuid


def _switched(gpu: Gpu, other: Gpu) -> bool:
    """Tell whether two GPUs with links to NVSwitch can reach each other through it."""
    if gpu.fabric is None or other.fabric is None:
        return gpu.fabric is other.fabric
    if not (gpu.fabric.is_joined and other.fabric.is_joined):
        return False
    return (gpu.fabric.cluster, gpu.fabric.clique) == (other.fabric.cluster, other.fabric.clique)
