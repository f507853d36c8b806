"""Ways to publish the same GPUs, side by side.

A variant is a function from a node's inventory and name to the slices that it publishes. To try
another one, write the function and add it to `VARIANTS`. Pure.
"""

from collections.abc import Callable, Mapping, Sequence

from msgspec.structs import replace

from bench.fleet.loads import EXTENDED, PART
from dra_driver.devices.device import Mig, NodeDevice, Whole, profile_of
from dra_driver.devices.model import Gpu, Inventory, MigMode
from dra_driver.devices.names import DRIVER_NAME
from dra_driver.devices.shares import Division, ShareStrategy
from dra_driver.kube.fields import Object, at, objects
from dra_driver.slices import counters
from dra_driver.slices.attributes import REPLICAS
from dra_driver.slices.offer.mig import MigOffer, MigSource
from dra_driver.slices.offer.shares import ShareOffer
from dra_driver.slices.pool import DesiredPool, build_slices
from dra_driver.slices.project import Projection, projection

_REPLICAS = 10
_IN_MIG_MODE = (0, 1)
"""Minor numbers of the GPUs that an admin put in MIG mode, in variants with such GPUs."""

_AUTO = MigOffer(source=MigSource.AUTO)
_ON_DEMAND = MigOffer(source=MigSource.ON_DEMAND)

Variant = Callable[[Inventory, str], DesiredPool]


def whole_only(inventory: Inventory, node: str) -> DesiredPool:
    """One device per GPU and no counters: what NVIDIA's driver publishes by default."""
    published = projection(inventory, with_counters=False)
    return build_slices(published.devices, driver=DRIVER_NAME, node_name=node)


def auto(inventory: Inventory, node: str) -> DesiredPool:
    """What this driver publishes by default if no GPU is in MIG mode."""
    return _built(projection(inventory, mig=_AUTO), node)


def auto_mig(inventory: Inventory, node: str) -> DesiredPool:
    """What it publishes by default if an admin put the first two GPUs in MIG mode."""
    return _built(projection(_in_mig_mode(inventory), mig=_AUTO), node)


def memory_counters(inventory: Inventory, node: str) -> DesiredPool:
    """The default with `--memory-counters`: whole GPUs, each with a counter set of `memory`."""
    return _built(projection(inventory, mig=_AUTO, memory_counters=True), node)


def shares(inventory: Inventory, node: str) -> DesiredPool:
    """The default from Kubernetes 1.37 on where a share config divides every GPU: all GPUs as a
    whole and in shares, which counters keep apart.
    """
    return _built(projection(inventory, mig=_AUTO, share=_divided(inventory)), node)


def on_demand(inventory: Inventory, node: str) -> DesiredPool:
    """What this driver publishes with `--mig on-demand`: every partition of every GPU."""
    return _built(projection(inventory, mig=_ON_DEMAND), node)


