"""Wakes a thread when files appear in, change in or leave a folder.

In: a folder. Out: a wait that ends with the next change, by inotify(7), because a claim's pod waits
meanwhile. Events only wake: the waiting thread reads the folder itself, so no event can be missed
or misread. Without inotify (its instances are limited per user, and all containers of root are one
user) the wait is a short poll, until there is an instance again.
"""

import ctypes
import os
import select
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

# sys/inotify.h
_IN_CLOSE_WRITE, _IN_MOVED_FROM, _IN_MOVED_TO, _IN_DELETE = 0x8, 0x40, 0x80, 0x200
_EVENTS = _IN_CLOSE_WRITE | _IN_MOVED_FROM | _IN_MOVED_TO | _IN_DELETE
_POLL_SECONDS = 0.005
_ROOM = 65536


class FolderWatch:
    """Watches one folder until `close`. One thread waits; any thread may `wake` it."""

    def __init__(self, folder: Path) -> None:
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._folder = folder
        self._identity: tuple[int, int] | None = None
        self._inotify: int | None = None
        self._poll = select.poll()
        self._poll.register(self._wake, select.POLLIN)
        self._descriptors = [self._wake]
        self._end = weakref.finalize(self, _close, self._descriptors)
        self._lock = threading.Lock()
        self._begin()

    def wait(self, seconds: float) -> None:
        """Return after a change, a `wake` or the given time; sometimes for no reason."""
        if self._inotify is None:
            # Earlier changes are not reported: the caller has to look.
            seconds = 0.0 if self._begin() else min(seconds, _POLL_SECONDS)
        for descriptor, _ in self._poll.poll(max(0.0, seconds) * 1000):
            with suppress(BlockingIOError):
                os.read(descriptor, _ROOM)

    def wake(self) -> None:
        """End the current wait, or the next one; nothing after `close`."""
        with self._lock:  # after closing, the number may be another file's
            if self._end.alive:
                os.eventfd_write(self._wake, 1)

    def still_watches(self) -> bool:
        """Tell whether the watched folder still has its name, and no other folder has it."""
        try:
            return self._inotify is not None and _identity(self._folder) == self._identity
        except OSError:
            return False

    def _begin(self) -> bool:
        """Begin to watch if that is possible now; return whether it was."""
        with suppress(OSError):  # before the watch, so that a folder replaced meanwhile shows
            self._identity = _identity(self._folder)
        self._inotify = _watch(self._folder)
        if self._inotify is None:
            return False
        self._descriptors.append(self._inotify)
        self._poll.register(self._inotify, select.POLLIN)
        return True

    def close(self) -> None:
        """Stop watching; an object without references does so by itself."""
        with self._lock:
            self._end()


class WatchPool:
    """Watches on one folder, lent to threads that wait, and kept for the next thread.

    The kernel takes some 15 ms to remove a watch, and each claim's pod would wait for that.
    """

    def __init__(self, folder: Path, *, most_kept: int) -> None:
        """Take the folder, which need not exist yet, and how many idle watches to keep."""
        self._folder = folder
        self._most_kept = most_kept
        self._lock = threading.Lock()
        self._idle: list[FolderWatch] = []
        self._closed = False

    @contextmanager
    def lend(self) -> Iterator[FolderWatch]:
        """Lend a watch on the folder as it is now. Its first wait may end at once."""
        watch = self._idle_one() or FolderWatch(self._folder)
        try:
            yield watch
        finally:
            with self._lock:
                keep = not self._closed and len(self._idle) < self._most_kept
                if keep:
                    self._idle.append(watch)
            if not keep:
                watch.close()

    def close(self) -> None:
        """Close the idle watches; the others are closed when they are returned."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
        for watch in idle:
            watch.close()

    def _idle_one(self) -> FolderWatch | None:
        while True:
            with self._lock:
                if not self._idle:
                    return None
                watch = self._idle.pop()
            if watch.still_watches():
                return watch
            watch.close()


def _close(descriptors: list[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)


def _identity(folder: Path) -> tuple[int, int]:
    status = folder.stat()
    return status.st_dev, status.st_ino


def _watch(folder: Path) -> int | None:
    libc = ctypes.CDLL(None, use_errno=True)
    descriptor: int = libc.inotify_init1(os.O_CLOEXEC | os.O_NONBLOCK)
    if descriptor < 0:
        return None
    if libc.inotify_add_watch(descriptor, os.fsencode(folder), _EVENTS) < 0:
        os.close(descriptor)
        return None
    return descriptor
