"""Asks a question once for all threads, or on a thread of its own."""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Generic, TypeVar

from dra_driver.errors import DriverError

T = TypeVar("T")


class Once(Generic[T]):
    """Asks for something when it is first needed, and only once. For any thread."""

    def __init__(self, ask: Callable[[], T]) -> None:
        """Keep the question for later."""
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


def begun(name: str, ask: Callable[[], T]) -> Future[T]:
    """Ask on a separate thread, which is abandoned if it hangs."""
    answer: Future[T] = Future()

    def run() -> None:
        try:
            answer.set_result(ask())
        except BaseException as error:  # noqa: BLE001 (it is raised where the answer is needed)
            answer.set_exception(error)

    threading.Thread(target=run, name=name, daemon=True).start()
    return answer
