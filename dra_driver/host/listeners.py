"""Who is called when something has changed. The list is filled before any thread starts."""

from collections.abc import Callable
from typing import Generic, ParamSpec

P = ParamSpec("P")


class Listeners(Generic[P]):
    """Calls to make, in the order in which they were added; each must not block."""

    def __init__(self) -> None:
        self._calls: list[Callable[P, object]] = []

    def add(self, *calls: Callable[P, object]) -> None:
        """Add calls; not once threads run."""
        self._calls += calls

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> None:
        """Make all calls."""
        for call in self._calls:
            call(*args, **kwargs)
