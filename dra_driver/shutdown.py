"""What ends a process that runs until it is told to stop: a signal, or the death of a thread.

In: SIGTERM, SIGINT, and exceptions that no thread has caught. Out: the reason, for the main thread,
which waits for it and then stops everything in order. A process with a part missing must not look
alive: it ends with status 1 and is restarted whole.
"""

import queue
import signal
import threading
from dataclasses import dataclass
from types import FrameType

import structlog

log = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class ShutdownReason:
    """Why the process ends: in words, and as its exit status."""

    text: str
    exit_status: int


THREAD_DIED = ShutdownReason(text="a thread died", exit_status=1)


class Shutdown:
    """Waits for the reason to end. Watch before the threads of the process are started."""

    def __init__(self) -> None:
        """Watch for nothing yet."""
        # A SimpleQueue may be put to from a signal handler; an Event's lock may not be taken there.
        self._reasons: queue.SimpleQueue[ShutdownReason] = queue.SimpleQueue()

    def watch_signals(self) -> None:
        """End at SIGTERM and SIGINT. For the main thread only, as Python wants it."""
        signal.signal(signal.SIGTERM, self._on_signal)
        signal.signal(signal.SIGINT, self._on_signal)

    def watch_threads(self) -> None:
        """End when a thread dies of an exception."""
        threading.excepthook = self._on_dead_thread

    def wait(self, timeout: float | None = None) -> ShutdownReason:
        """Return the first reason to end, as soon as there is one.

        Raises:
            queue.Empty: there is none after `timeout` seconds.
        """
        return self._reasons.get(timeout=timeout)

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        self._reasons.put(ShutdownReason(text=signal.Signals(number).name, exit_status=0))

    def _on_dead_thread(self, args: threading.ExceptHookArgs) -> None:
        name = args.thread.name if args.thread is not None else "unknown"
        log.error("thread died", thread=name, exc_info=args.exc_value or args.exc_type())
        self._reasons.put(THREAD_DIED)
