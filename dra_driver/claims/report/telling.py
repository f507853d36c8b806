"""Prepares and unprepares claims as another does, and says what was done.

In: a caller's claim. Out: the other's answer, or its error. Rules: only what succeeded is said, and
it is said before the caller has its answer, so whoever listens must not block.
"""

from collections.abc import Callable
from typing import Protocol

from dra_driver.claims.model.claim import ClaimRef, PreparedDevice


class Claims(Protocol):
    """What prepares and unprepares one claim; both may be repeated and may run side by side."""

    def prepare(self, ref: ClaimRef, *, deadline: float) -> tuple[PreparedDevice, ...]:
        """Make the claim's devices ready. Raises DriverError, whose text is the user's text.

        `deadline` is when the caller stops listening; the work ends early enough to answer.
        """
        ...

    def unprepare(self, ref: ClaimRef, *, deadline: float) -> None:
        """Undo it. An unknown claim is fine. Raises DriverError."""
        ...


class Telling:
    """What prepares and unprepares, and who listens."""

    def __init__(
        self,
        claims: Claims,
        *,
        prepared: Callable[[ClaimRef], object],
        unprepared: Callable[[ClaimRef], object],
    ) -> None:
        """Take whom to ask, and what to call with the claim afterwards."""
        self._claims = claims
        self._prepared = prepared
        self._unprepared = unprepared

    def prepare(self, ref: ClaimRef, *, deadline: float) -> tuple[PreparedDevice, ...]:
        """Prepare a claim. Raises DriverError."""
        found = self._claims.prepare(ref, deadline=deadline)
        self._prepared(ref)
        return found

    def unprepare(self, ref: ClaimRef, *, deadline: float) -> None:
        """Unprepare a claim. Raises DriverError."""
        self._claims.unprepare(ref, deadline=deadline)
        self._unprepared(ref)


def ringing(claims: Claims, ring: Callable[[], None]) -> Telling:
    """Return what rings whenever something was done, whatever it was."""
    return Telling(claims, prepared=lambda _: ring(), unprepared=lambda _: ring())
