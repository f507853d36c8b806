"""Which GPUs NVLink joins: islands, and meshes within them. Pure.

In: the GPUs of a node, each with its links and its fabric. Out: the groups of each GPU, under names
that do not change. Rules: a link counts while one of its ends says that it is active. NVSwitches
are joined with each other, so they join all GPUs that have links to one. A GPU that reports a
fabric (Hopper and newer) is joined only once it has joined the fabric, and only within its clique.
A GPU that an admin has put into MIG mode has no peer access over NVLink (MIG User Guide), so it is
in no group; a GPU that this driver switches as claims come and go keeps its place.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from itertools import combinations

from msgspec import Struct

from dra_driver.devices.model import Gpu, GpuUuid
from dra_driver.devices.pci import pci_order

_Links = Mapping[frozenset[GpuUuid], int]
"""The number of links between two GPUs; pairs without a link are not in it."""


class Joined(Struct, frozen=True, kw_only=True):
    """The groups of a GPU, each named by the UUID of its GPU with the lowest PCI address.

    Attributes:
        island: all GPUs that can be reached over NVLink, through others if need be.
        mesh: GPUs of the island that are all joined to each other, directly or by NVSwitch. None
            for a GPU that is left over after the island has been divided into meshes.
    """

    island: GpuUuid
    mesh: GpuUuid | None = None


def joined(gpus: Iterable[Gpu]) -> Mapping[GpuUuid, Joined]:
    """Return the groups of each GPU that is joined to another one; other GPUs are not included.

    An island is divided by taking out the largest mesh first: of meshes of the same size the one
    with the most links, then the one with the lowest PCI addresses.
    """
    able = [gpu for gpu in gpus if not gpu.was_put_in_mig_mode]
    in_order = [gpu.uuid for gpu in sorted(able, key=lambda gpu: pci_order(gpu.pci_address))]
    links = _links(able)
    joined_gpus: dict[GpuUuid, Joined] = {}
    for island in _islands(in_order, links):
        meshes = {uuid: mesh[0] for mesh in _meshes(island, links) for uuid in mesh}
        joined_gpus |= {uuid: Joined(island=island[0], mesh=meshes.get(uuid)) for uuid in island}
    return joined_gpus


def _links(gpus: Collection[Gpu]) -> _Links:
    """Count the links between any two GPUs, by the end that sees more of them."""
    at = {gpu.pci_address: gpu.uuid for gpu in gpus}
    seen: Counter[tuple[GpuUuid, GpuUuid]] = Counter()
    to_switch: Counter[GpuUuid] = Counter()
    for gpu in gpus:
        for link in gpu.nvlinks:
            if not link.is_active:
                continue
            peer = at.get(link.peer) if link.peer is not None else None
            if peer is not None and peer != gpu.uuid:
                seen[gpu.uuid, peer] += 1
            elif link.to_switch:
                to_switch[gpu.uuid] += 1
    links: Counter[frozenset[GpuUuid]] = Counter()  # `|=` keeps the larger count
    for pair, count in seen.items():
        links |= Counter({frozenset(pair): count})
    for left, other in combinations(gpus, 2):
        if _switched(left, other):
            count = min(to_switch[left.uuid], to_switch[other.uuid])
            links |= Counter({frozenset((left.uuid, other.uuid)): count})
    return links


def _switched(gpu: Gpu, other: Gpu) -> bool:
    """Tell whether two GPUs with links to NVSwitch can reach each other through it."""
    if gpu.fabric is None or other.fabric is None:
        return gpu.fabric is other.fabric
    if not (gpu.fabric.is_joined and other.fabric.is_joined):
        return False
    return (gpu.fabric.cluster, gpu.fabric.clique) == (other.fabric.cluster, other.fabric.clique)


def _islands(in_order: Iterable[GpuUuid], links: _Links) -> list[list[GpuUuid]]:
    """Return the connected components with two or more GPUs, each in order."""
    left = list(in_order)
    islands = []
    while left:
        island, edge = {left[0]}, [left[0]]
        while edge:
            here = edge.pop()
            near = [gpu for gpu in left if gpu not in island and frozenset((here, gpu)) in links]
            island.update(near)
            edge += near
        if len(island) > 1:
            islands.append([gpu for gpu in left if gpu in island])
        left = [gpu for gpu in left if gpu not in island]
    return islands


def _meshes(island: list[GpuUuid], links: _Links) -> list[list[GpuUuid]]:
    """Divide an island into meshes of two or more GPUs, each in order."""
    left, meshes = list(island), []
    while len(best := max(_cliques(left, links), key=lambda mesh: _rank(mesh, left, links))) > 1:
        meshes.append(best)
        left = [gpu for gpu in left if gpu not in best]
    return meshes


def _rank(
    mesh: list[GpuUuid], in_order: list[GpuUuid], links: _Links
) -> tuple[int, int, list[int]]:
    count = sum(links[frozenset(pair)] for pair in combinations(mesh, 2))
    return len(mesh), count, [-in_order.index(gpu) for gpu in mesh]


def _cliques(gpus: list[GpuUuid], links: _Links) -> Iterable[list[GpuUuid]]:
    """Yield the maximal groups of GPUs that are all joined, each in order (Bron and Kerbosch)."""
    near = {
        gpu: {other for other in gpus if frozenset((gpu, other)) in links and other != gpu}
        for gpu in gpus
    }
    waiting: list[tuple[set[GpuUuid], set[GpuUuid], set[GpuUuid]]] = [(set(), set(gpus), set())]
    while waiting:
        group, may_join, done = waiting.pop()
        if not may_join and not done:
            yield [gpu for gpu in gpus if gpu in group]
            continue
        pivot = max(sorted(may_join | done), key=lambda gpu: len(near[gpu] & may_join))
        for here in sorted(may_join - near[pivot]):
            waiting.append((group | {here}, may_join & near[here], done & near[here]))
            may_join = may_join - {here}
            done = done | {here}
