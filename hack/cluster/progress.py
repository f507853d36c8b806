"""Progress lines for a waiting person.

On a terminal a line of progress replaces the one before; in a log file a new line is written at
most four times a minute, so that the log stays readable.
"""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TextIO

_TERMINAL_S = 0.2
_LOG_S = 15.0


def duration(seconds: float) -> str:
    """Seconds as a person says them: 8 s, 4 min 10 s, 1 h 3 min."""
    whole = max(0, round(seconds))
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


@dataclass(slots=True, kw_only=True)
class Progress:
    """Writes lines to one stream; safe to call from several threads."""

    stream: TextIO
    clock: Callable[[], float] = time.monotonic
    _shown_at: float = field(default=float("-inf"), init=False)
    _open_line: bool = field(default=False, init=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False)

    def say(self, text: str) -> None:
        """Write one line that stays."""
        with self._lock:
            self._write(text, end="\n")

    def update(self, text: str) -> None:
        """Write a line of progress, unless one was written a moment ago."""
        with self._lock:
            terminal = self.stream.isatty()
            now = self.clock()
            if now - self._shown_at < (_TERMINAL_S if terminal else _LOG_S):
                return
            self._shown_at = now
            self._write(text, end="" if terminal else "\n")

    def _write(self, text: str, *, end: str) -> None:
        if self._open_line:
            # Back to the start of the line and clear what the last update left there.
            self.stream.write("\r\x1b[K")
        self.stream.write(text + end)
        self.stream.flush()
        self._open_line = end == ""
