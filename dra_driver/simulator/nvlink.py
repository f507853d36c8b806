"""NVLinks of a simulated machine: which lead where, brought down and up again.

In: the raw record, under the writers' lock. Out: both ends of a link changed, as they are on real
cards: a link between two GPUs changes at both, while a link to a switch has only one GPU. A reset
of the GPU brings its links up again.
"""

from dra_driver.errors import SetupError
from dra_driver.simulator import layout
from dra_driver.simulator.layout import LinkEnd, Text


def set_link(record: layout.StateRecord, slot: int, number: int, *, is_up: bool) -> None:
    """Bring a link of a GPU down or up.

    Raises SetupError if the card has no such link, or it leads to nothing.
    """
    links = record.gpus[slot].links
    if not (0 <= number < layout.MAX_LINKS and links[number].present):
        there = sum(link.present for link in links)
        raise SetupError(f"the card has no NVLink {number}; it has {there}, numbered from 0")
    if links[number].kind == LinkEnd.NOTHING:
        raise SetupError(f"NVLink {number} of the card leads to nothing, so it is never up")
    links[number].active = int(is_up)
    if links[number].kind == LinkEnd.GPU:
        _other_end(record, slot, number).active = int(is_up)


def retrain(record: layout.StateRecord, slot: int) -> None:
    """Bring up all links of a GPU that lead somewhere, as a reset does."""
    for number, link in enumerate(record.gpus[slot].links):
        if link.present and link.kind != LinkEnd.NOTHING:
            set_link(record, slot, number, is_up=True)


def _other_end(record: layout.StateRecord, slot: int, number: int) -> layout.LinkRecord:
    """Return the link at the other GPU: of several between the two, the one at the same place."""
    address = _address(record, slot)
    peer = bytes(record.gpus[slot].links[number].remote_bus_id)
    before = [link for link in record.gpus[slot].links[:number] if link.remote_bus_id == peer]
    others = [record.gpus[at] for at in range(record.gpu_count) if _address(record, at) == peer]
    back = [link for gpu in others for link in gpu.links if link.remote_bus_id == address]
    end: layout.LinkRecord = back[len(before)]
    return end


def _address(record: layout.StateRecord, slot: int) -> bytes:
    return bytes(record.gpus[slot].texts[Text.PCI_BUS_ID].value)
