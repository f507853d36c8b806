"""Serves the claims of this node: the kubelet's calls, and the work in the background."""

import platform
from collections import Counter
from collections.abc import Mapping

import structlog

from dra_driver.cdi.edits_cache import EditsCache
from dra_driver.cdi.store import SpecStore
from dra_driver.claims.memory.watch import MemoryWatch
from dra_driver.claims.model.record import MIG, ClaimRecord
from dra_driver.claims.prepare.node_claims import NodeClaims
from dra_driver.claims.prepare.preparer import ClaimPreparer
from dra_driver.claims.report.claim_events import about_all
from dra_driver.claims.report.device_health import Reported, reported
from dra_driver.claims.report.mps_events import MpsEvents
from dra_driver.claims.report.status_writer import StatusWriter
from dra_driver.claims.report.unlimited_memory import UnlimitedMemory
from dra_driver.claims.state.ledger import Ledger
from dra_driver.claims.state.locks import NodeLocks, locks_of
from dra_driver.devices.driver_root.modprobe import NvidiaModprobe
from dra_driver.devices.mig.making import MigInstances
from dra_driver.host.worker import Listeners, Worker
from dra_driver.kubelet.health_stream import HealthStream
from dra_driver.kubelet.service import ClaimCalls
from dra_driver.node.context import NodeContext
from dra_driver.node.gpus import NodeGpus
from dra_driver.node.offers import NodeOffers
from dra_driver.node.sharing import node_sharing, sees_processes
from dra_driver.ops.metrics import DeviceType
from dra_driver.sharing.limiters import UNSEEN
from dra_driver.sharing.steps import NvidiaMpsDaemon, UseShares
from resource_nvidia_com.v1beta1.names import SharingStrategy

STILL_RUNS = "ClaimStillRuns"
"""Reason of the Event of a claim whose pods run on after its end in the API server."""

log = structlog.get_logger()


