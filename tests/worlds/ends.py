"""What is open in this process until it is closed after the test.

A node that is started again in a test leaves its former driver as a crash would: open.
"""

from typing import Protocol


class Closes(Protocol):
    """It is in `OPEN` until it is closed; then to close it does nothing."""

    def close(self) -> None: ...


OPEN: set[Closes] = set()


def close_all() -> None:
    for opened in tuple(OPEN):
        opened.close()
