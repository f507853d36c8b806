"""Counter sets for GPUs that need none, so that quotas can be by memory on every device.

In: what is published, and the setting `--memory-counters`. Out: the same, where each GPU without
a counter set has one with `memory` alone, which all its devices consume. Rule: Kueue admits no
claim whose device consumes nothing of the counter that its quota is by (KEP-2941). Off by default,
since every counter costs the scheduler, and before Kubernetes 1.37 with the square of the nodes:
that is said there.
"""

from dataclasses import replace

from dra_driver.devices.kinds import NodeDevice
from dra_driver.slices import counters
from dra_driver.slices.offer.scheduler_cost import CostWarning, Version
from dra_driver.slices.project import Projection
from dra_driver.slices.wire import WireDevice


class MemoryCounters:
    """What `--memory-counters` says on one node."""

    def __init__(self, version: Version, *, are_wanted: bool) -> None:
        """Take where the version of Kubernetes is known from; it is not asked yet."""
        self._are_wanted = are_wanted
        self._warning = CostWarning(
            version,
            "memory counters slow the scheduler",
            advice="count devices in place of memory and unset --memory-counters, or upgrade to"
            " Kubernetes 1.37",
        )

    def added_to(self, found: Projection) -> Projection:
        """Return what is published, with a counter set for every GPU if that is wanted."""
        if not self._are_wanted:
            return found
        self._warning.give()
        return with_memory_counters(found)


def with_memory_counters(found: Projection) -> Projection:
    """Return what is published, with a counter set for every GPU whose memory is known."""
    there = {counter_set["name"] for counter_set in found.counter_sets}
    added: dict[str, dict[str, object]] = {}
    devices: list[WireDevice] = []
    for device, source in zip(found.devices, found.sources, strict=True):
        name = counters.counter_set_name(source.gpu)
        memory = 0 if name in there else counters.memory(source.gpu)
        if memory:
            added[name] = counters.counter_set(name, {counters.MEMORY: memory})
        devices.append(device | _consumed(name, source) if memory else device)
    return replace(
        found, devices=tuple(devices), counter_sets=(*found.counter_sets, *added.values())
    )


def _consumed(name: str, source: NodeDevice) -> WireDevice:
    taken = counters.memory_of(source.gpu, source.device)
    if not taken:
        return {}
    return {"consumesCounters": counters.consumption(name, {counters.MEMORY: taken})}
