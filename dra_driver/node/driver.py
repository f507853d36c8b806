"""The composition root of `dra-driver kubelet-plugin`: builds, starts and stops every part.

In: settings. Out: a running driver. The kubelet is answered first and at once, without waiting for
GPUs or the API server; what is missing is looked for again as long as the driver runs. Parts are
built in the order in which they need each other; messages in the other direction go through
`Changes`.
"""

from collections.abc import Callable, Mapping

from dra_driver.claims.reconcile.reconciler import Reconciler
from dra_driver.devices.names import DRIVER_NAME
from dra_driver.host.worker import Worker
from dra_driver.kube.own_node import OwnNode
from dra_driver.kubelet.eviction import Eviction
from dra_driver.kubelet.liveness import Health, HealthPort, HealthSocket
from dra_driver.kubelet.plugin import KubeletPlugin
from dra_driver.mps.files import MpsFiles
from dra_driver.node.claims import ClaimWork
from dra_driver.node.context import FIRST_LOOK_SECONDS, STOP_SECONDS, node_context
from dra_driver.node.gpus import NodeGpus
from dra_driver.node.offers import NodeOffers
from dra_driver.node.settings import Settings
from dra_driver.node.still_running import still_running
from dra_driver.ops.http import HttpEndpoint
from dra_driver.slices.publish.publication import Publication
from dra_driver.slices.publish.publisher import SlicePublisher


class Driver:
    """Every part of the driver, built from settings. Start once, stop once."""

    def __init__(self, settings: Settings, environment: Mapping[str, str]) -> None:
        """Build all parts; nothing listens, runs or sends requests yet. Raises SetupError."""
        self._settings = settings
        self._context = node_context(settings, environment)
        self.paths = self._context.paths
        self._gpus = NodeGpus(self._context)
        self._offers = NodeOffers(self._context, self._gpus)
        self._work = ClaimWork(self._context, self._gpus, self._offers)
        self._build_endpoints()
        self._build_repairs()

    def _build_endpoints(self) -> None:
        """Build the endpoints for kubelet, probes and scrapers, and the slices' publisher."""
        context, settings = self._context, self._settings
        self._plugin = KubeletPlugin(
            self._work.calls,
            self.paths,
            self._work.health_stream,
            on_status=context.metrics.registered,
        )
        health, address = Health(self.paths, self._plugin), settings.healthcheck_address
        self._probes: list[HealthSocket | HealthPort] = []
        if settings.health_socket is not None:
            self._probes.append(HealthSocket(health, settings.health_socket))
        if settings.healthcheck_port >= 0:
            self._probes.append(HealthPort(health, address=address, port=settings.healthcheck_port))
        pages = {settings.metrics_path: context.metrics.wsgi_app}
        self._http = HttpEndpoint(settings.http_endpoint, pages)
        publication = Publication(
            context.kube,
            driver=DRIVER_NAME,
            node_name=settings.node_name,
            observer=context.metrics,
            project=self._offers.project,
            check_may_publish=self._plugin.check_may_publish,
        )
        self._publisher = SlicePublisher(publication, clock=context.clock, random=context.random)
        for changed in (context.changes.offer, context.changes.health):
            changed.add(self._publisher.publish_again)
        context.changes.inventory.add(self._publisher.update)

    def _build_repairs(self) -> None:
        """Build what reconciles disk, hardware and API server."""
        context, work = self._context, self._work
        work.changed.add(self._offers.look_at_divisions)
        reconciler = Reconciler(
            api=context.kube,
            claims=work.claims,
            running=still_running(
                context.pod_resources,
                roots=context.roots,
                cgroup_root=self._settings.cgroup_root,
                inventory=self._gpus.watcher.current,
            ),
            clock=context.clock,
            on_kept=work.post_kept,
        )
        self._threads: tuple[Worker | OwnNode, ...] = (
            context.outbox,  # stopped last, because it sends for the others
            self._publisher,
            context.own_node,
            self._offers.share_configs,
            self._gpus.refusals,
        )
        self._workers = (reconciler, *work.workers)
        self._eviction = Eviction(
            context.kube,
            self._settings.node_name,
            is_in_use=context.ledger.anything_held,
            lock=MpsFiles(root=context.mps_folder).eviction,
            longest=self._settings.eviction_wait,
            clock=context.clock,
        )

    def start(self) -> None:
        """Start every part: first what can fail, and what the kubelet waits for.

        A claim that arrives before the GPUs are known waits for them inside its call. Raises
        SetupError if an address or a socket is not available.
        """
        gpus, work = self._gpus, self._work
        if self._settings.http_endpoint:
            self._http.start()
        for probe in self._probes:
            probe.start()
        gpus.watcher.start()
        gpus.health.start()
        self._plugin.start()
        work.health_stream.start()
        for thread in self._threads:
            thread.start()
        # Without the GPUs it could repair nothing, and would log that for each claim.
        gpus.watcher.wait_until_looked(FIRST_LOOK_SECONDS)
        for worker in self._workers:
            worker.start()

    def let_claims_end(self, pause: Callable[[float], bool]) -> None:
        """Wait for claims if the GPU driver is replaced, and close it (k8s-driver-manager#203)."""
        if self._eviction.wait_for_claims(pause):
            self._gpus.let_go()

    def stop(self) -> tuple[str, ...]:
        """Stop every part, first those that receive calls; what is prepared and published stays.

        Returns the claims whose calls did not end in time.
        """
        settings, context = self._settings, self._context
        for probe in self._probes:
            probe.stop()
        # Calls that only wait would use up the grace period of those that work.
        self._work.preparer.stop()
        self._work.sharing.domains.stop()
        left = self._plugin.stop(settings.shutdown_grace, delay=settings.shutdown_delay)
        self._gpus.health.stop(STOP_SECONDS)
        for thread in reversed((*self._threads, *self._workers)):
            thread.stop(STOP_SECONDS)
        self._gpus.let_go()
        self._http.stop()
        context.kube.close()
        return left
