"""What this node offers of MIG at present: the settings, and the Node's labels as they change.

In: settings, and where they leave it to the labels a watch on the Node. Out: the `MigOffer` that
holds, and a call when another one does. The watch is opened only where labels decide.
"""

import threading
from collections.abc import Callable, Mapping
from typing import Protocol

import structlog

from dra_driver.kube.resource import NODES
from dra_driver.kube.watch import Changed, Listed, Watch, WatchApi
from dra_driver.slices.mig_offer import MigOffer, MigSettings

log = structlog.get_logger()

_REQUEST_SECONDS = 10.0


class NodeApi(WatchApi, Protocol):
    """What is needed of the API server's client (kube/client.py)."""

    def get_node(self, name: str, *, timeout: float) -> dict[str, object]:
        """Return a Node."""
        ...


class NodeOffer:
    """What is offered of MIG on one node. `on_change` is called when that has become another."""

    def __init__(
        self,
        api: NodeApi,
        node_name: str,
        settings: MigSettings,
        *,
        on_change: Callable[[], None],
        clock: Callable[[], float],
        random: Callable[[], float],
    ) -> None:
        """Take where the Node is; nothing is asked yet. `clock` is monotonic, in seconds."""
        self._api = api
        self._node_name = node_name
        self._settings = settings
        self._on_change = on_change
        self._lock = threading.Lock()
        self._offer = None if settings.heeds_labels else settings.offer({})
        self._watch = None
        if settings.heeds_labels:
            self._watch = Watch(
                api,
                NODES,
                selectors={"fieldSelector": f"metadata.name={node_name}"},
                tell=self._told,
                clock=clock,
                random=random,
            )
        else:
            self._say(settings.offer({}))

    def start(self) -> None:
        """Follow the Node's labels, if they decide."""
        if self._watch is not None:
            self._watch.start()

    def stop(self, timeout: float) -> bool:
        """Follow them no more; return whether that ended within `timeout` seconds."""
        return self._watch is None or self._watch.stop(timeout)

    def current(self) -> MigOffer:
        """Return what holds now; the first time the API server may be asked for the Node.

        Raises:
            DriverError: it does not answer.
        """
        offer = self._offer
        if offer is not None:
            return offer
        node = self._api.get_node(self._node_name, timeout=_REQUEST_SECONDS)
        return self._take(node)

    def _told(self, news: Listed | Changed) -> None:
        match news:
            case Listed(items=items):
                for node in items:
                    self._take(node)
            case Changed(type=kind, object=node):
                if kind != "DELETED":
                    self._take(node)

    def _take(self, node: Mapping[str, object]) -> MigOffer:
        offer = self._settings.offer(_labels(node))
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


def _labels(node: Mapping[str, object]) -> dict[str, str]:
    meta = node.get("metadata")
    labels = meta.get("labels") if isinstance(meta, Mapping) else None
    found = labels if isinstance(labels, Mapping) else {}
    return {str(name): str(value) for name, value in found.items()}
