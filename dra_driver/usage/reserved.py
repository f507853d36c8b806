"""The pods that a claim is reserved for, from the API server: later pods of a shared claim.

In: the records of this node's claims, when somebody looks at usage. Out: name and UID of each pod
that may use a claim. The kubelet prepares a claim once, for its first pod, so the record names only
that one; `status.reservedFor` names all (the scheduler adds a pod before it binds it).

This needs the right to get claims, which the driver has anyway, and none to read pods. The API
server is asked only when somebody looks; an answer is used for half a minute. If it does not
answer, or refuses a claim, it is not asked again for a while; the claims that have waited longest
come first. A look waits for at most a second.
"""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence

from msgspec import Struct

from dra_driver.claims.model.claim import ClaimUid, ConsumerPod, parse_claim
from dra_driver.claims.model.record import ClaimRecord, RecordState
from dra_driver.devices.names import DRIVER_NAME
from dra_driver.errors import ApiError, ConfigError, NotFoundError, UnavailableError
from dra_driver.host.worker import LogOnce
from dra_driver.kube.client import KubeClient

_NEVER = float("-inf")


class ReservedTiming(Struct, frozen=True, kw_only=True):
    """How often to ask, and how long. All in seconds."""

    fresh: float = 30.0
    """How old an answer may be."""

    look: float = 1.0
    """How long all requests of one look may take."""

    pause: float = 30.0
    """How long not to ask after the API server did not answer."""

    refused_pause: float = 600.0
    """How long not to ask for a claim that it refused: rights may be granted later."""


_Answer = tuple[float, tuple[ConsumerPod, ...]]
"""When it came, and the pods."""


class ReservedPods:
    """Asks for the pods of claims, and remembers the answers. For one thread."""

    def __init__(
        self,
        api: KubeClient,
        *,
        on_problem: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
        timing: ReservedTiming = ReservedTiming(),
    ) -> None:
        """Take the client; `on_problem` is told why there is no answer, once for each reason."""
        self._api = api
        self._on_problem = on_problem
        self._clock = clock
        self._timing = timing
        self._answers: dict[ClaimUid, _Answer] = {}
        self._tried: dict[ClaimUid, float] = {}
        self._refused_until: dict[ClaimUid, float] = {}
        self._paused_until = _NEVER
        self._once = LogOnce()

    def of(self, records: Sequence[ClaimRecord]) -> Mapping[ClaimUid, Sequence[ConsumerPod]]:
        """Return the pods of claims, as far as they are known."""
        uids = {record.ref.uid for record in records}
        self._answers = {uid: answer for uid, answer in self._answers.items() if uid in uids}
        self._tried = {uid: at for uid, at in self._tried.items() if uid in uids}
        self._refused_until = {uid: at for uid, at in self._refused_until.items() if uid in uids}
        self._ask(
            record
            for record in records
            if record.state is not RecordState.RELEASED and record.ref.name
        )
        return {uid: pods for uid, (_, pods) in self._answers.items() if pods}

    def _ask(self, records: Iterable[ClaimRecord]) -> None:
        """Ask for claims with an old answer, the longest untried first, until the time is over."""
        now = self._clock()
        due = [each for each in records if self._is_due(each, now)]
        end = now + self._timing.look
        for record in sorted(due, key=lambda each: self._tried.get(each.ref.uid, _NEVER)):
            left = end - self._clock()
            if left <= 0 or self._clock() < self._paused_until:
                return
            uid = record.ref.uid
            self._tried[uid] = self._clock()
            try:
                pods = self._pods_of(record, timeout=left)
            except UnavailableError as error:
                self._paused_until = self._clock() + self._timing.pause
                self._say(str(error))
            except ApiError as error:
                self._refused_until[uid] = self._clock() + self._timing.refused_pause
                self._say(str(error))
            else:
                self._once.forget()
                self._answers[uid] = self._clock(), pods

    def _is_due(self, record: ClaimRecord, now: float) -> bool:
        answer = self._answers.get(record.ref.uid)
        is_old = answer is None or now - answer[0] >= self._timing.fresh
        return is_old and now >= self._refused_until.get(record.ref.uid, _NEVER)

    def _pods_of(self, record: ClaimRecord, *, timeout: float) -> tuple[ConsumerPod, ...]:
        ref = record.ref
        try:
            claim = parse_claim(
                self._api.get_claim(ref.namespace, ref.name, timeout=timeout), DRIVER_NAME
            )
        except (NotFoundError, ConfigError):  # it is gone, or has given its devices back
            return ()
        return claim.pods if claim.ref.uid == ref.uid else ()

    def _say(self, reason: str) -> None:
        if self._once.is_new(reason):
            self._on_problem(reason)
