"""What keeps GPUs from virtual machines on a node that offers them. Pure.

What a card itself lacks is said in the driver's own words (devices/passthrough/gpus.py), whose
second half, behind a colon, is what to do.
"""

from collections.abc import Iterator

from dra_driver.admin.doctor.checks.finding import Seen, error, info, ok, warning
from dra_driver.admin.doctor.facts.node_facts import HolderFacts, PassthroughFacts
from dra_driver.devices.passthrough.gpus import is_vfio
from dra_driver.words import count, named

_DISPLAYS = frozenset({"X", "Xorg", "Xwayland", "gnome-shell"})
_MONITORS = frozenset({"nv-hostengine", "dcgm-exporter"})
"""Names of processes that keep GPUs open for as long as they run, as the kernel cuts them."""


def judged(facts: PassthroughFacts, holders: HolderFacts) -> Iterator[Seen]:
    """Judge whether virtual machines can have the GPUs."""
    can_be_had = [card for card in facts.cards if card.problem is None]
    yield from _problems(facts)
    for card in can_be_had:
        if card.hangs:
            yield error(
                f"the kernel has not come back from the switch of the driver of "
                f"{card.gpu.pci_address}: nothing is offered of that GPU",
                "end what has it open, or reboot the node",
            )
    for module in facts.missing_modules:
        yield (error if can_be_had else warning)(
            f"kernel module {module} is not loaded: claims for virtual machines wait for it",
            f"load it (modprobe {module}), and name it in a file in /etc/modules-load.d",
        )
    yield from _holders(holders)
    if can_be_had:
        away = sum(is_vfio(card.driver) for card in can_be_had)
        yield ok(
            f"{count(len(can_be_had), 'GPU')} can be given to virtual machines"
            + (f", {away} of them bound to a VFIO driver now" if away else "")
        )
    elif not facts.cards:
        yield info("there is no GPU on the PCI bus to give to a virtual machine")


def _problems(facts: PassthroughFacts) -> Iterator[Seen]:
    """Yield what keeps GPUs from virtual machines, each reason once."""
    by_problem: dict[str, list[str]] = {}
    for card in facts.cards:
        if card.problem is not None:
            by_problem.setdefault(card.problem, []).append(card.gpu.pci_address)
    for problem, addresses in by_problem.items():
        reason, _, advice = problem.partition(": ")
        verb = "is" if len(addresses) == 1 else "are"
        yield warning(
            f"{named(addresses)} {verb} not offered to virtual machines: {reason}",
            advice or "nothing, if that is intended",
        )


def _holders(facts: HolderFacts) -> Iterator[Seen]:
    for minor, holders in facts.holders.items():
        for holder in holders:
            held = f"{holder} has /dev/nvidia{minor} open: a claim for a virtual machine waits"
            if holder.name in _DISPLAYS:
                yield warning(f"{held}, and fails", "run no display server on this node's GPUs")
            elif holder.name in _MONITORS:
                yield info(
                    f"{held} until it lets go",
                    "use DCGM 4.5 or newer, and dcgm-exporter 4.8.4 or newer with "
                    "DCGM_EXPORTER_ENABLE_GPU_BIND_UNBIND_WATCH=true",
                )
