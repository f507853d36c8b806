"""Locks per claim and per GPU, between threads and between processes.

During a rolling update two driver processes run side by side, so a lock between threads is not
enough. The second half of each lock is a byte of one file, at an offset that is computed from the
lock's name (host/ofd_lock.py). The kernel releases it when its process dies. Unlike a lock file for
each claim, it leaves nothing behind that would have to be removed.

The first bytes of the file say which process had each GPU's lock last. A process that finds another
one there does not know what the records say of that GPU now: its ledger reads them again.

Threads of one process queue on the thread lock and wake at once. Only a lock that another process
holds is polled, because Linux has no such lock call with a time limit.
"""

import os
import threading
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import lru_cache
from hashlib import sha256
from pathlib import Path

from dra_driver.claims.state.ledger import Ledger
from dra_driver.claims.state.records import disk_refused
from dra_driver.errors import ConflictError, StateError
from dra_driver.host import ofd_lock
from dra_driver.host.turns import acquired, waiting

_GPU = "gpu/"
_SLOTS = 2**16
_SLOT_BYTES = 32

_FIRST_POLL = 0.001
_LONGEST_POLL = 0.05
_DOMAIN_SECONDS = 10.0


class NodeLocks:
    """Named locks on one file. `clock` is monotonic, in seconds; deadlines are its values.

    `on_other` is called under a GPU's lock that another process had since this one had it. Raises
    ConflictError if a lock is still held at the deadline, and StateError if the file cannot be made
    on this disk.
    """

    def __init__(
        self, file: Path, clock: Callable[[], float], *, on_other: Callable[[], None]
    ) -> None:
        self._clock = clock
        self._on_other = on_other
        self._me = os.urandom(_SLOT_BYTES // 2)
        self._guard = threading.Lock()
        self._threads: dict[str, tuple[threading.Lock, int]] = {}
        self._path = file
        self._file: int | None = None
        with suppress(StateError):
            self._opened()

    def close(self) -> None:
        """Close the file, which releases every lock. Nothing may use the locks afterwards."""
        if self._file is not None:
            os.close(self._file)

    def claim(self, uid: str, deadline: float) -> "_Held":
        """Hold the lock of a claim, so that one call at a time works on it."""
        return _Held(self, {f"claim/{uid}": f"another call for claim UID {uid}"}, deadline)

    def gpus(self, uuids: Iterable[str], deadline: float) -> "_Held":
        """Hold the locks of GPUs, taken in sorted order, so that callers cannot deadlock."""
        names = {_GPU + uuid: f"another claim's call for {uuid}" for uuid in sorted(set(uuids))}
        return _Held(self, names, deadline)

    def domain(self, domain: str) -> "_Held":
        """Hold the lock of an MPS domain, which calls hold for file operations only."""
        holder = f"another call that joins or leaves MPS domain {domain}"
        return _Held(self, {f"mps/{domain}": holder}, self._clock() + _DOMAIN_SECONDS)

    def take(self, name: str, holder: str, deadline: float) -> None:
        """Take a lock; `holder` describes for people who may have it now."""
        lock = self._enter(name)
        try:
            self._acquire(lock, holder, deadline)
            try:
                self._lock_range(name, holder, deadline)
                if name.startswith(_GPU):
                    self._say_who(name)
            except BaseException:
                lock.release()
                raise
        except BaseException:
            self._leave(name)
            raise

    def release(self, name: str) -> None:
        """Release a lock that this thread has taken."""
        try:
            self._set(ofd_lock.unlock, name)
        finally:
            self._threads[name][0].release()
            self._leave(name)

    def _acquire(self, lock: threading.Lock, holder: str, deadline: float) -> None:
        if not acquired(lock, max(0.0, deadline - self._clock())):
            raise _busy(holder)

    def _enter(self, name: str) -> threading.Lock:
        with self._guard:
            lock, users = self._threads.get(name) or (threading.Lock(), 0)
            self._threads[name] = (lock, users + 1)
            return lock

    def _leave(self, name: str) -> None:
        with self._guard:
            lock, users = self._threads[name]
            if users == 1:
                del self._threads[name]
            else:
                self._threads[name] = (lock, users - 1)

    def _lock_range(self, name: str, holder: str, deadline: float) -> None:
        pause = _FIRST_POLL
        while not self._set(ofd_lock.lock, name):
            left = deadline - self._clock()
            if left <= 0:
                raise _busy(f"{holder} in another process of this driver")
            with waiting():
                threading.Event().wait(min(pause, left))
            pause = min(2 * pause, _LONGEST_POLL)

    def _say_who(self, name: str) -> None:
        """Write down which process has a GPU's lock; `on_other` if it was another one before.

        The file has holes, so that there are many slots. Two GPUs that still have the same one
        read the records at each change between them.
        """
        file, hashed = self._opened(), _hash(name)
        mine = hashed[: _SLOT_BYTES - len(self._me)] + self._me
        at = int.from_bytes(hashed[-4:]) % _SLOTS * _SLOT_BYTES
        with suppress(OSError):  # a disk that cannot be written: the records are read each time
            if os.pread(file, _SLOT_BYTES, at) == mine:
                return
            os.pwrite(file, mine, at)
        self._on_other()

    def _opened(self) -> int:
        """Return the file; it is opened once the disk is writable."""
        if self._file is not None:
            return self._file
        with self._guard:
            if self._file is None:
                try:
                    self._file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
                except OSError as error:
                    raise disk_refused(f"open the lock file {self._path}", error) from error
            return self._file

    def _set(self, call: Callable[[int, int, int], bool | None], name: str) -> bool | None:
        """Lock or unlock the byte of `name`; return False if another process has it."""
        file = self._opened()
        try:
            return call(file, _offset(name), 1)
        except OSError as error:
            raise StateError(
                f"cannot lock on the driver's directory: {error.strerror}; it must be on a local "
                "file system"
            ) from error


def locks_of(ledger: Ledger, clock: Callable[[], float]) -> NodeLocks:
    """Return the locks of a ledger's claims and GPUs, whose file is beside the records."""
    return NodeLocks(ledger.directory / "locks", clock, on_other=ledger.reread)


class _Held:
    """Locks held for a block of code. A class is cheaper than a generator; claims take several."""

    __slots__ = ("_deadline", "_locks", "_names", "_taken")

    def __init__(self, locks: NodeLocks, names: Mapping[str, str], deadline: float) -> None:
        self._locks = locks
        self._names = names
        self._deadline = deadline
        self._taken: list[str] = []

    def __enter__(self) -> None:
        try:
            for name, holder in self._names.items():
                self._locks.take(name, holder, self._deadline)
                self._taken.append(name)
        except BaseException:
            self._release()
            raise

    def __exit__(self, *_: object) -> None:
        self._release()

    def _release(self) -> None:
        while self._taken:
            name = self._taken.pop()
            try:
                self._locks.release(name)
            except BaseException:
                self._release()  # release the others even if this one failed
                raise


def _offset(name: str) -> int:
    """Return the byte of a name: 62 bits of a hash, so that two names on a node do not collide."""
    return int.from_bytes(_hash(name)[:8]) >> 2


@lru_cache(maxsize=256)
def _hash(name: str) -> bytes:
    return sha256(name.encode()).digest()


def _busy(holder: str) -> ConflictError:
    return ConflictError(f"{holder} is still running; this call is retried by itself")
