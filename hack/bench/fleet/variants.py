"""Ways to publish the same GPUs, side by side.

A variant is a function from what a node has, and the node's name, to the slices it publishes. To
try another one, write the function and add it to `VARIANTS`. Pure.
"""

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

from dra_driver.devices.kinds import GpuPart, NodeDevice
from dra_driver.devices.model import Gpu, Inventory, Partition
from dra_driver.devices.names import DRIVER_NAME
from dra_driver.devices.shares import Division, ShareStrategy
from dra_driver.slices import counters
from dra_driver.slices.attributes import REPLICAS
from dra_driver.slices.mig_offer import MigOffer, MigSource
from dra_driver.slices.pool import DesiredPool, Object, build_slices, objects
from dra_driver.slices.project import Projection, projection
from dra_driver.slices.share_offer import ShareOffer

_REPLICAS = 10

Variant = Callable[[Inventory, str], DesiredPool]


def ours(inventory: Inventory, node: str) -> DesiredPool:
    """What this driver publishes."""
    published = projection(inventory)
    return _built(published, published.devices, node)


def whole_only(inventory: Inventory, node: str) -> DesiredPool:
    """One device per GPU and no counters: what NVIDIA's driver publishes by default."""
    published = projection(inventory, with_counters=False)
    return build_slices(published.devices, driver=DRIVER_NAME, node_name=node)


def two_profiles(inventory: Inventory, node: str) -> DesiredPool:
    """What this driver publishes with two `--mig-profiles`, the smallest and one in the middle."""
    names = {
        one.name: one.memory_bytes
        for gpu in inventory.gpus
        if gpu.mig is not None
        for one in gpu.mig.profiles
        if "+" not in one.name
    }
    ordered = sorted(names, key=lambda name: (names[name], name))
    offered = frozenset({ordered[0], ordered[len(ordered) // 2]} if ordered else ())
    published = projection(inventory, mig=MigOffer(profiles=offered))
    return _built(published, published.devices, node)


def shares(inventory: Inventory, node: str) -> DesiredPool:
    """What this driver publishes where every GPU is divided into shares, partitions among it."""
    published = projection(inventory, share=_divided(inventory))
    return _built(published, published.devices, node)


def shares_only(inventory: Inventory, node: str) -> DesiredPool:
    """The same without partitions: whole GPUs, and their shares."""
    off = MigOffer(source=MigSource.OFF)
    published = projection(inventory, mig=off, share=_divided(inventory))
    return _built(published, published.devices, node)


def no_partitions(inventory: Inventory, node: str) -> DesiredPool:
    """Whole GPUs with the counters that partitions would need, and without any partition: the
    least that a layout with partitions can cost.
    """
    published = projection(inventory)
    return _built(published, [one for one in published.devices if is_whole(one)], node)


def whole_last(inventory: Inventory, node: str) -> DesiredPool:
    """What this driver publishes, but whole GPUs after everything else."""
    published = projection(inventory)
    return _built(published, sorted(published.devices, key=is_whole), node)


def all_counters(inventory: Inventory, node: str) -> DesiredPool:
    """What this driver publishes, but with counters of all engines."""
    published = projection(inventory)
    return build_slices(
        [
            {**device, **_consumed(source)}
            for device, source in zip(published.devices, published.sources, strict=True)
        ],
        driver=DRIVER_NAME,
        node_name=node,
        counter_sets=_all_counter_sets(inventory.gpus),
    )


def nvidia_dynamic(inventory: Inventory, node: str) -> DesiredPool:
    """One slice for all counters, then one per GPU: the GPU and its parts, sorted by name.

    What NVIDIA's driver publishes with its feature gate DynamicMIG, since Kubernetes 1.35. It has
    counters of all engines, whether they could run out or not.
    """
    published = projection(inventory)
    ordered = sorted(inventory.gpus, key=lambda gpu: gpu.pci_address)
    sets = _all_counter_sets(ordered)
    contents: list[Object] = [{"sharedCounters": sets}] if sets else []
    for gpu in ordered:
        mine = [
            {**device, **_consumed(source)}
            for device, source in zip(published.devices, published.sources, strict=True)
            if source.gpu is gpu
        ]
        contents.append({"devices": sorted(mine, key=lambda device: str(device["name"]))})
    return DesiredPool(driver=DRIVER_NAME, node_name=node, contents=tuple(contents))


def _divided(inventory: Inventory) -> ShareOffer:
    """Every GPU in as many shares as in the device plugin's own examples."""
    division = Division(
        count=_REPLICAS,
        strategy=ShareStrategy.TIME_SLICING,
        served_as="nvidia.com/gpu",
        combines=True,
    )
    return ShareOffer(divisions={GpuPart(gpu=gpu.uuid): division for gpu in inventory.gpus})


def _built(published: Projection, devices: Sequence[Object], node: str) -> DesiredPool:
    """The slices of some of the devices that are published, or of all, with all counter sets."""
    return build_slices(
        devices, driver=DRIVER_NAME, node_name=node, counter_sets=published.counter_sets
    )


def _consumed(source: NodeDevice) -> Object:
    """The counters of a whole GPU that can be divided, or of a part of one."""
    gpu, device = source.gpu, source.device
    if gpu.mig is None:
        return {}
    taken = _all_counters(gpu)
    if isinstance(device, Partition):
        taken = counters.used(device.profile, device.placement, taken)
    name = counters.counter_set_name(gpu)
    return {"consumesCounters": [{"counterSet": name, "counters": counters.wire(taken)}]}


def _all_counter_sets(gpus: Sequence[Gpu]) -> list[Object]:
    return [
        counters.counter_set(counters.counter_set_name(gpu), _all_counters(gpu))
        for gpu in gpus
        if gpu.mig is not None
    ]


def _all_counters(gpu: Gpu) -> dict[str, int]:
    profiles = gpu.mig.profiles if gpu.mig is not None else ()
    return counters.most_engines(profiles) | counters.whole(profiles)


VARIANTS: Mapping[str, Variant] = MappingProxyType(
    {
        "whole-only": whole_only,
        "no-partitions": no_partitions,
        "two-profiles": two_profiles,
        "ours": ours,
        "shares": shares,
        "shares-only": shares_only,
        "whole-last": whole_last,
        "all-counters": all_counters,
        "nvidia-dynamic": nvidia_dynamic,
    }
)

BASELINE = "whole-only"
"""The variant that the others are compared with."""


def is_whole(device: Object) -> bool:
    """Tell whether a published device is a whole GPU, and no share of one."""
    attributes = device["attributes"]
    return isinstance(attributes, Mapping) and (
        _text(device, "type") == "gpu" and REPLICAS not in attributes
    )


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
