"""This driver's Node, followed with one watch for everything that depends on it.

In: a watch on the Node. Out: a call to each listener for every change of what it listens to, labels
or the resources of a device plugin, and the same for callers that cannot wait for the watch. The
watch is opened only if there are listeners.
"""

import threading
from collections.abc import Callable, Mapping

from msgspec import Struct

from dra_driver.kube.client import KubeClient
from dra_driver.kube.fields import texts_by_name
from dra_driver.kube.resource import NODES
from dra_driver.kube.watch import Changed, Listed, Watch

_REQUEST_SECONDS = 10.0

Labels = Mapping[str, str]

Allocatable = Mapping[str, str]
"""What the Node offers besides DRA's devices: `status.allocatable`, by resource name."""


class _Facts(Struct, frozen=True, kw_only=True):
    labels: Labels
    allocatable: Allocatable


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
        self._of_labels: list[Callable[[Labels], object]] = []
        self._of_allocatable: list[Callable[[Allocatable], object]] = []
        self._told: _Facts | None = None
        self._lock = threading.Lock()
        self._known: _Facts | None = None
        self._watch = Watch(
            api,
            NODES,
            selectors={"fieldSelector": f"metadata.name={node_name}"},
            tell=self._take_news,
            clock=clock,
            random=random,
        )

    def listen(self, listener: Callable[[Labels], object]) -> None:
        """Have `listener` called with the labels, now and at each change; before `start`."""
        self._of_labels.append(listener)

    def listen_allocatable(self, listener: Callable[[Allocatable], object]) -> None:
        """Have `listener` called with what is allocatable, as `listen` does with the labels."""
        self._of_allocatable.append(listener)

    def start(self) -> None:
        """Follow the Node, if there are listeners."""
        if self._of_labels or self._of_allocatable:
            self._watch.start()

    def stop(self, timeout: float) -> bool:
        """Stop following it; return whether that took at most `timeout` seconds."""
        return self._watch.stop(timeout)

    def current(self) -> Labels:
        """Return the labels; before the watch has reported any, ask the API server."""
        return self._facts().labels

    def allocatable(self) -> Allocatable:
        """Return what is allocatable, in the same way."""
        return self._facts().allocatable

    def _facts(self) -> _Facts:
        known = self._known
        if known is not None:
            return known
        asked = _facts_of(self._api.get_node(self._node_name, timeout=_REQUEST_SECONDS))
        with self._lock:
            # What the watch has reported meanwhile is newer.
            if self._known is None:
                self._known = asked
            return self._known

    def _take_news(self, news: Listed | Changed) -> None:
        match news:
            case Listed(items=items):
                for node in items:
                    self._take(_facts_of(node))
            case Changed(type=kind, object=node):
                if kind != "DELETED":
                    self._take(_facts_of(node))

    def _take(self, facts: _Facts) -> None:
        with self._lock:
            self._known = facts
        before, self._told = self._told, facts
        if before is None or facts.labels != before.labels:
            for listener in self._of_labels:
                listener(facts.labels)
        if before is None or facts.allocatable != before.allocatable:
            for listener in self._of_allocatable:
                listener(facts.allocatable)


def _facts_of(node: Mapping[str, object]) -> _Facts:
    return _Facts(
        labels=texts_by_name(node, "metadata", "labels"),
        allocatable=texts_by_name(node, "status", "allocatable"),
    )
