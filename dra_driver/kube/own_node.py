"""This driver's Node, followed with one watch for everything that depends on it.

In: a watch on the Node. Out: a call to each listener for every change of its labels, or of the
resources of a device plugin, and the same for callers that cannot wait for the watch. The watch is
opened only if there are listeners.
"""

import threading
from collections.abc import Callable, Mapping

from msgspec import Struct

from dra_driver.kube.client import KubeClient
from dra_driver.kube.fields import texts_by_name
from dra_driver.kube.resource import NODES
from dra_driver.kube.watch import Changed, Listed, Watch

_REQUEST_SECONDS = 10.0


class NodeFacts(Struct, frozen=True, kw_only=True):
    """What is read of the Node.

    `allocatable` is what it offers besides DRA's devices, by resource name.
    """

    labels: Mapping[str, str] = {}
    allocatable: Mapping[str, str] = {}

    @classmethod
    def of(cls, node: Mapping[str, object]) -> "NodeFacts":
        """Return the facts of a Node object."""
        return cls(
            labels=texts_by_name(node, "metadata", "labels"),
            allocatable=texts_by_name(node, "status", "allocatable"),
        )


class OwnNode:
    """One Node, for several listeners, which are called on the watch's thread: none may block."""

    def __init__(
        self,
        api: KubeClient,
        node_name: str,
        *,
        clock: Callable[[], float],
        random: Callable[[], float],
    ) -> None:
        """Take where the Node is; nothing is asked yet. `clock` is monotonic, in seconds."""
        self._api = api
        self._node_name = node_name
        self._listeners: list[Callable[[NodeFacts], object]] = []
        self._told: NodeFacts | None = None
        self._lock = threading.Lock()
        self._known: NodeFacts | None = None
        self._watch = Watch(
            api,
            NODES,
            selectors={"fieldSelector": f"metadata.name={node_name}"},
            tell=self._take_news,
            clock=clock,
            random=random,
        )

    def listen(self, listener: Callable[[NodeFacts], object]) -> None:
        """Have `listener` called with the facts, now and at each change; before `start`."""
        self._listeners.append(listener)

    def start(self) -> None:
        """Follow the Node, if there are listeners."""
        if self._listeners:
            self._watch.start()

    def stop(self, timeout: float) -> bool:
        """Stop following it; return whether that took at most `timeout` seconds."""
        return self._watch.stop(timeout)

    def current(self) -> NodeFacts:
        """Return the facts; before the watch has reported any, ask the API server."""
        known = self._known
        if known is not None:
            return known
        asked = NodeFacts.of(self._api.get_node(self._node_name, timeout=_REQUEST_SECONDS))
        with self._lock:
            # What the watch has reported meanwhile is newer.
            self._known = self._known or asked
            return self._known

    def _take_news(self, news: Listed | Changed) -> None:
        match news:
            case Listed(items=items):
                nodes = items
            case Changed(type=kind, object=node):
                nodes = (node,) if kind != "DELETED" else ()
        for facts in map(NodeFacts.of, nodes):
            with self._lock:
                self._known = facts
            if facts != self._told:
                self._told = facts
                for listener in self._listeners:
                    listener(facts)
