"""Decides by the Node and the version of Kubernetes what this node offers at present.

In: settings, the Node's labels and `status.allocatable`, and the API server's version. Out: the
current `MigOffer`, the reason why GPUs are withheld while a device plugin gives them out, and a
call when either changes. The version is read again for each publication, so the offer follows an
upgrade of the cluster without a restart.
"""

import re
import threading
from collections.abc import Callable, Mapping

import structlog

from dra_driver.devices.mig.partitions import awaits_mode, awaits_reset
from dra_driver.devices.model import Gpu
from dra_driver.errors import DriverError
from dra_driver.host.worker import LogOnce
from dra_driver.kube.own_node import NodeFacts, OwnNode
from dra_driver.kube.server_version import ServerVersion
from dra_driver.slices.offer.mig import (
    COST_BEFORE_1_37,
    MIG_MANAGER_LABEL,
    MigOffer,
    MigSettings,
    has_cheap_counters,
    named,
)

log = structlog.get_logger()


def warn_of_cost(version: ServerVersion, once: LogOnce, event: str, *, advice: str) -> None:
    """Warn once that a setting slows the scheduler down a lot, as it does before Kubernetes 1.37.

    Nothing is logged if the version is not known.
    """
    try:
        kubernetes = version.current()
    except DriverError:
        return
    if kubernetes and not has_cheap_counters(kubernetes) and once.is_new(event):
        log.warning(event, kubernetes=named(kubernetes), reason=COST_BEFORE_1_37, advice=advice)


class NodeOffer:
    """The MIG offer of one node. `on_change` is called when it may have changed."""

    def __init__(
        self,
        node: OwnNode,
        version: ServerVersion,
        settings: MigSettings,
        *,
        on_change: Callable[[], None],
    ) -> None:
        """Take the sources of labels and version. If labels decide, listen; request nothing yet."""
        self._node = node
        self._version = version
        self._settings = settings
        self._on_change = on_change
        self._lock = threading.Lock()
        self._is_asked = False
        self._decided_by: tuple[str | None] | None = None
        self._offer: MigOffer | None = None
        self._once = LogOnce()
        if settings.heeds_node:
            node.listen(self._take)

    def current(self) -> MigOffer:
        """Return the current offer. Raises DriverError if the API server has never answered."""
        if self._settings.heeds_node:
            offer = self._of_node()
        else:
            offer = self._settings.offer({}, None)
            if offer.switches_modes:
                warn_of_cost(
                    self._version,
                    self._once,
                    "mig on demand slows the scheduler",
                    advice="set --mig auto or existing, or upgrade to Kubernetes 1.37",
                )
        with self._lock:
            before, self._offer = self._offer, offer
        if offer != before:
            profiles = sorted(offer.profiles) or "all"
            log.info("mig devices offered", source=offer.source, why=offer.why, profiles=profiles)
        return offer

    @property
    def switches_modes(self) -> bool:
        """Whether MIG modes may be switched for claims on this node."""
        return self._settings.switches_modes

    def waits_for_others(self, gpu: Gpu) -> bool:
        """Tell whether a GPU waits for a MIG mode of others, which needs NVML to be closed."""
        return awaits_reset(gpu) if self.switches_modes else awaits_mode(gpu)

    def _of_node(self) -> MigOffer:
        self._is_asked = True  # from now on, a change of the label has to be reported
        labels = self._node.current().labels
        with self._lock:
            self._decided_by = self._decided_by or (labels.get(MIG_MANAGER_LABEL),)
        is_labelled = MIG_MANAGER_LABEL in labels
        return self._settings.offer(labels, None if is_labelled else self._version.current())

    def _take(self, node: NodeFacts) -> None:
        """Call `on_change` if the label has changed."""
        now = (node.labels.get(MIG_MANAGER_LABEL),)
        with self._lock:
            is_same = self._decided_by == now
            self._decided_by = now
        if self._is_asked and not is_same:
            self._on_change()


_OF_GPUS = re.compile(r"nvidia\.com/(gpu|mig-).*")
"""The names of NVIDIA's device plugin for GPUs and their parts."""


class DevicePlugin:
    """Watches for a device plugin beside this driver; calls `on_change` when it comes or goes.

    Kubernetes counts a device plugin's devices and those in ResourceSlices separately. It takes an
    extended resource from the plugin as long as its count on the node is above zero (KEP-5004). If
    this driver offered the same GPUs at that time, they would be allocated twice.
    """

    def __init__(self, node: OwnNode, *, heed: bool, on_change: Callable[[], None]) -> None:
        """Take the Node to watch. If `heed`, listen for changes; nothing is requested yet."""
        self._node = node
        self._on_change = on_change
        self._lock = threading.Lock()
        self._reason: str | None = None
        self._is_known = not heed
        if heed:
            node.listen(self._take)

    def why_withheld(self) -> str | None:
        """Return why GPUs are withheld, or None. Raises DriverError if it cannot read the Node."""
        if not self._is_known:
            self._take(self._node.current())
        return self._reason

    def _take(self, node: NodeFacts) -> None:
        counted = counted_by_plugin(node.allocatable)
        reason = None
        if counted:
            what = ", ".join(f"{name}: {count}" for name, count in counted.items())
            reason = (
                f"a device plugin gives out this node's GPUs ({what}), and they would be given out"
                " twice: remove its pod from this node, or start this driver with"
                " --beside-device-plugin publish if the two have different GPUs"
            )
        with self._lock:
            is_new, was_known = reason != self._reason, self._is_known
            self._reason, self._is_known = reason, True
        if is_new and was_known:
            log.info("device plugin noticed" if reason else "device plugin gone")
            self._on_change()


def counted_by_plugin(allocatable: Mapping[str, str]) -> dict[str, str]:
    """Return how many GPUs or parts of them a device plugin gives out, by resource name."""
    return {
        name: count
        for name, count in sorted(allocatable.items())
        if _OF_GPUS.fullmatch(name) and count != "0"  # as the API server writes any zero
    }
