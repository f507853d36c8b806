"""The devices that offer GPUs to virtual machines. Pure.

In: the GPUs on the PCI bus. Out: a device for each GPU that can be given to a virtual machine.
Nothing else is published of such a GPU, so the device consumes no counters.
"""

from collections.abc import Iterator

from dra_driver.devices.device import Device, NodeDevice, Vfio
from dra_driver.devices.model import Inventory, PassthroughGpu
from dra_driver.slices.consumable import NO_CONSUMABLES
from dra_driver.slices.wire import Published, wire_form


def vfio(card: PassthroughGpu) -> Device:
    """Return the device by which a virtual machine gets a GPU of the PCI bus."""
    return Device(base=Vfio(gpu=card.gpu.uuid, address=card.gpu.pci_address, number=card.number))


def passthrough_devices(inventory: Inventory) -> Iterator[Published]:
    """Yield a device for each GPU that can be given to a virtual machine."""
    for card in inventory.passthrough:
        if card.problem is None:
            yield wire_form(
                NodeDevice(gpu=card.gpu, device=vfio(card)),
                inventory,
                joined={},
                in_parts=False,
                consumable_by=NO_CONSUMABLES,
            )
