"""What is open in this process until it is closed after the test.

A node that is started again in a test leaves its former driver as a crash would: open.
"""

from typing import Protocol
from weakref import WeakSet


class Closes(Protocol):
    """Closed once: it takes itself out of `OPEN` then."""

    def close(self) -> None: ...


OPEN: WeakSet[Closes] = WeakSet()


def close_all() -> None:
    for opened in tuple(OPEN):
        opened.close()