def two_profiles(inventory: Inventory, node: str) -> DesiredPool:
    """The same as `on_demand` with two `--mig-profiles`, the smallest and one in the middle."""
    names = {
        profile.name: profile.memory_bytes
        for gpu in inventory.gpus
        if gpu.mig is not None
        for profile in gpu.mig.profiles
        if "+" not in profile.name
    }
    ordered = sorted(names, key=lambda name: (names[name], name))
    offered = frozenset({ordered[0], ordered[len(ordered) // 2]} if ordered else ())
    return _built(projection(inventory, mig=replace(_ON_DEMAND, profiles=offered)), node)


def whole_last(inventory: Inventory, node: str) -> DesiredPool:
    """The same as `on_demand`, but whole GPUs after everything else."""
    published = projection(inventory, mig=_ON_DEMAND)
    return _built(published, node, sorted(published.devices, key=is_whole))


def nvidia_dynamic(inventory: Inventory, node: str) -> DesiredPool:
    """One slice for all counters, then one per GPU: the GPU and its parts, sorted by name.

    What NVIDIA's driver publishes with its feature gate DynamicMIG from Kubernetes 1.35 on. It has
    counters of all engines, even of those that never run out first.
    """
    ordered = sorted(inventory.gpus, key=lambda gpu: gpu.pci_address)
    sets = _all_counter_sets(ordered)
    contents: list[Object] = [{"sharedCounters": sets}] if sets else []
    for gpu in ordered:
        mine = [device for source, device in _with_all_counters(inventory) if source.gpu is gpu]
        contents.append({"devices": sorted(mine, key=lambda device: str(device["name"]))})
    return DesiredPool(driver=DRIVER_NAME, node_name=node, contents=tuple(contents))


def _in_mig_mode(inventory: Inventory) -> Inventory:
    """The first two GPUs, if they have MIG, in MIG mode."""
    return replace(
        inventory,
        gpus=tuple(
            replace(gpu, mig_mode=MigMode.ENABLED)
            if gpu.mig is not None and gpu.minor in _IN_MIG_MODE
            else gpu
            for gpu in inventory.gpus
        ),
    )


def _divided(inventory: Inventory) -> ShareOffer:
    """Every GPU in as many shares as in the device plugin's own examples."""
    division = Division(
        count=_REPLICAS,
        strategy=ShareStrategy.TIME_SLICING,
        served_as="nvidia.com/gpu",
        combines=True,
    )
    return ShareOffer(divisions={Whole(gpu=gpu.uuid): division for gpu in inventory.gpus})


def _built(
    published: Projection, node: str, devices: Sequence[Object] | None = None
) -> DesiredPool:
    """The slices of some of the devices that are published, or of all, with all counter sets."""
    chosen = published.devices if devices is None else devices
    return build_slices(
        chosen, driver=DRIVER_NAME, node_name=node, counter_sets=published.counter_sets
    )


def _with_all_counters(inventory: Inventory) -> list[tuple[NodeDevice, Object]]:
    """What is published on demand, each device with the counters of all engines."""
    published = projection(inventory, mig=_ON_DEMAND)
    pairs = zip(published.sources, published.devices, strict=True)
    return [(source, {**device, **_consumed(source)}) for source, device in pairs]


def _consumed(source: NodeDevice) -> Object:
    """The counters of a whole GPU that can be divided, or of a part of one."""
    gpu, device = source.gpu, source.device
    if gpu.mig is None:
        return {}
    taken = _all_counters(gpu)
    if isinstance(device.base, Mig) and not device.exists:
        taken = counters.used(profile_of(gpu, device.base), device.base.placement, taken)
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
    return (
        counters.most_engines(profiles)
        | counters.whole(profiles)
        | {counters.MEMORY: counters.memory(gpu)}
    )


VARIANTS: Mapping[str, Variant] = {
    "whole-only": whole_only,
    "auto": auto,
    "auto-mig": auto_mig,
    "memory-counters": memory_counters,
    "shares": shares,
    "on-demand": on_demand,
    "two-profiles": two_profiles,
    "whole-last": whole_last,
    "nvidia-dynamic": nvidia_dynamic,
}

BASELINE = "whole-only"
"""The variant that the others are compared with."""


def is_whole(device: Object) -> bool:
    """Tell whether a published device is a whole GPU, not a share of one."""
    return _text(device, "type") == "gpu" and REPLICAS not in _attributes(device)


def devices(pool: DesiredPool) -> list[Object]:
    """Return the devices of all slices, in the scheduler's order."""
    return [device for content in pool.contents for device in objects(content.get("devices"))]


def offers(pool: DesiredPool, profile: str | None) -> bool:
    """Tell whether there is a partition of this profile in a pool."""
    return any(_text(device, "profile") == profile for device in devices(pool) if profile)


def serves(pool: DesiredPool, load: str, profile: str | None) -> bool:
    """Tell whether a pool has the devices that the pods of a load ask for."""
    if load == PART:
        return offers(pool, profile)
    return any(
        is_whole(device) or (load == EXTENDED and REPLICAS in _attributes(device))
        for device in devices(pool)
    )


def _attributes(device: Object) -> Mapping[str, object]:
    attributes = device["attributes"]
    return attributes if isinstance(attributes, Mapping) else {}


def _text(device: Object, attribute: str) -> object:
    return at(device, "attributes", attribute, "string")
