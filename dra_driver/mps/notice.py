"""Wakes a thread when files appear in, change in or leave a folder.

In: a folder. Out: a wait that ends with the next change, by inotify(7), because a claim's pod waits
meanwhile. Events only wake: whoever waits looks at the folder itself, so none can be missed or
misread. Where inotify cannot be had (its instances are limited per user), it is a short poll.
"""

import ctypes
import os
import select
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

# sys/inotify.h
_IN_CLOSE_WRITE, _IN_MOVED_FROM, _IN_MOVED_TO, _IN_DELETE = 0x8, 0x40, 0x80, 0x200
_EVENTS = _IN_CLOSE_WRITE | _IN_MOVED_FROM | _IN_MOVED_TO | _IN_DELETE
_POLL_SECONDS = 0.005
_ROOM = 65536


class FolderWatch:
    """A watch on one folder from its creation to `close`. One thread waits; any may `wake` it."""

    def __init__(self, folder: Path) -> None:
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._inotify = _watch(folder)
        self._poll = select.poll()
        for descriptor in (self._wake, self._inotify):
            if descriptor is not None:
                self._poll.register(descriptor, select.POLLIN)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def wait(self, seconds: float) -> None:
        """Return after a change, a `wake`, or the time; also now and then without a cause."""
        if self._inotify is None:
            seconds = min(seconds, _POLL_SECONDS)
        for descriptor, _ in self._poll.poll(max(0.0, seconds) * 1000):
            with suppress(BlockingIOError):
                os.read(descriptor, _ROOM)

    def wake(self) -> None:
        """End the wait that runs, or the next one."""
        os.eventfd_write(self._wake, 1)

    def close(self) -> None:
        """Stop watching."""
        os.close(self._wake)
        if self._inotify is not None:
            os.close(self._inotify)


def _watch(folder: Path) -> int | None:
    libc = ctypes.CDLL(None, use_errno=True)
    descriptor: int = libc.inotify_init1(os.O_CLOEXEC | os.O_NONBLOCK)
    if descriptor < 0:
        return None
    if libc.inotify_add_watch(descriptor, os.fsencode(folder), _EVENTS) < 0:
        os.close(descriptor)
        return None
    return descriptor
