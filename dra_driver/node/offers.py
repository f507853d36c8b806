"""Decides what is published of this node's GPUs, and carries out shares of them."""

from dra_driver.claims.state.divisions import Divisions
from dra_driver.devices.model import Inventory
from dra_driver.errors import UnavailableError
from dra_driver.host.worker import LogOnce
from dra_driver.node.context import FIRST_LOOK_SECONDS, NodeContext
from dra_driver.node.feature_gates import CONSUMABLE_SHARES
from dra_driver.node.gpus import NodeGpus
from dra_driver.node.shares import NodeShares
from dra_driver.node.sharing import node_memory
from dra_driver.shares import notes
from dra_driver.shares.source import ShareConfigs
from dra_driver.slices.consumable import Consumable
from dra_driver.slices.node import DevicePlugin, warn_of_cost
from dra_driver.slices.offer.shares import WholeBesideShares
from dra_driver.slices.project import Projection, projection


class NodeOffers:
    """Decides what is published of this node's GPUs, and carries out shares of them.

    `share_configs` is how the node's share config divides devices, `shares` the same for devices
    that exist, and `divisions` how devices are divided now.
    """

    def __init__(self, context: NodeContext, gpus: NodeGpus) -> None:
        """Build the parts; no request is sent yet. Raises SetupError."""
        settings, changes = context.settings, context.changes
        self._context = context
        self._gpus = gpus
        self._once = LogOnce()
        self._device_plugin = DevicePlugin(
            context.own_node,
            heed=settings.beside_device_plugin == "withhold",
            on_change=changes.offer,
        )
        self.share_configs = ShareConfigs(
            settings.share_config,
            default=settings.share_config_default,
            node=context.own_node,
            events=context.events,
            on_change=changes.offer,
            kept=context.directory / notes.CONFIG_FILE,
        )
        context.metrics.watch_share_config(self.share_configs.is_valid)
        self.memory = node_memory(
            gpus.session,
            context.roots,
            context.ledger,
            cgroup_root=settings.cgroup_root,
            by_groups=settings.share_memory == "auto",
        )
        self.shares = NodeShares(
            self.share_configs,
            gpus.health,
            memory=self.memory,
            consumable=Consumable.of(
                settings.consumable_shares, gate=settings.gate_of(CONSUMABLE_SHARES)
            ),
            directory=context.directory,
        )
        self.divisions = Divisions(context.ledger, self.shares)

    def project(
        self, inventory: Inventory, *, with_counters: bool, with_consumables: bool
    ) -> Projection:
        """Return what to publish of an inventory, when the publisher asks.

        Raises DriverError while it does not know yet what decides.
        """
        if not self.share_configs.wait_until_looked(FIRST_LOOK_SECONDS):
            raise UnavailableError("the share config waits for the Node's labels")
        settings, gpus = self._context.settings, self._gpus
        inventory = gpus.health.published(inventory)
        refused = gpus.refusals.current()
        beside_shares = WholeBesideShares(settings.whole_gpus_beside_shares)
        share = self.shares.offer(
            inventory,
            self.divisions,
            with_counters=with_counters,
            alone=beside_shares.why_alone(self._context.server_version.current),
        )
        if reason := self._device_plugin.why_withheld():
            share = share.refusing_all(inventory, reason)
        projected = projection(
            inventory,
            with_counters=with_counters,
            with_consumables=with_consumables,
            mig=gpus.mig.current(),
            refused=refused,
            share=share.refusing(gpus.exclusion.reasons(inventory)),
            memory_counters=settings.memory_counters,
        )
        if settings.memory_counters:
            warn_of_cost(
                self._context.server_version,
                self._once,
                "memory counters slow the scheduler",
                advice="count devices in place of memory and unset --memory-counters, or upgrade to"
                " Kubernetes 1.37",
            )
        self.shares.published(projected.devices, refused)
        return gpus.health.tainted(projected)

    def look_at_divisions(self) -> None:
        """Publish if prepared or ended claims have changed the divisions. Raises StateError."""
        if self.divisions.is_outdated():
            self._context.changes.offer()
