"""Keeps this node's ResourceSlices in line with the inventory as long as the driver runs.

In: the latest inventory, and a watch on the slices of this driver and node. Out: publications
(slices/publish/publication.py), one at a time, on one thread. Rules: the kubelet deletes all slices
of its node when it starts, so deleted slices have to be created again within seconds. Edits by
others are reverted, but more and more slowly if they go on. Failures are retried for ever. Slices
stay when the driver stops; the kubelet deletes them if the driver stays away.
"""

import math
import threading
from collections.abc import Callable

import structlog
from msgspec import Struct

from dra_driver.devices.model import Inventory
from dra_driver.errors import DriverError, InvalidError, UnavailableError
from dra_driver.host.worker import LogOnce, Worker
from dra_driver.kube.resource import RESOURCE_SLICES
from dra_driver.kube.watch import Backoff, Changed, Listed, Watch
from dra_driver.slices.publish.publication import Publication

log = structlog.get_logger()


class PublisherTiming(Struct, frozen=True, kw_only=True):
    """When slices are published, in seconds. Only tests need other values than the defaults."""

    settle: float = 0.4
    """How long to wait after a change by others, so that the deletion of many is handled once."""

    settle_most: float = 30.0
    """The longest such wait, if others keep changing our slices: two drivers may be fighting."""

    peace: float = 60.0
    """After this long without a repair, the wait is short again."""

    retry: float = 0.5
    retry_most: float = 15.0

    invalid: float = 300.0
    """Pause after the API server called a slice invalid, as it would refuse the same again."""

    resync: float = 600.0
    """How often to check without an event; a check costs one list of a few objects."""


class SlicePublisher(Worker):
    """Publishes on its own thread; `update` and `start` may be called in any order.

    Errors of the DriverError tree are expected and retried.
    """

    def __init__(
        self,
        publication: Publication,
        *,
        clock: Callable[[], float],
        random: Callable[[], float],
        timing: PublisherTiming | None = None,
    ) -> None:
        """Take parts; `start` begins. `clock` is monotonic, in seconds; `random` is for jitter."""
        super().__init__("slices")
        self._publication = publication
        self._clock = clock
        self._random = random
        self._timing = timing or PublisherTiming()
        self._backoff = Backoff(
            first=self._timing.retry, most=self._timing.retry_most, random=random
        )
        self._watch = Watch(
            publication.api,
            RESOURCE_SLICES,
            selectors=publication.selectors,
            tell=self._on_change,
            clock=clock,
            random=random,
        )
        self._lock = threading.Lock()
        self._inventory: Inventory | None = None
        self._due = math.inf
        self._not_before = -math.inf
        self._is_ordered = False
        self._repairs = 0
        self._repaired_at = -math.inf
        self._once = LogOnce()

    def start(self) -> None:
        """Begin to publish and to watch. Call it only once."""
        super().start()
        self._watch.start()

    def update(self, inventory: Inventory) -> None:
        """Publish this inventory as soon as possible. Never blocks; the latest one wins."""
        with self._lock:
            self._inventory = inventory
            self._order()

    def publish_again(self) -> None:
        """Publish the latest inventory again, because what the node offers has changed."""
        with self._lock:
            if self._inventory is not None:
                self._order()

    def _order(self) -> None:
        """Publish now; the caller holds the lock."""
        # The pause after a refusal is over, because the new inventory may be accepted.
        self._not_before = -math.inf
        self._due = self._clock()
        self._is_ordered = True
        self.ring()

    def stop(self, timeout: float) -> bool:
        """End both threads within `timeout` seconds; return whether they ended. Slices stay."""
        end = self._clock() + timeout
        self._stop.set()
        self.ring()
        watch_ended = self._watch.stop(timeout)
        return super().stop(max(0.0, end - self._clock())) and watch_ended

    def _on_change(self, news: Listed | Changed) -> None:
        """Check soon, because a slice has changed, possibly by our own write."""
        del news  # the check reads the current slices from the API server
        with self._lock:
            if self._inventory is not None:
                soon = self._clock() + self._settle()
                self._due = min(self._due, max(soon, self._not_before))
        self.ring()

    def _settle(self) -> float:
        """Return how many seconds to wait after a change; recent repairs make it longer."""
        delay = self._timing.settle * 2.0 ** max(0, min(self._repairs, 16) - 3)
        return min(delay, self._timing.settle_most) * (1 - self._random() / 2)

    def _run(self) -> None:
        while not self._stop.is_set():
            with self._lock:
                inventory = self._inventory
                wait = self._due - self._clock()
                if wait <= 0:
                    self._due = self._clock() + self._timing.resync
                    is_ordered, self._is_ordered = self._is_ordered, False
            if wait > 0 or inventory is None:
                self._wait(min(wait, self._timing.resync))
            else:
                self._attempt(inventory, is_repair=not is_ordered)

    def _attempt(self, inventory: Inventory, *, is_repair: bool) -> None:
        try:
            writes = self._publication.publish(inventory)
        except DriverError as error:
            self._fail(error)
            return
        self._backoff.reset()
        if self._once.forget():
            log.info("publishing recovered")
        if writes and is_repair:
            with self._lock:
                before, self._repaired_at = self._repaired_at, self._clock()
                is_calm = self._repaired_at - before > self._timing.peace
                self._repairs = 1 if is_calm else self._repairs + 1

    def _fail(self, error: DriverError) -> None:
        """Log each cause once, and schedule a retry; a new inventory is published at once."""
        self._publication.observer.publish_failed()
        delay = self._backoff.delay()
        if isinstance(error, InvalidError):
            delay = max(delay, self._timing.invalid)
        elif isinstance(error, UnavailableError):
            delay = max(delay, error.retry_after or 0.0)
        if self._once.is_new(str(error)):
            log.warning("publishing failed", error=str(error), retry_seconds=round(delay, 1))
        with self._lock:
            if self._inventory is not None and self._due > self._clock():
                self._not_before = self._clock() + delay
                self._due = self._not_before
