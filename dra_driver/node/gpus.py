"""Finds the GPUs of this node."""

from collections.abc import Mapping
from pathlib import Path

import structlog

from dra_driver.claims.state.ledger import Ledger
from dra_driver.devices.exclusion import why_excluded, without_excluded
from dra_driver.devices.gpu_words import gpu_words
from dra_driver.devices.holders import Holders
from dra_driver.devices.mig.refusals import Refusals
from dra_driver.devices.model import ExcludedGpu, Gpu, GpuUuid, Inventory
from dra_driver.devices.nvml.calls import NvmlCalls
from dra_driver.devices.session import DriverSession
from dra_driver.errors import StateError
from dra_driver.node.context import STOP_SECONDS, NodeContext
from dra_driver.node.feature_gates import DYNAMIC_MIG
from dra_driver.node.health import NodeHealth
from dra_driver.node.passthrough import passthrough_gpus
from dra_driver.slices.node import NodeOffer
from dra_driver.slices.offer.mig import MigSettings

log = structlog.get_logger()


class NodeGpus:
    """The GPUs of this node.

    `mig` decides what MIG devices are offered and whether modes are switched; `refusals` are the
    GPUs that cannot be switched now. `exclusion` says which GPUs are left out, `holders` which
    processes have one open. `session` is the way to NVML.
    """

    def __init__(self, context: NodeContext) -> None:
        """Build it; NVML is not called yet. Raises SetupError."""
        settings, roots, changes = context.settings, context.roots, context.changes
        ledger = context.ledger
        self.mig = NodeOffer(
            context.own_node,
            context.server_version,
            MigSettings.of(settings.mig, settings.mig_profiles, gate=settings.gate_of(DYNAMIC_MIG)),
            on_change=changes.offer,
        )
        self.exclusion = NodeExclusion(settings.exclude_gpus, ledger)
        self.session = DriverSession(
            driver_root=roots.driver,
            dev=roots.dev,
            proc_root=roots.proc,
            sys_root=roots.sys,
            made_here=lambda: ledger.made().keys(),
            turned_on=lambda: set(ledger.turned_on()),
            leave_out=self.exclusion.leave_out,
            calls=NvmlCalls(clock=context.clock, answer_seconds=settings.nvml_timeout),
            lets_go=self.mig.waits_for_others,
            with_passthrough=passthrough_gpus(roots).look
            if settings.offers_passthrough
            else lambda inventory: inventory,
        )
        context.metrics.watch_silence(self.session.silences)
        self.health = NodeHealth(context, self.session)
        self.watcher = self.health.watcher
        self.holders = Holders(
            procs=(roots.driver / "proc", roots.proc, Path("/proc")),
            devs=(Path("/dev"), Path(roots.driver_file_on_host("dev")), Path(roots.dev_on_host)),
            clock=context.clock,
        )
        self.refusals = Refusals(context.clock, changes.offer)
        changes.inventory.add(
            lambda found: context.metrics.gpus(ok=len(found.gpus), sick=len(found.sick)),
            self.refusals.look_at,
        )

    def let_go(self) -> None:
        """Close NVML when no scan runs any more."""
        if self.watcher.stop(STOP_SECONDS):
            self.session.close()


class NodeExclusion:
    """Leaves out the excluded GPUs of a node. `leave_out` is for one thread at a time."""

    def __init__(self, setting: str, ledger: Ledger) -> None:
        self._words = gpu_words(setting)
        self._ledger = ledger
        self._said: frozenset[str] = frozenset()

    def leave_out(self, inventory: Inventory) -> Inventory:
        """Return what a scan found, without the excluded GPUs that are not in use."""
        left = without_excluded(inventory, self._words, self._is_in_use)
        lines = tuple(map(_line, left.excluded))
        for line in lines:
            if line not in self._said:
                log.info("gpu left out", gpu=line)
        for line in left.unmatched:
            if line not in self._said:
                log.warning("exclusion without effect", reason=line)
        self._said = frozenset((*lines, *left.unmatched))
        return left

    def reasons(self, inventory: Inventory) -> Mapping[GpuUuid, str]:
        """Return why excluded GPUs that a claim still uses are not published."""
        reasons = {gpu.uuid: why_excluded(self._words, gpu) for gpu in inventory.gpus}
        return {uuid: why for uuid, why in reasons.items() if why is not None}

    def _is_in_use(self, gpu: Gpu) -> bool:
        """Tell whether claims use a GPU, or have left something on it.

        An unreadable record may be about any GPU.
        """
        try:
            return self._ledger.is_about(gpu.uuid)
        except StateError:
            return True  # keep it: otherwise it could not be released


def _line(gpu: ExcludedGpu) -> str:
    used = "; a claim that already has it keeps it until it ends" if gpu.is_in_use else ""
    return f"{gpu}: {gpu.why}{used}"
