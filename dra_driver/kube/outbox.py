"""Sends messages to the API server in the background of the kubelet's calls, on one thread.

In: messages, and work on the node that decides what to send, each under a key. Out: one request at
a time. A message that is put again while it waits is sent once, in its latest form.

Calls come first: unless urgent, messages wait until no call has run for a moment, but not for ever.
A thread that wakes up takes the interpreter from the call that woke it, so only the first of many
calls in a row wakes this one.

A message that fails delays only itself: an admission policy may refuse one, a webhook may fail for
one namespace, and a permission may be for some namespaces only. All messages wait only if the API
server does not accept the driver's credentials, or fails for two messages in a row. Too many
messages are not kept: the oldest are dropped. When the driver stops, what is due is tried once.
"""

import random
import threading
import time
from collections.abc import Callable, Mapping
from http import HTTPStatus

import structlog
from msgspec import Struct

from dra_driver.errors import AccessError, ApiError, DriverError, StaleError, UnavailableError
from dra_driver.host.worker import LogOnce, Worker
from dra_driver.kube.watch import Backoff

log = structlog.get_logger()

GIVES_WAY = 5.0
"""Seconds for which something that is due gives way to calls."""

FIRST_RETRY = 1.0
_LONGEST_RETRY, _LONGEST_PAUSE = 60.0, 10.0
"""Seconds after a failure of the API server, for one message, and for all."""

_STALE_RETRY = 1.0
"""Seconds after somebody else changed the object at the same time."""

MOST_WAITING = 1000
"""Messages and work that wait at the same time."""

_IDLE_SECONDS = 3600.0

Key = tuple[str, ...]
"""What something is about; a later one with the same key takes its place."""


class Message(Struct, frozen=True, kw_only=True):
    """What is sent, for logs and after a refusal.

    Attributes:
        kind: such as `event` or `claim status`.
        about: the object that it is about, as a fact of log lines, such as `claim`.
        refused_seconds: when to send it again after a refusal, as rights may be granted and
            policies changed later; None to drop it.
    """

    kind: str
    about: Mapping[str, str]
    refused_seconds: float | None = None


class _Entry(Struct, kw_only=True, eq=False):
    """Something that waits. Without a message it is work on the node, which sends nothing.

    `held_until` is when to repeat it after a failure, and `logged` the failure logged last.
    """

    key: Key
    work: Callable[[], object]
    due: float
    message: Message | None
    is_urgent: bool
    backoff: Backoff | None = None
    held_until: float = 0.0
    logged: str = ""

    @property
    def ready(self) -> float:
        return max(self.due, self.held_until)


