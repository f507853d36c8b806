"""The health of this node's GPUs: collects it from events and scans, keeps and reports it.

In: NVML's events and each scan, through the session. Out: the inventory as it is published, the
taints of its devices, metrics, and Kubernetes Events on the claims and pods with a GPU that has
become sick. `of_device` returns the health of any device of a claim, for the kubelet and for the
status of claims.
"""

import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import partial

import structlog

from dra_driver.claims.model.record import ClaimRecord
from dra_driver.claims.report.device_health import (
    DeviceHealth,
    Gone,
    concerns,
    gone_devices,
    health_of,
)
from dra_driver.devices.device import Device
from dra_driver.devices.health import findings
from dra_driver.devices.health.debounce import GpuCondition
from dra_driver.devices.health.findings import Cause, Severity
from dra_driver.devices.health.listener import Listener
from dra_driver.devices.health.record import (
    RELEASE,
    RELEASE_SECONDS,
    GpuHealth,
    HealthFile,
    HealthRequests,
)
from dra_driver.devices.health.tracker import HealthTracker
from dra_driver.devices.model import GpuEvent, GpuUuid, Inventory
from dra_driver.devices.session import DriverSession
from dra_driver.devices.watcher import InventoryWatcher
from dra_driver.errors import DriverError
from dra_driver.node.context import NodeContext
from dra_driver.slices.project import Projection
from dra_driver.slices.taints import Effect, tainted

log = structlog.get_logger()

REASON, GONE = "GPUNotWell", "DeviceGone"
"""Reasons of Kubernetes Events: a device is sick, or no longer exists."""


