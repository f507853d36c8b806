"""Hears what a tenant's process says, line by line, from a thread of its own.

In: a process with its pipes. Out: what was said last of each kind, the end of stderr, and when the
process ended. A full pipe would make the tenant wait, so all of it is read.
"""

import subprocess
import threading
import time
from collections import deque
from collections.abc import Iterable

from dra_driver.bench import lines
from dra_driver.errors import DeviceError

_KEPT_LINES = 20
_JOIN_SECONDS = 5.0


class Listener:
    """One process of a case."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        """Begin to listen, and to wait for its end."""
        self.process = process
        self.ready: lines.Ready | None = None
        self.done: lines.Done | None = None
        self.failed: lines.Failed | None = None
        self.ready_after: float | None = None
        self._started = time.monotonic()
        self._ended: float | None = None
        self._complaints: deque[str] = deque(maxlen=_KEPT_LINES)
        self._threads = [threading.Thread(target=self._await_end, name="tenant-end", daemon=True)]
        for pipe, hear in ((process.stdout, self._hear), (process.stderr, self._keep)):
            if pipe is not None:
                thread = threading.Thread(
                    target=hear, args=(pipe,), name="tenant-lines", daemon=True
                )
                self._threads.append(thread)
        for thread in self._threads:
            thread.start()

    @property
    def has_ended(self) -> bool:
        """Whether the process is over."""
        return self._ended is not None

    @property
    def is_settled(self) -> bool:
        """Whether it is ready, or never will be."""
        return self.ready is not None or self.failed is not None or self.has_ended

    @property
    def is_over(self) -> bool:
        """Whether it has said its last word."""
        return self.done is not None or self.failed is not None or self.has_ended

    @property
    def exit_status(self) -> int | None:
        """Its exit status; negative for a signal."""
        return self.process.returncode if self.has_ended else None

    @property
    def lived_seconds(self) -> float:
        """How long it has run, or ran."""
        return (self._ended or time.monotonic()) - self._started

    @property
    def last_words(self) -> str:
        """The last line that it wrote to stderr."""
        return self._complaints[-1] if self._complaints else ""

    def close(self) -> None:
        """Listen no more; the process has ended."""
        for thread in self._threads:
            thread.join(_JOIN_SECONDS)
        for pipe in (self.process.stdout, self.process.stderr):
            if pipe is not None:
                pipe.close()

    def _hear(self, pipe: Iterable[str]) -> None:
        for text in pipe:
            try:
                said = lines.heard(text.rstrip("\n"))
            except DeviceError as error:
                said = lines.Failed(reason=str(error))
            match said:
                case lines.Ready():
                    self.ready_after = time.monotonic() - self._started
                    self.ready = said
                case lines.Done():
                    self.done = said
                case lines.Failed():
                    self.failed = said
                case _:
                    pass

    def _keep(self, pipe: Iterable[str]) -> None:
        self._complaints.extend(stripped for text in pipe if (stripped := text.strip()))

    def _await_end(self) -> None:
        self.process.wait()
        self._ended = time.monotonic()
