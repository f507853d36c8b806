"""How long to wait before the next attempt: longer each time, and different on each node.

Kubernetes API conventions ask clients to back off exponentially with jitter, so that a thousand
nodes do not come back to a restarted API server at the same moment.
"""

from collections.abc import Callable


class Backoff:
    """Delays of `first`, doubling up to `most` seconds, each shortened by up to half at random."""

    def __init__(self, *, first: float, most: float, random: Callable[[], float]) -> None:
        """Take the first and the longest delay; `random` gives numbers in [0, 1)."""
        self._first = first
        self._most = most
        self._random = random
        self._next = first

    def delay(self) -> float:
        """Return the seconds to wait now, and lengthen the next delay."""
        delay = self._next * (1 - self._random() / 2)
        self._next = min(self._next * 2, self._most)
        return delay

    def reset(self) -> None:
        """Start with the first delay again: something worked."""
        self._next = self._first
