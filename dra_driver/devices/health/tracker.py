"""Tracks each GPU's conditions, by looks and events, over restarts (dra-driver-nvidia-gpu#904).

GPUs that NVML counts but can no longer describe stay published as they were, because pods whose
device has vanished from the slices cannot be evicted any more. A GPU is known by its UUID. NVML
does not tell the UUID of a GPU that is out of reach, so its place says which GPU it is.
"""

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet

import structlog
from msgspec.structs import replace

from dra_driver.devices.health import debounce
from dra_driver.devices.health.debounce import GpuCondition, GpuConditions
from dra_driver.devices.health.findings import (
    APPLICATION_XIDS,
    Cause,
    Severity,
    examined,
    of_xid,
    out_of_reach,
)
from dra_driver.devices.health.record import GpuHealth, HealthFile
from dra_driver.devices.model import Gpu, GpuEvent, Inventory, SickGpu
from dra_driver.devices.names import gpu_name
from dra_driver.devices.pci import pci_order

log = structlog.get_logger()

Change = tuple[str, GpuHealth, GpuCondition]
"""A GPU's UUID, its health, and the condition that has begun or passed."""


class HealthTracker:
    """What is wrong with this node's GPUs. Methods may be called from any thread; none waits."""

    def __init__(  # noqa: PLR0913 (all that it is put together from)
        self,
        file: HealthFile,
        *,
        settle: int,
        ignored_xids: AbstractSet[int] = frozenset(),
        remarks: bool = False,
        clock: Callable[[], float],
        on_change: Callable[[], None],
        on_begin: Callable[[str, GpuHealth, GpuCondition], None],
    ) -> None:
        """Take the file of the record; nothing is read yet.

        `settle` is the time in seconds for debouncing (debounce.py). With `remarks`, the ignored
        XIDs and those of programs give remarks instead of nothing. `clock` is the wall clock, in
        seconds since 1970. `on_change` is called when the conditions in force have changed,
        `on_begin` for each that has come into force; neither is called under the lock.
        """
        self._file = file
        self._settle = settle
        self._ignored_xids = ignored_xids
        self._remarks = remarks
        self._clock = clock
        self._on_change = on_change
        self._on_begin = on_begin
        self._lock = threading.Lock()
        self._gpus: dict[str, GpuHealth] | None = None
        self._in_force: Mapping[str, GpuConditions] | None = None
        self._described: dict[str, Gpu] = {}
        self._kept: tuple[Inventory, Inventory] | None = None

    def in_force(self) -> Mapping[str, GpuConditions]:
        """Return the conditions in force, the gravest first, by UUID of the GPUs that have any."""
        with self._lock:
            if self._in_force is None:  # asked for each device of each claim
                self._in_force = {
                    uuid: conditions
                    for uuid, gpu in self._known().items()
                    if (conditions := debounce.in_force(gpu.conditions))
                }
            return self._in_force

    def hear(self, event: GpuEvent) -> bool:
        """Take an event; return whether it is time to look at the GPUs."""
        if event.xid is None:
            return True
        ignored = self._ignored_xids
        look = event.xid not in APPLICATION_XIDS | ignored  # those programs can cause
        finding = of_xid(event.xid, ignored, remarks=self._remarks)
        if finding is None:
            log.debug("xid ignored", gpu=event.gpu, xid=event.xid)
            return look
        with self._lock:
            before = self._known()
            gpu = before.get(event.gpu, GpuHealth(name=event.gpu, index=-1, pci_address=""))
            conditions = debounce.with_finding(
                gpu.conditions, finding, event.instance, self._now(), self._settle
            )
            if conditions == gpu.conditions:
                return look  # a repetition: a program can cause these as often as it likes
            changes = self._take({**before, event.gpu: replace(gpu, conditions=conditions)})
        self._report(*changes)
        return look

    def clear(self, uuid: str) -> None:
        """Forget the XIDs of a GPU that was reset, as an admin says; what it reports stays."""
        with self._lock:
            before = self._known()
            gpu = before.get(uuid)
            if gpu is None:
                return
            kept = tuple(one for one in gpu.conditions if one.finding.cause is not Cause.XID)
            changes = self._take({**before, uuid: replace(gpu, conditions=kept)})
        log.warning("xids cleared by hand", gpu=uuid, device=gpu.name)
        self._report(*changes)

    def look(self, inventory: Inventory) -> None:
        """Take what a look has found; if it has found no GPU driver, it says nothing about GPUs."""
        if inventory.problem is not None:
            return
        with self._lock:
            before = self._known()
            after: dict[str, GpuHealth] = {
                gpu.uuid: self._examined(before.get(gpu.uuid), gpu) for gpu in inventory.gpus
            }
            away = {uuid: health for uuid, health in before.items() if uuid not in after}
            at_places = at_their_places(inventory.sick, away)
            for uuid, sick in at_places.items():
                was = away[uuid]
                conditions = debounce.after_look(
                    was.conditions, out_of_reach(sick), None, self._now(), self._settle
                )
                after[uuid] = replace(was, index=sick.index, conditions=conditions)
            for uuid, gone in away.items():
                if uuid not in at_places and gone.conditions:
                    after[uuid] = replace(gone, conditions=debounce.after_absence(gone.conditions))
            described = self._described | {gpu.uuid: gpu for gpu in inventory.gpus}
            described = {uuid: gpu for uuid, gpu in described.items() if uuid in after}
            if described != self._described:
                self._described = described
                self._kept = None
            changes = self._take(after)
        self._report(*changes)

    def published(self, inventory: Inventory) -> Inventory:
        """Return an inventory that has the GPUs that are out of reach as they were before.

        The same inventory gives the same object, until one of these GPUs is described again.
        """
        if not inventory.sick:
            return inventory
        with self._lock:
            if self._kept is None or self._kept[0] is not inventory:
                self._kept = (inventory, self._with_kept(inventory))
            return self._kept[1]

    def _with_kept(self, inventory: Inventory) -> Inventory:
        there = {gpu.uuid for gpu in inventory.gpus}
        away = {uuid: health for uuid, health in self._known().items() if uuid not in there}
        kept = {
            sick.index: self._described[uuid]
            for uuid, sick in at_their_places(inventory.sick, away).items()
            if uuid in self._described
        }
        gpus = sorted((*inventory.gpus, *kept.values()), key=lambda gpu: pci_order(gpu.pci_address))
        return replace(
            inventory,
            gpus=tuple(gpus),
            sick=tuple(sick for sick in inventory.sick if sick.index not in kept),
        )

    def _examined(self, before: GpuHealth | None, gpu: Gpu) -> GpuHealth:
        instances = None
        if gpu.mig is None or gpu.mig.problem is None:
            instances = {instance.gpu_instance for instance in gpu.mig_instances}
        conditions = debounce.after_look(
            before.conditions if before else (),
            examined(gpu.vitals),
            instances,
            self._now(),
            self._settle,
        )
        return GpuHealth(
            name=gpu_name(gpu.minor),
            index=gpu.index,
            pci_address=gpu.pci_address,
            conditions=conditions,
        )

    def _known(self) -> Mapping[str, GpuHealth]:
        if self._gpus is None:
            self._gpus = dict(self._file.read())
        return self._gpus

    def _now(self) -> int:
        return int(self._clock())

    def _take(self, after: Mapping[str, GpuHealth]) -> tuple[list[Change], list[Change]]:
        """Replace what is known, and write it to the file; the caller holds the lock.

        Returns the conditions that have come into force, and those that are no longer in force.
        """
        before = self._known()
        self._gpus, self._in_force = dict(after), None
        self._file.write(self._gpus)
        begun: list[Change] = []
        passed: list[Change] = []
        for uuid in before.keys() | after.keys():
            was = _keys(before.get(uuid))
            now = _keys(after.get(uuid))
            gpu = after.get(uuid) or before[uuid]
            begun += [(uuid, gpu, condition) for key, condition in now.items() if key not in was]
            passed += [(uuid, gpu, condition) for key, condition in was.items() if key not in now]
        return begun, passed

    def _report(self, begun: Sequence[Change], passed: Sequence[Change]) -> None:
        for uuid, gpu, condition in passed:
            if condition.finding.severity is not Severity.REMARK:
                log.info("gpu recovered", gpu=uuid, device=gpu.name, **_words(condition))
        for uuid, gpu, condition in begun:
            finding, facts = condition.finding, {"gpu": uuid, "device": gpu.name}
            if finding.severity is Severity.REMARK:
                log.info("xid remarked", **facts, reason=finding.reason)
                continue
            write = log.warning if finding.severity is Severity.WARNING else log.error
            facts |= {"reason": finding.reason, "remedy": finding.remedy.words}
            write("gpu sick", **facts, **_words(condition))
            self._on_begin(uuid, gpu, condition)
        if begun or passed:
            self._on_change()


