"""What knows the GPUs of this node, and their health."""

from pathlib import Path

from dra_driver.devices.holders import Holders
from dra_driver.devices.mig.refusals import Refusals
from dra_driver.devices.model import Inventory
from dra_driver.devices.nvml.calls import NvmlCalls
from dra_driver.devices.session import DriverSession
from dra_driver.feature_gates import DYNAMIC_MIG
from dra_driver.node.context import STOP_SECONDS, NodeContext
from dra_driver.node.exclusion import NodeExclusion
from dra_driver.node.health import NodeHealth
from dra_driver.node.passthrough import passthrough_gpus
from dra_driver.slices.node import NodeOffer
from dra_driver.slices.offer.mig import MigSettings


class NodeGpus:
    """The GPUs of this node.

    `mig` is what is offered of MIG, which decides whether MIG modes are switched, and `refusals`
    are the GPUs that cannot be switched now. `exclusion` says which GPUs are left out, `holders`
    which processes have one open. `session` is the way to NVML.
    """

    def __init__(self, context: NodeContext) -> None:
        """Build it; nothing is asked yet. Raises SetupError."""
        settings, roots, changes = context.settings, context.roots, context.changes
        ownership = context.holdings.ownership
        self.mig = NodeOffer(
            context.own_node,
            context.server_version,
            MigSettings.of(settings.mig, settings.mig_profiles, gate=settings.gate_of(DYNAMIC_MIG)),
            on_change=changes.offer,
        )
        self.exclusion = NodeExclusion(
            settings.exclude_gpus, directory=context.directory, ownership=ownership
        )
        self.session = DriverSession(
            driver_root=roots.driver,
            dev=roots.dev,
            proc_root=roots.proc,
            sys_root=roots.sys,
            made_here=lambda: ownership.made().keys(),
            turned_on=lambda: set(ownership.gpus_turned_on()),
            leave_out=self.exclusion.leave_out,
            calls=NvmlCalls(clock=context.clock, answer_seconds=settings.nvml_timeout),
            lets_go=self.mig.waits_for_others,
            with_passthrough=passthrough_gpus(roots).look
            if settings.offers_passthrough
            else lambda inventory: inventory,
        )
        context.metrics.watch_silence(self.session.silences)
        self.health = NodeHealth(
            settings,
            self.session,
            holders=context.holdings,
            metrics=context.metrics,
            events=context.events,
            directory=context.directory,
            boot_id=context.boot_id,
            on_change=changes.health,
            on_inventory=changes.inventory,
        )
        self.watcher = self.health.watcher
        changes.look.add(self.watcher.look_soon)
        self.holders = Holders(
            procs=(roots.driver / "proc", roots.proc, Path("/proc")),
            devs=(Path("/dev"), Path(roots.driver_file_on_host("dev")), Path(roots.dev_on_host)),
            clock=context.clock,
        )
        self.refusals = Refusals(context.clock, changes.offer)
        self._context = context
        changes.inventory.add(self._count, self.refusals.look_at)

    def let_go(self) -> None:
        """Close NVML once nobody looks any more."""
        if self.watcher.stop(STOP_SECONDS):
            self.session.close()

    def _count(self, inventory: Inventory) -> None:
        self._context.metrics.gpus(ok=len(inventory.gpus), sick=len(inventory.sick))