class ClaimWork:
    """What serves the claims of this node.

    Listeners:
        changed: claims were prepared or unprepared, or have given something back; called in the
            background, once for many.
    """

    def __init__(self, context: NodeContext, gpus: NodeGpus, offers: NodeOffers) -> None:
        """Build it; nothing runs yet. Raises SetupError."""
        settings, changes, watcher = context.settings, context.changes, gpus.watcher
        locks = locks_of(context.ledger, context.clock)
        self.sharing = node_sharing(
            gpus.session,
            context.roots,
            locks=locks,
            mps_folder=context.mps_folder,
            mps_ready_seconds=settings.mps_ready_timeout,
            memory=offers.memory,
            clock=context.clock,
        )
        self.claims = self._claims(context, gpus, locks)
        self.preparer = ClaimPreparer(
            api=context.kube,
            inventory=watcher,
            claims=self.claims,
            divisions=offers.divisions,
            pool=settings.node_name,
            clock=context.clock,
        )
        self.claims.release.done.add(changes.released)
        self._gpus = gpus
        self.changed: Listeners[[]] = Listeners()
        self.calls = ClaimCalls(self.preparer, context.metrics, clock=context.clock)
        self.health_stream = HealthStream(self.device_health, wait_ready=watcher.wait_until_looked)
        self._events = context.events
        self._report(context)
        self.workers = (self._memory_watch(context, offers), *self._over_limit(context, offers))
        self._measure(context)

    def _report(self, context: NodeContext) -> None:
        """Build the background reports of what becomes of claims and their devices."""
        outbox, changes, ledger = context.outbox, context.changes, context.ledger
        outbox.busy = self.calls.busy

        def changed(_: object = None) -> None:
            outbox.put(("claims changed",), self.changed)

        self.changed.add(self.health_stream.ring)
        self.calls.prepared.add(changed)
        self.calls.unprepared.add(changed)
        changes.released.add(changed)
        for of_devices in (changes.inventory, changes.health):
            of_devices.add(lambda *_: self.health_stream.ring())
        unlimited = UnlimitedMemory(ledger, context.events, outbox)
        self.calls.prepared.add(unlimited.prepared)
        self.calls.unprepared.add(unlimited.unprepared)
        if context.settings.claim_status:
            inventory, health = self._gpus.watcher, self._gpus.health.of_device
            status = StatusWriter(context.kube, outbox, self.claims, inventory, health=health)
            self.calls.prepared.add(status.claim_changed)
            self.calls.unprepared.add(status.claim_changed)
            changes.inventory.add(status.devices_changed)
            changes.health.add(status.devices_changed)
        daemons = MpsEvents(
            self.sharing.domains,
            ledger,
            context.events,
            outbox,
            folder=context.mps_folder,
            clock=context.clock,
        )
        outbox.put(("check MPS daemons",), daemons.watch)

    def post_kept(self, record: ClaimRecord, why: str) -> None:
        """Report a claim that keeps its devices after its end in the API server. Never blocks."""
        note = f"{why}. It keeps its devices until nothing runs with it: end its pods"
        for each in about_all(record.ref, record.pods):
            self._events.post(each, reason=STILL_RUNS, action="Unpreparing", note=note)
        self._events.post_on_node(reason=STILL_RUNS, action="Unpreparing", note=note)

    def device_health(self) -> Reported:
        """Return the health of all prepared claims' devices. Raises StateError."""
        return reported(self.claims.ledger.prepared(), self._gpus.health.of_device)

    def _memory_watch(self, context: NodeContext, offers: NodeOffers) -> MemoryWatch:
        memory = MemoryWatch(
            pods_of=context.pod_resources.pods,
            claims=self.claims,
            groups=offers.memory.groups,
            inventory=self._gpus.watcher,
            locks=self.claims.locks,
            events=context.events,
            clock=context.clock,
            period=context.settings.rescan_interval,
        )
        context.metrics.watch_memory_limits(memory.not_in_force)
        return memory

    def _over_limit(self, context: NodeContext, offers: NodeOffers) -> tuple[Worker, ...]:
        """Return the watch on memory limits; None if no processes are visible."""
        if not sees_processes(context.roots):
            if context.settings.over_limit != "report" or context.settings.usage_metrics:
                log.warning("processes of containers not seen", reason=UNSEEN)
            return ()
        # By default the driver has its own PID namespace, and this is not loaded.
        from dra_driver.node.usage import over_limit_watch  # noqa: PLC0415

        watch = over_limit_watch(context, self._gpus, offers.shares)
        self.changed.add(watch.ring)
        return (watch,)

    def _claims(self, context: NodeContext, gpus: NodeGpus, locks: NodeLocks) -> NodeClaims:
        settings = context.settings
        content = EditsCache(
            context.roots,
            hook_path=settings.nvidia_cdi_hook_path,
            kernel_release=platform.release(),
            clock=context.clock,
            nvml_version=lambda: gpus.watcher.current().driver_version,
            make_uvm_nodes=NvidiaModprobe(context.roots.driver, context.clock).make_uvm_nodes,
        )
        return NodeClaims(
            context.ledger,
            locks,
            clock=context.clock,
            inventory=gpus.watcher,
            edits=content,
            specs=SpecStore(settings.cdi_root),
            sharing=self.sharing.sharing,
            mig=MigInstances(gpus.session.mig, gpus.holders.of),
            switches=gpus.refusals,
            switches_modes=gpus.mig.switches_modes,
            on_failed_undo=context.metrics.undo_failed,
            tidy=self.sharing.domains.tidy,
            device_metadata=settings.gives_device_metadata,
        )

    def _measure(self, context: NodeContext) -> None:
        metrics, ledger = context.metrics, context.ledger
        metrics.watch_prepared(lambda: prepared_by_type(self.claims.ledger))
        metrics.watch_quarantined(lambda: ledger.quarantined)
        metrics.watch_sharing(
            (*SharingStrategy, NvidiaMpsDaemon.name, UseShares.name, MIG),
            self.claims.release.count_pending,
        )
        if context.settings.usage_metrics:
            # Off by default, and then not loaded.
            from dra_driver.node.usage import node_look  # noqa: PLC0415
            from dra_driver.usage.sampler import Sampler  # noqa: PLC0415

            look = node_look(
                self._gpus.session,
                context.roots,
                context.directory,
                context.pod_resources.pods,
                ledger.readable,
            )
            metrics.watch_usage(Sampler(look.look).series)


def prepared_by_type(ledger: Ledger) -> Mapping[DeviceType, int]:
    """Return how many devices claims have, by their names in metrics."""
    return Counter(
        DeviceType(entry.device.kind) for record in ledger.prepared() for entry in record.devices
    )
