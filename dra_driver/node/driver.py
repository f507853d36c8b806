"""The composition root of `dra-driver kubelet-plugin`: builds every part once, starts, stops.

In: settings. Out: a running driver. The kubelet is answered first and at once: neither GPUs nor the
API server are waited for, and what they lack is looked for again for as long as the driver runs.
"""

import platform
import random
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from typing import Protocol

import structlog

from dra_driver.cdi.edits_cache import EditsCache
from dra_driver.cdi.roots import Roots, roots_of
from dra_driver.cdi.store import SpecStore
from dra_driver.claims.memory.watch import MemoryWatch
from dra_driver.claims.model.record import MIG
from dra_driver.claims.prepare.parts import NodeParts, open_claims
from dra_driver.claims.prepare.preparer import ClaimPreparer
from dra_driver.claims.reconcile.reconciler import Reconciler
from dra_driver.claims.reconcile.resharing import Resharing
from dra_driver.claims.report.claim_events import ClaimEvents
from dra_driver.claims.report.device_health import Reported, conditions, reported
from dra_driver.claims.report.mps_events import MpsEvents
from dra_driver.claims.report.status_writer import StatusWriter
from dra_driver.claims.report.unlimited_memory import UnlimitedMemory
from dra_driver.claims.state.divisions import Divisions
from dra_driver.claims.state.holdings import HeldDevices
from dra_driver.claims.state.in_force import DivisionsInForce
from dra_driver.claims.state.locks import NodeLocks
from dra_driver.claims.takeover.take_over import TakeOver
from dra_driver.devices.driver_root.modprobe import NvidiaModprobe
from dra_driver.devices.holders import Holders
from dra_driver.devices.mig.making import MigInstances
from dra_driver.devices.mig.refusals import Refusals
from dra_driver.devices.model import Inventory
from dra_driver.devices.names import DRIVER_NAME
from dra_driver.devices.nvml.calls import NvmlCalls
from dra_driver.devices.session import DriverSession
from dra_driver.devices.watcher import InventoryWatcher
from dra_driver.errors import StateError, UnavailableError
from dra_driver.feature_gates import CONSUMABLE_SHARES, DYNAMIC_MIG
from dra_driver.host.boot import read_boot_id
from dra_driver.kube.connect import connect_pod
from dra_driver.kube.own_node import OwnNode
from dra_driver.kube.server_version import ServerVersion
from dra_driver.kubelet.eviction import Eviction
from dra_driver.kubelet.health_stream import HealthStream
from dra_driver.kubelet.liveness import Health, Probes
from dra_driver.kubelet.plugin import KubeletPlugin
from dra_driver.kubelet.service import ClaimCalls
from dra_driver.kubelet.sockets import SocketPaths, socket_paths
from dra_driver.mps.files import MpsFiles
from dra_driver.node.exclusion import NodeExclusion
from dra_driver.node.health import NodeHealth
from dra_driver.node.shares import NodeShares
from dra_driver.node.sharing import node_memory, node_sharing
from dra_driver.node.usage import NodeUsage, node_look, pods_of_claims, prepared_by_type
from dra_driver.ops.http import HttpEndpoint
from dra_driver.ops.metrics import Metrics
from dra_driver.settings import Settings
from dra_driver.shares import last_good
from dra_driver.shares.source import ShareConfigEvents, ShareConfigs
from dra_driver.sharing import nvidia_mps, shares
from dra_driver.slices.consumable import Consumable
from dra_driver.slices.node import DevicePlugin, MemoryCounters, NodeOffer
from dra_driver.slices.offer.mig import MigSettings
from dra_driver.slices.offer.shares import SharePlacement, WholeBesideShares
from dra_driver.slices.order import GpuOrder
from dra_driver.slices.project import Projection, projection
from dra_driver.slices.publish.publication import Publication
from dra_driver.slices.publish.publisher import SlicePublisher
from resource_nvidia_com.v1beta1.sharing import SharingStrategy

STOP_SECONDS = 2.0
"""What each background thread gets to end; all are daemons and change nothing by being cut off."""

FIRST_LOOK_SECONDS = 5.0
"""How long the start waits for the first look at the GPUs; the kubelet is answered meanwhile."""

log = structlog.get_logger()


class _Worker(Protocol):
    """What goes on by itself beside the kubelet's calls."""

    def start(self) -> None: ...
    def stop(self, timeout: float, /) -> object: ...


