"""What this node offers of MIG at present: the settings, and the Node's labels as they change.

In: settings, and where they leave it to the labels these. Out: the `MigOffer` that holds, and a
call when another one does. The labels are followed only where they decide.
"""

import threading
from collections.abc import Callable

import structlog

from dra_driver.kube.own_node import Labels, OwnNode
from dra_driver.slices.mig_offer import MigOffer, MigSettings

log = structlog.get_logger()


class NodeOffer:
    """What is offered of MIG on one node. `on_change` is called when that has become another."""

    def __init__(
        self, labels: OwnNode, settings: MigSettings, *, on_change: Callable[[], None]
    ) -> None:
        """Take where labels come from, and listen if they decide; nothing is asked yet."""
        self._labels = labels
        self._settings = settings
        self._on_change = on_change
        self._lock = threading.Lock()
        self._offer = None if settings.heeds_labels else settings.offer({})
        if settings.heeds_labels:
            labels.listen(self._take)
        else:
            self._say(settings.offer({}))

    def current(self) -> MigOffer:
        """Return what holds now; the first time the API server may be asked for the Node.

        Raises:
            DriverError: it does not answer.
        """
        offer = self._offer
        if offer is not None:
            return offer
        return self._take(self._labels.current())

    def makes(self) -> bool:
        """Tell whether MIG devices are made for claims on this node; raises as `current`."""
        return self.current().why_none_made() is None

    def _take(self, labels: Labels) -> MigOffer:
        offer = self._settings.offer(labels)
        with self._lock:
            before, self._offer = self._offer, offer
        if offer != before:
            self._say(offer)
            if before is not None:
                self._on_change()
        return offer

    def _say(self, offer: MigOffer) -> None:
        profiles = sorted(offer.profiles) or "all"
        log.info("mig devices offered", source=offer.source, why=offer.why, profiles=profiles)
