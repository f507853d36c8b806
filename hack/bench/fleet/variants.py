"""Ways to publish the same GPUs, side by side.

A variant is a function from what a node has, and the node's name, to the slices it publishes. To
try another one, write the function and add it to `VARIANTS`. Pure.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType

from dra_driver.devices.model import Inventory
from dra_driver.devices.names import DRIVER_NAME
from dra_driver.slices.pool import DesiredPool, Object, build_slices, objects
from dra_driver.slices.project import projection

Variant = Callable[[Inventory, str], DesiredPool]


def ours(inventory: Inventory, node: str) -> DesiredPool:
    """What this driver publishes."""
    published = projection(inventory)
    return build_slices(
        published.devices,
        driver=DRIVER_NAME,
        node_name=node,
        counter_sets=published.counter_sets,
    )


def whole_only(inventory: Inventory, node: str) -> DesiredPool:
    """One device per GPU and no counters: what NVIDIA's driver publishes by default."""
    published = projection(inventory, with_counters=False)
    return build_slices(published.devices, driver=DRIVER_NAME, node_name=node)


def whole_last(inventory: Inventory, node: str) -> DesiredPool:
    """What this driver publishes, but whole GPUs after everything else."""
    published = projection(inventory)
    return build_slices(
        sorted(published.devices, key=is_whole),
        driver=DRIVER_NAME,
        node_name=node,
        counter_sets=published.counter_sets,
    )


def nvidia_dynamic(inventory: Inventory, node: str) -> DesiredPool:
    """One slice for all counters, then one per GPU: the GPU and its parts, sorted by name.

    What NVIDIA's driver publishes with its feature gate DynamicMIG, since Kubernetes 1.35.
    """
    published = projection(inventory)
    contents: list[Object] = [{"sharedCounters": list(published.counter_sets)}]
    for gpu in sorted(inventory.gpus, key=lambda gpu: gpu.pci_address):
        mine = [
            device
            for device, source in zip(published.devices, published.sources, strict=True)
            if source.gpu is gpu
        ]
        contents.append({"devices": sorted(mine, key=lambda device: str(device["name"]))})
    if not published.counter_sets:
        del contents[0]
    return DesiredPool(driver=DRIVER_NAME, node_name=node, contents=tuple(contents))


VARIANTS: Mapping[str, Variant] = MappingProxyType(
    {
        "whole-only": whole_only,
        "ours": ours,
        "whole-last": whole_last,
        "nvidia-dynamic": nvidia_dynamic,
    }
)

BASELINE = "whole-only"
"""The variant that the others are compared with."""


def is_whole(device: Object) -> bool:
    """Tell whether a published device is a whole GPU."""
    return _text(device, "type") == "gpu"


def devices(pool: DesiredPool) -> list[Object]:
    """Return the devices of all slices, in the order in which the scheduler meets them."""
    return [device for content in pool.contents for device in objects(content.get("devices"))]


def offers(pool: DesiredPool, profile: str | None) -> bool:
    """Tell whether there is a partition of this profile in a pool."""
    return any(_text(device, "profile") == profile for device in devices(pool) if profile)


def _text(device: Object, attribute: str) -> object:
    attributes = device["attributes"]
    value = attributes.get(attribute) if isinstance(attributes, Mapping) else None
    return value.get("string") if isinstance(value, Mapping) else None