def at_their_places(
    sick: Iterable[SickGpu], away: Mapping[str, GpuHealth]
) -> Mapping[str, SickGpu]:
    """Return the GPUs that NVML cannot describe, by the UUIDs of the GPUs that they are.

    NVML counts in the order of PCI addresses. So if as many GPUs are missing as are sick, they are
    matched in that order, because the index of a GPU changes when others go; if not, by index.
    """
    in_order = sorted(sick, key=lambda gpu: gpu.index)
    placed = (uuid for uuid, gpu in away.items() if gpu.index >= 0)  # else known by events
    missing = sorted(placed, key=lambda uuid: pci_order(away[uuid].pci_address))
    if len(in_order) == len(missing):
        return dict(zip(missing, in_order, strict=True))
    by_index = {away[uuid].index: uuid for uuid in missing}
    return {by_index[gpu.index]: gpu for gpu in in_order if gpu.index in by_index}


def _keys(gpu: GpuHealth | None) -> dict[object, GpuCondition]:
    conditions = () if gpu is None else debounce.in_force(gpu.conditions)
    return {condition.key: condition for condition in conditions}


def _words(condition: GpuCondition) -> dict[str, object]:
    words: dict[str, object] = {
        "cause": str(condition.finding.cause),
        "value": condition.finding.value,
        "severity": str(condition.finding.severity),
    }
    if condition.instance is not None:
        words["gpu_instance"] = condition.instance.gpu_instance
    return words
