"""The pods that a claim is reserved for, by the API server's word: later pods of a shared claim.

In: the records of this node's claims, when somebody looks at usage. Out: name and UID of each pod
that may use a claim. The kubelet prepares a claim once, for the pod that comes first, so its record
names that one alone; `status.reservedFor` names all (the scheduler adds a pod before it binds it).

It takes the right to get claims, which the driver has anyway, and none to read pods. Nothing is
asked while nobody looks; an answer is good for half a minute, and an API server that is away or
refuses is left alone for a while. A look waits for it a second at most.
"""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from dra_driver.claims.model import ClaimUid, ConsumerPod, parse_claim
from dra_driver.claims.record import ClaimRecord, RecordState
from dra_driver.devices.names import DRIVER_NAME
from dra_driver.errors import ApiError, ConfigError, NotFoundError, UnavailableError


@dataclass(frozen=True, slots=True, kw_only=True)
class ReservedTiming:
    """How often to ask, and how long. All in seconds."""

    fresh: float = 30.0
    """How old an answer may be."""

    look: float = 1.0
    """For all that is asked in one look."""

    pause: float = 30.0
    """After the API server did not answer."""

    refused_pause: float = 600.0
    """After it refused, as rights may be granted later."""


class ApiServer(Protocol):
    """Reads claims (kube/client.py)."""

    def get_claim(self, namespace: str, name: str, *, timeout: float) -> Mapping[str, Any]:
        """Return one ResourceClaim. Raises NotFoundError, ApiError, UnavailableError."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class _Answer:
    at: float
    pods: tuple[ConsumerPod, ...]


class ReservedPods:
    """Asks for the pods of claims, and remembers the answers. For one thread."""

    def __init__(
        self,
        api: ApiServer,
        *,
        on_problem: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
        timing: ReservedTiming = ReservedTiming(),
    ) -> None:
        """Take whom to ask; nothing is asked yet.

        Args:
            api: reads claims.
            on_problem: told why it does not, once for each reason.
            clock: monotonic seconds.
            timing: how often to ask, and how long.
        """
        self._api = api
        self._on_problem = on_problem
        self._clock = clock
        self._timing = timing
        self._answers: dict[ClaimUid, _Answer] = {}
        self._paused_until = float("-inf")
        self._said = ""

    def of(self, records: Sequence[ClaimRecord]) -> Mapping[ClaimUid, Sequence[ConsumerPod]]:
        """Return the pods of claims, as far as they are known; none of a claim that has none."""
        uids = {one.ref.uid for one in records}
        self._answers = {uid: one for uid, one in self._answers.items() if uid in uids}
        self._ask(one for one in records if one.state is not RecordState.RELEASED and one.ref.name)
        return {uid: one.pods for uid, one in self._answers.items() if one.pods}

    def _ask(self, records: Iterable[ClaimRecord]) -> None:
        """Ask for those whose answer is old, the oldest first, until the time is over."""
        now = self._clock()
        due = [one for one in records if now - self._asked_at(one) >= self._timing.fresh]
        end = now + self._timing.look
        for record in sorted(due, key=self._asked_at):
            left = end - self._clock()
            if left <= 0 or self._clock() < self._paused_until:
                return
            try:
                pods = self._pods_of(record, timeout=left)
            except UnavailableError as error:
                self._pause(self._timing.pause, str(error))
            except ApiError as error:
                self._pause(self._timing.refused_pause, str(error))
            else:
                self._said = ""
                self._answers[record.ref.uid] = _Answer(at=self._clock(), pods=pods)

    def _asked_at(self, record: ClaimRecord) -> float:
        """Return when a claim was asked for; long ago if it never was."""
        answer = self._answers.get(record.ref.uid)
        return float("-inf") if answer is None else answer.at

    def _pods_of(self, record: ClaimRecord, *, timeout: float) -> tuple[ConsumerPod, ...]:
        ref = record.ref
        try:
            claim = parse_claim(
                self._api.get_claim(ref.namespace, ref.name, timeout=timeout), DRIVER_NAME
            )
        except (NotFoundError, ConfigError):  # it is gone, or has given its devices back
            return ()
        return claim.pods if claim.ref.uid == ref.uid else ()

    def _pause(self, seconds: float, reason: str) -> None:
        self._paused_until = self._clock() + seconds
        if reason != self._said:
            self._on_problem(reason)
        self._said = reason
