"""Puts devices in an order that lets more claims fit. Pure.

Rule: the scheduler takes the first device that fits. It goes through slices by name and devices by
position, and scores nothing (kubernetes/enhancements#4970). The order does not depend on which
claims exist, so nothing has to be written when they come and go. These are its rules:

- Whole GPUs come first, because most pods ask for one, and the scheduler evaluates the selectors of
  each device before the one that fits, on every node that it considers.
- Among different cards, the least capable comes first. So a claim that names no card leaves the
  better cards to claims that do. Cards are compared by generation,
  the major number of the compute capability. Within a generation, the large data centre chips
  (P100, V100, A100: x.0) are above the others (P4, T4, L40S), whatever their memory; then memory
  decides. A card that does not report its memory uses the host's, and counts as the least capable.
- Shares come after whole GPUs, spread over their GPUs or packed onto few (k8s-device-plugin#1621).
- GPUs that somebody put in MIG mode are divided first and given out as a whole last, because they
  need no switch, which may be refused. A mode that this driver turned on does not count, because it
  comes and goes with claims.
- Partitions fill one GPU after another, from the first. Whole GPUs are offered from the last, so
  the two kinds of claims meet as late as possible; GPUs that cannot be divided come before all.
- On a GPU, partitions that need less come first, so a claim that accepts any takes the smallest.
- Among the placements of one profile, those that block the fewest larger partitions come first. So
  a small partition goes beside another small one, at the end where no large one can start.
"""

from collections.abc import Container, Iterable, Sequence
from itertools import chain, zip_longest
from typing import TypeVar

from dra_driver.devices.device import Mig, profile_of
from dra_driver.devices.model import Gpu, MigProfile
from dra_driver.devices.pci import pci_order

T = TypeVar("T")


def capability(gpu: Gpu) -> tuple[int, bool, bool, int]:
    """Return the key by which cards are compared; a higher one is more capable."""
    major, minor = gpu.cuda_compute_capability
    return major, minor == 0, gpu.memory_bytes is None, gpu.memory_bytes or 0


def by_address(gpus: Iterable[Gpu]) -> tuple[Gpu, ...]:
    """Return the GPUs in the order of their PCI addresses."""
    return tuple(sorted(gpus, key=lambda gpu: (pci_order(gpu.pci_address), gpu.index)))


def in_fill_order(gpus: Iterable[Gpu]) -> tuple[Gpu, ...]:
    """Return the GPUs in the order of filling; those that others put in MIG mode come first."""
    return tuple(sorted(by_address(gpus), key=lambda gpu: not gpu.was_put_in_mig_mode))


def in_whole_order(gpus: Iterable[Gpu], divided: Container[Gpu]) -> tuple[Gpu, ...]:
    """Return the GPUs in the order in which they are offered as a whole.

    GPUs whose partitions are offered too (`divided`) come last. Among equal cards of these, the one
    that partitions fill last comes first.
    """
    ordered = in_fill_order(gpus)
    plain = [gpu for gpu in ordered if gpu not in divided]
    others = [gpu for gpu in reversed(ordered) if gpu in divided]
    plain.sort(key=capability)
    others.sort(key=lambda gpu: (gpu.was_put_in_mig_mode, capability(gpu)))
    return (*plain, *others)


def in_share_order(offered: Sequence[Sequence[T]], *, packed: bool) -> tuple[T, ...]:
    """Return the shares of several devices in the order in which they are given out.

    If packed, all shares of one device come before the next device's; else devices take turns.
    """
    if packed:
        return tuple(chain.from_iterable(offered))
    rows = zip_longest(*([(part,) for part in each] for each in offered), fillvalue=())
    return tuple(chain.from_iterable(chain.from_iterable(rows)))


def in_packing_order(gpu: Gpu, places: Sequence[Mig]) -> tuple[Mig, ...]:
    """Return the partitions of one GPU, with those first that leave the most room for others."""
    profiles = {place: profile_of(gpu, place) for place in places}
    sizes = {
        place: (place.placement.size, profile.compute_slices) for place, profile in profiles.items()
    }
    shapes = {(place.placement, sizes[place]) for place in places}

    def blocked(place: Mig) -> int:
        """Count the larger shapes that would no longer fit, weighted by their size."""
        return sum(
            placement.size
            for placement, size in shapes
            if placement.overlaps(place.placement) and size > sizes[place]
        )

    return tuple(
        sorted(
            places,
            key=lambda place: (
                sizes[place],
                _media(profiles[place]),
                place.profile_id,
                blocked(place),
                -place.placement.start,
            ),
        )
    )


def _media(profile: MigProfile) -> tuple[int, ...]:
    """Return what a profile takes in addition to memory and compute slices."""
    return (
        profile.decoders + profile.encoders + profile.jpeg_engines + profile.ofa_engines,
        profile.copy_engines,
        profile.multiprocessors,
    )