class Driver:
    """Every part of the driver, built from settings. Start once, stop once."""

    def __init__(self, settings: Settings, environment: Mapping[str, str]) -> None:
        """Build all parts; nothing listens, runs or asks yet.

        Raises:
            SetupError: the settings or this node lack something.
        """
        clock = time.monotonic
        self._settings = settings
        self.paths: SocketPaths = socket_paths(
            plugins=settings.kubelet_plugins_directory_path,
            registrar=settings.kubelet_registrar_directory_path,
            pod_uid=settings.pod_uid,
        )
        self._mps_folder = self.paths.data_directory / "mps"  # the supervisor looks there, too
        self._metrics = Metrics(
            driver=DRIVER_NAME, node=settings.node_name, version=version("dra-driver")
        )
        self._kube = connect_pod(settings.kubeconfig, environment)
        roots = roots_of(settings)
        self._session = DriverSession(
            driver_root=roots.driver,
            dev=roots.dev,
            proc_root=roots.proc,
            sys_root=roots.sys,
            made_here=lambda: self._claims.ownership.made().keys(),
            turned_on=lambda: set(self._claims.ownership.gpus_turned_on()),
            leave_out=lambda found: self._exclusion.leave_out(found),  # noqa: PLW0108 (built later)
            calls=NvmlCalls(clock=clock, answer_seconds=settings.nvml_timeout),
            lets_go=lambda gpu: self._mig_offer.waits_for_others(gpu),  # noqa: PLW0108 (built later)
        )
        self._metrics.watch_silence(self._session.silences)
        publication = Publication(
            self._kube,
            driver=DRIVER_NAME,
            node_name=settings.node_name,
            observer=self._metrics,
            project=self._project,
        )
        self._publisher = SlicePublisher(publication, clock=clock, random=random.random)
        self._build_inventory(roots)
        self._build_offers(roots, clock)
        self._build_claims(roots, clock)
        self._metrics.watch_share_config(self._share_configs.is_valid)
        self._plugin = KubeletPlugin(
            self._calls, self.paths, self._health_stream, on_status=self._metrics.registered
        )
        self._probes = Probes(
            Health(self.paths, self._plugin),
            path=settings.health_socket,
            address=settings.healthcheck_address,
            port=settings.healthcheck_port,
        )
        pages = {settings.metrics_path: self._metrics.wsgi_app}
        self._http = HttpEndpoint(settings.http_endpoint, pages)

    def _build_inventory(self, roots: Roots) -> None:
        """Build what knows this node's GPUs, and how they are."""
        self._health = NodeHealth(
            self._settings,
            self._session,
            watcher=lambda: self._watcher,
            holders=lambda: self._claims.holdings,
            directory=self.paths.data_directory,
            boot_id=read_boot_id(roots.proc),
            on_change=self._on_health,
        )
        self._watcher = InventoryWatcher(
            self._health.look,
            rescan_seconds=self._settings.rescan_interval,
            on_change=self._on_inventory,
        )

    def _build_offers(self, roots: Roots, clock: Callable[[], float]) -> None:
        """Build what says how much of this node's GPUs is offered, and what carries out shares."""
        settings = self._settings
        self._own_node = OwnNode(self._kube, settings.node_name, clock=clock, random=random.random)
        self._version = ServerVersion(self._kube, clock=clock)
        self._exclusion = NodeExclusion(
            self._own_node,
            settings.exclude_gpus,
            directory=self.paths.data_directory,
            ownership=lambda: self._claims.ownership,
            on_change=self._watcher.look_soon,
        )
        self._memory_counters = MemoryCounters(self._version, are_wanted=settings.memory_counters)
        self._mig_offer = NodeOffer(
            self._own_node,
            self._version,
            MigSettings.of(settings.mig, settings.mig_profiles, gate=settings.gate_of(DYNAMIC_MIG)),
            on_change=self._publisher.publish_anew,
        )
        self._device_plugin = DevicePlugin(
            self._own_node,
            heed=settings.beside_device_plugin == "withhold",
            on_change=self._publisher.publish_anew,
        )
        self._share_configs = ShareConfigs(
            settings.share_config,
            default=settings.share_config_default,
            labels=self._own_node,
            events=ShareConfigEvents(self._kube, settings.node_name),
            on_change=self._publisher.publish_anew,
            kept=self.paths.data_directory / last_good.FILE,
        )
        self._memory = node_memory(
            self._session,
            roots,
            lambda: self._claims.holdings,
            cgroup_root=settings.cgroup_root,
            hook_path=settings.nvidia_cdi_hook_path,
            by_groups=settings.share_memory == "auto",
        )
        self._sharing = node_sharing(
            self._session,
            roots,
            mps_folder=self._mps_folder,
            mps_ready_seconds=settings.mps_ready_timeout,
            memory=self._memory.shares,
            clock=clock,
        )
        self._shares = NodeShares(
            self._share_configs,
            self._health,
            memory=self._memory.shares,
            placement=SharePlacement(settings.share_placement),
            consumable=Consumable.of(
                settings.consumable_shares, gate=settings.gate_of(CONSUMABLE_SHARES)
            ),
            directory=self.paths.data_directory,
        )

    def _build_claims(self, roots: Roots, clock: Callable[[], float]) -> None:
        holders = Holders(
            procs=(roots.driver / "proc", roots.proc, Path("/proc")),
            devs=(Path("/dev"), Path(roots.driver_file_on_host("dev")), Path(roots.dev_on_host)),
            clock=clock,
        )
        self._refusals = Refusals(holders.of, clock, self._on_refusals)
        content = EditsCache(
            roots,
            hook_path=self._settings.nvidia_cdi_hook_path,
            kernel_release=platform.release(),
            clock=clock,
            nvml_version=lambda: self._watcher.current().driver_version,
            make_uvm_nodes=NvidiaModprobe(roots.driver, clock).make_uvm_nodes,
        )
        parts = NodeParts(
            inventory=self._watcher,
            edits=content,
            specs=SpecStore(self._settings.cdi_root),
            strategies=self._sharing.strategies,
            mig=MigInstances(self._session.mig, holders.of),
            switches=self._refusals,
            switches_modes=self._mig_offer.switches_modes,
            on_failed_undo=self._metrics.undo_failed,
            tidy=self._sharing.shared_domains.tidy,
            device_metadata=self._settings.gives_device_metadata,
        )
        directory = self.paths.data_directory
        self._claims = open_claims(
            directory, parts, boot_id=read_boot_id(roots.proc), version=version("dra-driver")
        )
        self._divisions = Divisions(
            self._claims.holdings, self._shares, DivisionsInForce(directory)
        )
        self._held = HeldDevices(self._claims.holdings)
        self._locks = NodeLocks(directory / "locks", clock)
        self._build_workers(clock)
        self._build_calls(clock)
        self._workers: tuple[_Worker, ...] = (
            self._reconciler,
            self._resharing,
            self._memory_watch,
            self._mps_events,
            self._claim_status,
            self._unlimited,
        )
        self._metrics.watch_prepared(lambda: prepared_by_type(self._claims.holdings))
        if self._settings.usage_metrics:
            records, pods = self._claims.records.readable, pods_of_claims(self._kube)
            usage = NodeUsage(node_look(self._session, roots, directory, records, pods).look)
            self._metrics.watch_usage(usage.series)
        self._metrics.watch_quarantined(lambda: self._claims.records.quarantined)
        self._metrics.watch_sharing(
            (*SharingStrategy, nvidia_mps.NAME, shares.NAME, MIG),
            self._claims.cleanup.count_pending,
        )

    def _build_workers(self, clock: Callable[[], float]) -> None:
        """Build what works on claims: for the kubelet, and by itself."""
        self._resharing = Resharing(
            api=self._kube,
            slices=self._publisher,
            divisions=self._divisions,
            inventory=self._watcher,
            pool=self._settings.node_name,
            clock=clock,
            random=random.random,
        )
        self._preparer = ClaimPreparer(
            api=self._kube,
            inventory=self._watcher,
            claims=self._claims,
            divisions=self._divisions,
            locks=self._locks,
            pool=self._settings.node_name,
            clock=clock,
            on_release=self._on_release,
        )
        self._take_over = TakeOver(
            self._claims.holdings,
            self._locks,
            self._watcher,
            self._mig_offer.makes,
            clock,
            rival=lambda: self._plugin.rivals.foreign(),  # noqa: PLW0108 (built later)
        )
        self._reconciler = Reconciler(
            api=self._kube,
            claims=self._claims,
            preparer=self._preparer,
            locks=self._locks,
            clock=clock,
            take_over=self._take_over.run,
        )
        self._claim_events = ClaimEvents(self._kube, node=self._settings.node_name)
        self._memory_watch = MemoryWatch(
            api=self._kube,
            claims=self._claims,
            pods=self._memory.pods,
            inventory=self._watcher,
            locks=self._locks,
            events=self._claim_events,
            clock=clock,
            period=self._settings.rescan_interval,
        )
        self._metrics.watch_memory_limits(self._memory_watch.not_in_force)
        self._mps_events = MpsEvents(
            self._sharing.requests,
            self._claims.records,
            self._claim_events,
            folder=self._mps_folder,
            clock=clock,
        )

    def _build_calls(self, clock: Callable[[], float]) -> None:
        """Build what the kubelet calls, and what tells how calls went."""
        may_begin = self._watcher.wait_until_looked
        self._claim_status = StatusWriter(
            self._kube,
            self._claims,
            self._watcher,
            on=self._settings.claim_status,
            conditions=conditions(self._health.of_device),
            may_begin=may_begin,
        )
        self._health_stream = HealthStream(self._device_health, may_begin=may_begin)
        self._unlimited = UnlimitedMemory(self._claims.records, self._claim_events)
        prepared = (self._ring, self._unlimited.prepared)
        unprepared = (self._ring, self._unlimited.unprepared)
        self._calls = ClaimCalls(
            self._preparer, self._metrics, clock=clock, prepared=prepared, unprepared=unprepared
        )
        self._eviction = Eviction(
            self._kube,
            self._settings.node_name,
            is_in_use=self._claims.holdings.are_there,
            lock=MpsFiles(root=self._mps_folder).eviction,
            longest=self._settings.eviction_wait,
            clock=clock,
        )

    def start(self) -> None:
        """Start every part: first what can fail, and what the kubelet waits for.

        A claim that comes before the GPUs are known waits for them inside its call.

        Raises:
            SetupError: an address or a socket cannot be had.
        """
        if self._settings.http_endpoint:
            self._http.start()
        self._probes.start()
        with suppress(StateError):
            self._device_health()  # so that the first look tells already what claims have lost
        self._watcher.start()
        self._health.start(self._metrics, self._claim_events)
        self._take_over.run_first(self._watcher, FIRST_LOOK_SECONDS)
        self._plugin.start()
        self._health_stream.start()
        self._publisher.start()
        self._own_node.start()
        self._share_configs.start()
        self._note_refusals()
        self._refusals.start()
        # Without knowing the GPUs it could mend nothing, and would say so for each claim.
        self._watcher.wait_until_looked(FIRST_LOOK_SECONDS)
        for worker in self._workers:
            worker.start()

    def let_claims_end(self, pause: Callable[[float], bool]) -> None:
        """Wait for claims if the GPU driver is to be replaced, and let go of it (Eviction)."""
        if self._eviction.wait_for_claims(pause):
            self._let_go_of_gpus()

    def stop(self) -> tuple[str, ...]:
        """Stop every part, first what calls come from; what is prepared and published stays.

        Returns the claims whose calls did not end in time.
        """
        self._probes.stop()
        # Calls that only wait for something would use up the grace of those that work.
        self._preparer.stop()
        self._sharing.requests.stop()
        left = self._plugin.stop(self._settings.shutdown_grace, delay=self._settings.shutdown_delay)
        others = (self._share_configs, self._own_node, self._refusals, self._publisher)
        for worker in (*self._workers, *others):
            worker.stop(STOP_SECONDS)
        self._health.stop(STOP_SECONDS)
        self._let_go_of_gpus()
        self._http.stop()
        self._kube.close()
        return left

    def _let_go_of_gpus(self) -> None:
        """Close NVML once nobody looks any more."""
        if self._watcher.stop(STOP_SECONDS):
            self._session.close()

    def _project(
        self, inventory: Inventory, *, with_counters: bool, with_consumables: bool
    ) -> Projection:
        self._plugin.check_may_publish()
        if not self._share_configs.wait_until_looked(FIRST_LOOK_SECONDS):
            raise UnavailableError("the share config waits for the Node's labels")
        inventory = self._health.published(inventory)
        beside_shares = WholeBesideShares(self._settings.whole_gpus_beside_shares)
        share = self._shares.offer(
            inventory,
            self._divisions,
            with_counters=with_counters,
            alone=beside_shares.why_alone(self._version.current),
        )
        self._resharing.ring()
        if reason := self._device_plugin.why_withheld():
            share = share.refusing_all(inventory, reason)
        share = share.refusing(self._exclusion.reasons(inventory))
        found = projection(
            inventory,
            with_counters=with_counters,
            with_consumables=with_consumables,
            mig=self._held.beside(self._mig_offer.current(), inventory),
            refused=self._refusals.current(),
            share=share,
            gpu_order=GpuOrder(self._settings.gpu_order),
        )
        if with_counters:
            found = self._memory_counters.added_to(found)
        self._shares.published(found.devices)
        return self._health.tainted(found)

    def _on_release(self) -> None:
        self._resharing.ring()
        if self._held.keeps_any:
            self._watcher.look_soon()
            self._publisher.publish_anew()

    def _on_health(self) -> None:
        self._publisher.publish_anew()
        self._ring()

    def _ring(self, _: object = None) -> None:
        self._health_stream.ring()
        self._claim_status.ring()

    def _device_health(self) -> Sequence[Reported]:
        records = filter(self._claims.holdings.is_prepared, self._claims.records.readable())
        return reported(records, self._health.of_device)

    def _on_refusals(self) -> None:
        self._publisher.publish_anew()
        self._note_refusals()

    def _note_refusals(self) -> None:
        """Let `dra-driver inspect` know."""
        try:
            self._claims.ownership.note_refusals(self._refusals.current())
        except StateError as error:
            log.warning("refused mig modes not noted", reason=str(error))

    def _on_inventory(self, inventory: Inventory) -> None:
        self._metrics.gpus(ok=len(inventory.gpus), sick=len(inventory.sick))
        self._refusals.look_at(inventory)
        self._publisher.update(inventory)
        self._ring()
