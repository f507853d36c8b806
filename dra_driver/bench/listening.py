"""Reads a tenant's output, line by line, on a separate thread.

A full pipe would make the tenant wait, so everything is read, but little is kept. A process that
has ended is not reaped before `close`, so that no other process gets its id while signals are sent
to it.
"""

import os
import signal
import subprocess
import threading
import time
from collections import deque
from contextlib import suppress
from typing import IO

from dra_driver.bench import lines
from dra_driver.bench.descendants import signal_descendants
from dra_driver.errors import DeviceError

_KEPT_BYTES = 4096
_CHUNK = 1 << 16
_LONGEST_LINE = 1 << 20
_JOIN_SECONDS = 5.0
_KILLED = (os.CLD_KILLED, os.CLD_DUMPED)


class Listener:
    """One process of a case, the leader of its session."""

    def __init__(self, process: subprocess.Popen[bytes], *, output_bytes: int = 0) -> None:
        """Begin to read, and to wait for its end; keep the last lines of its output, or nothing."""
        self.process = process
        self.ready: lines.Ready | None = None
        self.done: lines.Done | None = None
        self.ended: lines.Ended | None = None
        self._output: deque[bytes] = deque()
        self._room = output_bytes
        self.failed: lines.Failed | None = None
        self.ready_after: float | None = None
        self._started = time.monotonic()
        self._ended: float | None = None
        self._status: int | None = None
        self._tail = b""
        self._readers = [
            (threading.Thread(target=read, args=(pipe,), name="tenant-lines", daemon=True), pipe)
            for pipe, read in ((process.stdout, self._hear), (process.stderr, self._keep))
            if pipe is not None
        ]
        for thread, _ in self._readers:
            thread.start()
        self._end = threading.Thread(target=self._await_end, name="tenant-end", daemon=True)
        self._end.start()

    @property
    def has_ended(self) -> bool:
        """Whether the process has ended, and its output was read."""
        return self._status is not None

    @property
    def is_settled(self) -> bool:
        """Whether it is ready, or never will be."""
        return self.ready is not None or self.failed is not None or self.has_ended

    @property
    def is_over(self) -> bool:
        """Whether it has reported a result or a failure, or has ended."""
        return self.done is not None or self.failed is not None or self.has_ended

    @property
    def exit_status(self) -> int | None:
        """Its exit status; negative for a signal. None while it runs."""
        return self._status

    @property
    def lived_seconds(self) -> float:
        """How long it has run, or ran."""
        return (self._ended or time.monotonic()) - self._started

    @property
    def last_words(self) -> str:
        """The last line that it wrote to stderr."""
        text = self._tail.decode(errors="replace")
        said = [stripped for line in text.splitlines() if (stripped := line.strip())]
        return said[-1] if said else ""

    @property
    def output(self) -> str:
        """The last lines that it wrote to stdout, as far as they are kept."""
        return b"".join(self._output).decode(errors="replace")

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to it and all processes below it, in any session."""
        signal_descendants(self.process.pid, number)
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, number)

    def close(self) -> None:
        """Stop reading. The process has ended, or cannot be ended."""
        if self.has_ended:
            self.process.wait()
        for thread, pipe in self._readers:
            thread.join(_JOIN_SECONDS)
            if not thread.is_alive():  # else a process outside the session holds it open
                pipe.close()

    def _hear(self, pipe: IO[bytes]) -> None:
        while text := pipe.readline(_LONGEST_LINE):
            self._keep_output(text)
            try:
                said = lines.heard(text.decode(errors="replace").rstrip("\n"))
            except DeviceError as error:
                said = lines.Failed(reason=str(error))
            match said:
                case lines.Ready():
                    self.ready_after = time.monotonic() - self._started
                    self.ready = said
                case lines.Done():
                    self.done = said
                case lines.Ended():
                    self.ended = said
                case lines.Failed():
                    self.failed = said
                case _:
                    pass

    def _keep_output(self, text: bytes) -> None:
        self._output.append(text)
        self._room -= len(text)
        while self._room < 0:
            self._room += len(self._output.popleft())

    def _keep(self, pipe: IO[bytes]) -> None:
        while chunk := os.read(pipe.fileno(), _CHUNK):
            self._tail = (self._tail + chunk)[-_KEPT_BYTES:]

    def _await_end(self) -> None:
        end = os.waitid(os.P_PID, self.process.pid, os.WEXITED | os.WNOWAIT)
        self._ended = time.monotonic()
        for thread, _ in self._readers:
            thread.join(_JOIN_SECONDS)
        if end is not None:
            self._status = -end.si_status if end.si_code in _KILLED else end.si_status
