"""Something that many threads need and one asks for; the others wait, and share a failure too."""

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

from dra_driver.errors import DriverError

T = TypeVar("T")


class Once(Generic[T]):
    """Asks for something when it is needed first, and never again. For any thread."""

    def __init__(self, ask: Callable[[], T]) -> None:
        """Take how to ask; nothing is asked yet."""
        self._ask = ask
        self._lock = threading.Lock()
        self._found: list[T] = []
        self._failure: DriverError | None = None

    def get(self) -> T:
        """Return what was found, or raise the DriverError that asking raised, each time."""
        with self._lock:
            if self._failure is not None:
                raise self._failure
            if not self._found:
                try:
                    self._found.append(self._ask())
                except DriverError as error:
                    self._failure = error
                    raise
            return self._found[0]
