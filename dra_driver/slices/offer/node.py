"""What this node offers of MIG at present: the settings, the Node's labels, Kubernetes' version.

In: settings, and where they leave it to the node its labels and the API server's version. Out: the
`MigOffer` that holds, and a call when another label decides. The labels are followed only where
they decide; the version is asked for with each publication, so that a cluster that is upgraded gets
another offer without a restart.
"""

import threading
from collections.abc import Callable

import structlog

from dra_driver.devices.mig.partitions import awaits_mode, awaits_reset
from dra_driver.devices.model import Gpu
from dra_driver.kube.own_node import Labels, OwnNode
from dra_driver.slices.offer.mig import MIG_MANAGER_LABEL, MigOffer, MigSettings
from dra_driver.slices.offer.scheduler_cost import CostWarning, Version

log = structlog.get_logger()


class NodeOffer:
    """What is offered of MIG on one node. `on_change` is called when that may be another."""

    def __init__(
        self,
        labels: OwnNode,
        version: Version,
        settings: MigSettings,
        *,
        on_change: Callable[[], None],
    ) -> None:
        """Take where labels and version come from, and listen if they decide; nothing is asked."""
        self._labels = labels
        self._version = version
        self._settings = settings
        self._on_change = on_change
        self._lock = threading.Lock()
        self._is_asked = False
        self._decided_by: tuple[str | None] | None = None
        self._offer: MigOffer | None = None
        self._warning = CostWarning(
            version,
            "mig on demand slows the scheduler",
            advice="set --mig auto or existing, or upgrade to Kubernetes 1.37",
        )
        if settings.heeds_node:
            labels.listen(self._take)

    def current(self) -> MigOffer:
        """Return what holds now; the API server may be asked for the Node and its version.

        Raises:
            DriverError: it does not answer, and has not before.
        """
        if self._settings.heeds_node:
            offer = self._of_node()
        else:
            offer = self._settings.offer({}, None)
            if offer.switches_modes:
                self._warning.give()
        with self._lock:
            before, self._offer = self._offer, offer
        if offer != before:
            _say(offer)
        return offer

    @property
    def switches_modes(self) -> bool:
        """Whether MIG modes may be switched for claims on this node."""
        return self._settings.switches_modes

    def waits_for_others(self, gpu: Gpu) -> bool:
        """Tell whether a GPU waits for a MIG mode that others have set, with nobody using it."""
        return awaits_reset(gpu) if self.switches_modes else awaits_mode(gpu)

    def makes(self) -> bool:
        """Tell whether MIG devices that claims have are made here; raises as `current`."""
        return self._settings.makes(self._labels.current() if self._settings.heeds_node else {})

    def _of_node(self) -> MigOffer:
        self._is_asked = True  # from here on another label has to be told of
        labels = self._labels.current()
        with self._lock:
            self._decided_by = self._decided_by or (labels.get(MIG_MANAGER_LABEL),)
        is_labelled = MIG_MANAGER_LABEL in labels
        return self._settings.offer(labels, None if is_labelled else self._version.current())

    def _take(self, labels: Labels) -> None:
        """Have the offer looked at again, because the label is another one."""
        now = (labels.get(MIG_MANAGER_LABEL),)
        with self._lock:
            is_same = self._decided_by == now
            self._decided_by = now
        if self._is_asked and not is_same:
            self._on_change()


def _say(offer: MigOffer) -> None:
    profiles = sorted(offer.profiles) or "all"
    log.info("mig devices offered", source=offer.source, why=offer.why, profiles=profiles)
