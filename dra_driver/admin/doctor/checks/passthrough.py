"""What keeps GPUs from virtual machines on a node that offers them. Pure.

What a card lacks is said in the driver's own words (devices/passthrough/rules.py), whose second
half, behind a colon, is what to do.
"""

from collections.abc import Iterator, Sequence

from dra_driver.admin.doctor.checks.finding import Seen, info, ok, warning
from dra_driver.devices.model import GPU_DRIVER, PassthroughGpu
from dra_driver.words import count, named


def judged(cards: Sequence[PassthroughGpu]) -> Iterator[Seen]:
    """Judge whether virtual machines can have the GPUs of the PCI bus."""
    offered = [card for card in cards if card.problem is None]
    by_problem: dict[str, list[PassthroughGpu]] = {}
    for card in cards:
        if card.problem is not None:
            by_problem.setdefault(card.problem, []).append(card)
    for problem, refused in by_problem.items():
        reason, _, advice = problem.partition(": ")
        verb = "is" if len(refused) == 1 else "are"
        are_for_containers = offered and all(card.driver == GPU_DRIVER for card in refused)
        yield (info if are_for_containers else warning)(
            f"{named([card.gpu.pci_address for card in refused])} {verb} not offered to virtual "
            f"machines: {reason}",
            advice or "nothing, if that is intended",
        )
    if offered:
        yield ok(f"{count(len(offered), 'GPU')} can be given to virtual machines")
    elif not cards:
        yield info("there is no GPU on the PCI bus to give to a virtual machine")