class Outbox(Worker):
    """The thread, and what waits for it. `clock` is monotonic, in seconds.

    `busy` returns for how many seconds at least calls should be left alone; it is set before the
    thread starts.
    """

    def __init__(
        self,
        *,
        clock: Callable[[], float] = time.monotonic,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        super().__init__("outbox")
        self.busy: Callable[[], float] = lambda: 0.0
        self._clock = clock
        self._jitter = jitter
        self._lock = threading.Lock()
        self._waiting: dict[Key, _Entry] = {}
        self._dropped = 0
        self._backoff = self._new_backoff(_LONGEST_PAUSE)
        self._paused_until = 0.0
        self._failed: Key | None = None
        """The message for which the API server failed, if it has not answered since."""
        self._once = LogOnce()

    def put(
        self,
        key: Key,
        work: Callable[[], object],
        message: Message | None = None,
        *,
        after: float = 0.0,
        is_urgent: bool = False,
    ) -> None:
        """Have something done in `after` seconds at the earliest. Never blocks.

        `work` sends the message, and may raise DriverError: after an UnavailableError or StaleError
        it is repeated. Without a message it is work on the node, which no failure of the API server
        holds up.
        """
        due = self._clock() + after
        with self._lock:
            entry = self._waiting.get(key)
            if entry is None:
                self._make_room()
                self._waiting[key] = _Entry(
                    key=key, work=work, due=due, message=message, is_urgent=is_urgent
                )
            else:
                entry.work, entry.message = work, message
                entry.due = min(entry.due, due)
                entry.is_urgent = entry.is_urgent or is_urgent
        if not self._bell.is_set():
            self.ring()

    def deliver(self) -> float:
        """Do what is due; return in how many seconds more will be."""
        with self._lock:
            dropped, self._dropped = self._dropped, 0
        if dropped:
            log.warning("messages dropped", count=dropped, reason="too many wait")
        while (entry := self._next()) is not None:
            if self._gives_way(entry):
                continue  # something urgent may have come
            with self._lock:
                taken = self._waiting.pop(entry.key, None)  # None: dropped meanwhile
            if taken is not None:
                self._do(taken)
        with self._lock:
            times = [self._time_of(entry) for entry in self._waiting.values()]
        return max(0.0, min(times, default=self._clock() + _IDLE_SECONDS) - self._clock())

    def _run(self) -> None:
        while not self._stop.is_set():
            self._wait(self.deliver())
        self.deliver()

    def _make_room(self) -> None:
        if len(self._waiting) >= MOST_WAITING:
            oldest = (key for key, entry in self._waiting.items() if entry.message is not None)
            if self._waiting.pop(next(oldest, ()), None) is not None:
                self._dropped += 1

    def _next(self) -> _Entry | None:
        """Return what is to be done now: what is urgent, work on the node, what waited longest."""
        now = self._clock()
        with self._lock:
            due = (entry for entry in self._waiting.values() if self._time_of(entry) <= now)
            return min(due, key=_order, default=None)

    def _time_of(self, entry: _Entry) -> float:
        return entry.ready if entry.message is None else max(entry.ready, self._paused_until)

    def _gives_way(self, entry: _Entry) -> bool:
        """Wait for a moment if calls should be left alone; return whether it did."""
        left = entry.ready + GIVES_WAY - self._clock()
        pause = 0.0 if entry.is_urgent else min(left, self.busy())
        return pause > 0 and not self._stop.wait(pause)

    def _do(self, entry: _Entry) -> None:
        try:
            entry.work()
        except DriverError as error:
            pause = self._seconds_until_retry(entry, error)
        else:
            pause = None
            if entry.message is None:
                self._once.forget(" ".join(entry.key))
            else:
                self._answered()
                self._once.forget()
        if pause is None:
            return
        entry.held_until = self._clock() + pause
        with self._lock:
            newer = self._waiting.setdefault(entry.key, entry)
            newer.held_until, newer.backoff = entry.held_until, entry.backoff
            newer.logged = entry.logged

    def _seconds_until_retry(self, entry: _Entry, error: DriverError) -> float | None:
        """Log a failure; return after how many seconds to try again, None for never."""
        message = entry.message
        if message is None:
            of = " ".join(entry.key)
            if self._once.is_new(str(error), of):
                log.warning("background work failed", work=of, reason=str(error))
            return None
        if isinstance(error, UnavailableError):
            event, least = f"{message.kind} not written yet", error.retry_after or 0.0
            if self._failed in {None, entry.key}:
                self._log(entry, message, event, error)
            else:
                self._pause(event, error, least)
            self._failed = entry.key
            entry.backoff = entry.backoff or self._new_backoff(_LONGEST_RETRY)
            return max(entry.backoff.delay(), least)
        if isinstance(error, ApiError) and error.status == HTTPStatus.UNAUTHORIZED:
            self._pause(f"{message.kind} not written", error)
            return 0.0
        self._answered()
        if isinstance(error, StaleError):
            log.debug("object changed meanwhile", **message.about, reason=str(error))
            return _STALE_RETRY
        event = f"{message.kind} refused"
        if isinstance(error, AccessError) and entry.logged != event:
            self._log_once(f"{message.kind} not written", error)  # many may need this right
            entry.logged = event
        self._log(entry, message, event, error)
        return message.refused_seconds

    def _answered(self) -> None:
        self._failed = None
        self._backoff.reset()

    def _pause(self, event: str, error: DriverError, least: float = 0.0) -> None:
        """Leave the API server alone for a while, for at least `least` seconds."""
        self._paused_until = self._clock() + max(self._backoff.delay(), least)
        self._log_once(event, error)

    def _log(self, entry: _Entry, message: Message, event: str, error: DriverError) -> None:
        """Log once why a message is not sent, until it is."""
        if entry.logged != event:
            log.warning(event, **message.about, reason=str(error))
        entry.logged = event

    def _log_once(self, event: str, error: DriverError) -> None:
        """Log once what holds up all messages, until one is sent."""
        if self._once.is_new(event):
            log.warning(event, reason=str(error))

    def _new_backoff(self, most: float) -> Backoff:
        return Backoff(first=FIRST_RETRY, most=most, random=self._jitter)


def _order(entry: _Entry) -> tuple[bool, bool, float]:
    return not entry.is_urgent, entry.message is not None, entry.ready
