"""Puts taints on the devices of GPUs that are not healthy. Pure.

In: a projection, and the conditions of each GPU. Out: the projection with taints on the devices
concerned: a GPU with its partitions (dra-driver-nvidia-gpu#1316) and shares, or one MIG device.
Rules (KEP-5055): each cause gives one taint. Its key is the cause, in the driver's domain, and its
value the most severe finding. A device has at most 16. `timeAdded` is when the condition began, so
a restart changes nothing. Without DRADeviceTaints, GPUs that pods must avoid are left out.
"""

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from enum import StrEnum
from itertools import islice

from msgspec.structs import replace

from dra_driver.devices.device import Mig, NodeDevice
from dra_driver.devices.health.debounce import GpuCondition, GpuConditions
from dra_driver.devices.health.findings import Cause, Severity
from dra_driver.devices.model import Instance
from dra_driver.devices.names import DRIVER_NAME
from dra_driver.kube.fields import objects
from dra_driver.slices.counters import counter_set_name
from dra_driver.slices.project import Projection, Withheld
from dra_driver.slices.wire import WireDevice

TAINTS = "taints"
"""The field of a device that holds its taints."""

MOST_TAINTS = 16


class Effect(StrEnum):
    """The effect of a taint; with OFF there is no taint."""

    OFF = "off"
    NONE = "None"
    NO_SCHEDULE = "NoSchedule"
    NO_EXECUTE = "NoExecute"

    @property
    def keeps_away(self) -> bool:
        """Whether the taint keeps pods away that do not tolerate it."""
        return self in (Effect.NO_SCHEDULE, Effect.NO_EXECUTE)


Effects = Mapping[Severity, Effect]


def conditions_of(source: NodeDevice, conditions: GpuConditions) -> GpuConditions:
    """Return a GPU's conditions that affect a device; a MIG instance's affect only its device."""
    return tuple(
        condition
        for condition in conditions
        if condition.instance is None or _has(source, condition)
    )


def tainted(
    slices: Projection, conditions: Mapping[str, GpuConditions], effects: Effects
) -> Projection:
    """Return the projection with the current taints of devices; `conditions` are by GPU UUID."""
    if not conditions:
        return slices
    devices: list[WireDevice] = []
    for device, source in zip(slices.devices, slices.sources, strict=True):
        taints = _taints_of(conditions_of(source, conditions.get(source.gpu.uuid, ())), effects)
        most = [*islice(taints, MOST_TAINTS)]
        devices.append({**device, TAINTS: most} if most else device)
    return replace(slices, devices=tuple(devices))


def without_taints(slices: Projection) -> Projection:
    """Return what is published if the API server stores no taints: no device of a sick GPU.

    Healthy partitions are left out too: one counts in its GPU's counters only while published.
    """
    bad: dict[int, set[str]] = {}
    for device, source in zip(slices.devices, slices.sources, strict=True):
        taints = objects(device, TAINTS)
        keys = {str(taint["key"]) for taint in taints if Effect(str(taint["effect"])).keeps_away}
        if keys:
            bad.setdefault(source.gpu.index, set()).update(keys)
    kept = [
        ({key: value for key, value in device.items() if key != TAINTS}, source)
        for device, source in zip(slices.devices, slices.sources, strict=True)
        if source.gpu.index not in bad
    ]
    gone = {counter_set_name(sick.gpu) for sick in slices.sources if sick.gpu.index in bad}
    withheld = [
        Withheld(index=index, reason=_WITHHELD.format(", ".join(sorted(keys))))
        for index, keys in sorted(bad.items())
    ]
    return replace(
        slices,
        devices=tuple(device for device, _ in kept),
        sources=tuple(source for _, source in kept),
        counter_sets=tuple(each for each in slices.counter_sets if each["name"] not in gone),
        withheld=(*slices.withheld, *withheld),
    )


_WITHHELD = (
    "it is sick ({}), and the API server stores no taints to say so; enable the feature gate"
    " DRADeviceTaints on the API server and the scheduler, then restart this driver"
)


def _taints_of(conditions: Sequence[GpuCondition], effects: Effects) -> Iterator[dict[str, object]]:
    """Yield a taint for each cause, from its most severe condition, the most severe first."""
    told: set[Cause] = set()
    for condition in conditions:
        cause, effect = condition.finding.cause, effects[condition.finding.severity]
        if cause in told or effect is Effect.OFF:
            continue
        told.add(cause)
        taint: dict[str, object] = {"key": f"{DRIVER_NAME}/{cause}"}
        if condition.finding.value:
            taint["value"] = condition.finding.value
        began = datetime.fromtimestamp(condition.since, tz=UTC)
        yield {**taint, "effect": str(effect), "timeAdded": began.strftime("%Y-%m-%dT%H:%M:%SZ")}


def _has(source: NodeDevice, condition: GpuCondition) -> bool:
    base = source.device.base
    instances: Sequence[Instance] = source.gpu.mig_instances
    return isinstance(base, Mig) and any(
        instance.slot == base.slot and instance.gpu_instance == condition.instance.gpu_instance
        for instance in instances
        if condition.instance is not None
    )