class NodeHealth:
    """The health of this node's GPUs. Methods may be called from any thread."""

    def __init__(self, context: NodeContext, session: DriverSession) -> None:
        """Store its parts; nothing is read yet.

        Raises ConfigError if the list of XIDs to ignore is invalid.
        """
        settings, changes = context.settings, context.changes
        self._session = session
        self._metrics = context.metrics
        self._ledger = context.ledger
        self._events, self._outbox = context.events, context.outbox
        self._on_change = changes.health
        self.watcher = InventoryWatcher(
            self.look, rescan_seconds=settings.rescan_interval, on_change=changes.inventory
        )
        self._effects = {
            Severity.REMARK: Effect(settings.remark_effect),
            Severity.WARNING: Effect(settings.taint_warning),
            Severity.FAULT: Effect(settings.taint_fault),
            Severity.LOSS: Effect(settings.taint_loss),
        }
        self._tracker = HealthTracker(
            HealthFile(context.directory, context.boot_id),
            settle=round(settings.health_settle),
            ignored_xids=findings.parse_xids(settings.additional_xids_to_ignore),
            remarks=self._effects[Severity.REMARK] is not Effect.OFF,
            clock=time.time,  # noqa: TID251 (records and taints tell it)
            on_change=changes.health,
            on_begin=self._begun,
        )
        self._requests = HealthRequests(context.directory)
        self._released_until = 0.0
        self._gone: Gone = {}
        self._listener = Listener(
            session.next_event,
            self._hear,
            look=lambda: self.watcher.ring(),  # noqa: PLW0108 (whichever watcher it is then)
            asked=self._requests.pending,
            clock=time.monotonic,
        )
        context.metrics.watch_conditions(tuple(Cause), tuple(Severity), self._count)

    def look(self) -> Inventory:
        """Scan all GPUs, for the watcher, and do what admins request. Raises DeviceError."""
        asked = self._requests.pending()
        for request in asked:
            self._do(request)
        prepared, before = self._prepared(), self.watcher.current()
        inventory = self._session.look()
        self._note_gone(prepared, inventory)
        self._tracker.look(inventory)
        # GPUs that cannot be reached are sick.
        for gpu in before.known().keys() - self._tracker.published(inventory).known().keys():
            self._outbox.put(("removed GPU", gpu), partial(self._post_removed, gpu, inventory))
        if time.monotonic() < self._released_until:
            self._session.rest()
        for request in asked:
            self._requests.end(request)
        return inventory

    def _prepared(self) -> Sequence[ClaimRecord]:
        try:
            return tuple(self._ledger.prepared())
        except DriverError as error:
            log.warning("mig devices of claims not checked", reason=str(error))
            return ()

    def _note_gone(self, prepared: Iterable[ClaimRecord], inventory: Inventory) -> None:
        """Note claims' MIG devices that a scan missed; `prepared` is from before the scan."""
        before = self._gone
        self._gone = gone_devices(filter(self._ledger.still_holds, prepared), inventory, before)
        for key, record in self._gone.items():
            if before.get(key) is not record:
                log.warning("mig device of a claim is gone", claim=str(record.ref), device=key[1])
                self._post_gone(record, key[1], inventory)
        if self._gone != before:
            self._on_change()

    def _do(self, request: str) -> None:
        if request == RELEASE:
            log.warning("gpus released for a reset", seconds=RELEASE_SECONDS)
            self._released_until = time.monotonic() + RELEASE_SECONDS
        else:
            self._released_until = 0.0
            self._tracker.clear(request)

    def start(self) -> None:
        """Begin to listen. Call it only once."""
        self._listener.start()

    def stop(self, timeout: float) -> None:
        """End the thread, waiting at most `timeout` seconds."""
        self._listener.stop(timeout)

    def current(self) -> Inventory:
        """Return the latest inventory as published: with unreachable GPUs as they were."""
        return self._tracker.published(self.watcher.current())

    def published(self, inventory: Inventory) -> Inventory:
        """Return an inventory as it is published."""
        return self._tracker.published(inventory)

    def tainted(self, projection: Projection) -> Projection:
        """Return the projection with the taints of unhealthy devices."""
        return tainted(projection, self._tracker.in_force(), self._effects)

    def of_device(self, record: ClaimRecord, device: Device) -> DeviceHealth:
        """Return the health of a claim's device now."""
        is_gone = device.uuid is not None and (
            self._gone.get((record.ref.uid, device.uuid)) is record
        )
        in_force = self._tracker.in_force()
        return health_of(device, self.watcher.current(), in_force, is_gone=is_gone)

    def _hear(self, event: GpuEvent) -> bool:
        excluded = self.watcher.current().excluded
        if any(gpu.uuid == event.gpu and not gpu.is_in_use for gpu in excluded):
            return False  # not a device of this driver
        if event.xid is not None:
            self._metrics.xid_heard()
        return self._tracker.hear(event)

    def _begun(self, uuid: str, gpu: GpuHealth, condition: GpuCondition) -> None:
        if condition.finding.severity not in {Severity.REMARK, Severity.WARNING}:
            key = ("condition of a GPU", uuid, *map(str, condition.key))
            self._outbox.put(key, partial(self._post_sick, GpuUuid(uuid), gpu.name, condition))

    def _post_sick(self, gpu: GpuUuid, name: str, condition: GpuCondition) -> None:
        for record in self._ledger.users_of(gpu):
            if any(concerns(condition, entry.device) for entry in record.devices):
                self._post(record, REASON, f"{name}: {condition.finding.text}")

    def _post_removed(self, gpu: GpuUuid, inventory: Inventory) -> None:
        for record in self._ledger.users_of(gpu):
            self._post_gone(record, gpu, inventory)

    def _post_gone(self, record: ClaimRecord, uuid: str, inventory: Inventory) -> None:
        """Post Events to claims whose devices with this UUID, or of this GPU, no longer exist."""
        for entry in record.devices:
            if uuid in {entry.device.uuid, entry.device.gpu}:
                gone = health_of(entry.device, inventory, {}, is_gone=True)
                self._post(record, GONE, f"{entry.name}: {gone.message}")

    def _post(self, record: ClaimRecord, reason: str, note: str) -> None:
        action = "CheckingDevices"
        self._events.post_on_claim(record.ref, reason=reason, action=action, note=note)

    def _count(self) -> Mapping[tuple[str, str], int]:
        return Counter(
            (str(condition.finding.cause), str(condition.finding.severity))
            for conditions in self._tracker.in_force().values()
            for condition in conditions
        )
