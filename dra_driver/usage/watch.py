"""Watches who has more memory of a GPU than the limit, and reports it or ends who has.

In: looks at the GPUs on which claims have limits, and what shall become of who has more. Out: an
Event on the claim and its pods, a metric, and, where an admin says so, the end of the container.
Nothing is looked at while no prepared claim has a limit.

Nobody is ended on the first look: a party has to be above its limit in two looks in a row, and the
container that is ended on its GPU in both. It is the one of the party with the most memory. Nothing
is ended by a look for which a GPU kept all waiting, as its figures are old, and the next container
of a party only after the last one is gone. Why all this is decision 30.
"""

import queue
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial

import structlog
from msgspec import Struct

from dra_driver.claims.model.claim import ConsumerPod
from dra_driver.claims.model.record import ClaimRecord
from dra_driver.claims.report.claim_events import ClaimEvents, about_claim, about_pod
from dra_driver.devices.model import InventorySource
from dra_driver.errors import DriverError, TransientError
from dra_driver.host.worker import LogOnce, Worker
from dra_driver.usage.ending import EndingError, Ends, Victim
from dra_driver.usage.model import Known, User
from dra_driver.usage.node import NodeLook, Seen
from dra_driver.usage.over_limit import CONTEXT_MIB, Excess, excesses, has_limit, unsure
from dra_driver.usage.reserved import ReservedPods

log = structlog.get_logger()

OVER = "GPUMemoryOverLimit"
"""Reason of the Event of who has more than the limit."""

KILLED = "GPUOOMKilled"
"""Reason of the Event of who was ended for it."""

REPORT, END = "report", "end"
REPORT_SECONDS = 10.0
"""Between two looks where nobody is ended."""

BETWEEN_EVENTS = 600.0
_IDLE_SECONDS = 60.0
_LATE_SECONDS = 1.0
"""How long a look may keep its figures waiting that somebody is ended by."""

_MOST_WAITING = 1000
_MIB = 1024**2

Counted = Callable[[str], None]
"""Counts what was done: reported, ended or failed."""


class OverLimit(Struct, frozen=True, kw_only=True):
    """What becomes of who has more than the limit.

    `of_node` is `report` or `end`; `of_resource` what a share config says of a resource name, None
    for nothing. `allowance_mib` may be had above the limit, for contexts. `interval` is the seconds
    between two looks where somebody may be ended.
    """

    of_node: str = REPORT
    of_resource: Callable[[str], str | None] = lambda _: None
    allowance_mib: int = CONTEXT_MIB
    interval: float = 0.5

    def action(self, served_as: Iterable[str]) -> str:
        """Return what becomes of a party with these resource names: its end only if all say so."""
        actions = {self.of_resource(name) or self.of_node for name in served_as}
        return END if actions == {END} else REPORT


class Told(Worker):
    """A thread that posts Events: no look waits for the API server. What waits is bounded."""

    def __init__(self, events: ClaimEvents) -> None:
        super().__init__("over-limit-events")
        self._events = events
        self._waiting: queue.Queue[Callable[[], None] | None] = queue.Queue(_MOST_WAITING)

    def tell(
        self, excess: Excess, pods: Iterable[tuple[str, ConsumerPod]], *, reason: str, note: str
    ) -> None:
        """Tell claims, and pods with their namespaces. Never blocks."""
        about = [about_claim(claim.ref) for claim in excess.claims]
        about += [about_pod(namespace, pod) for namespace, pod in pods]
        for regarding in about:
            post = partial(
                self._events.post,
                regarding,
                reason=reason,
                action="LimitingMemory",
                note=note,
            )
            try:
                self._waiting.put_nowait(post)
            except queue.Full:
                log.debug("memory over limit not told", reason="too many wait")

    def ring(self) -> None:
        """Wake the thread, which waits for Events."""
        if not self._waiting.full():
            self._waiting.put_nowait(None)

    def _run(self) -> None:
        while (post := self._waiting.get()) or not self._stop.is_set():
            if post is not None:
                try:
                    post()
                except DriverError as error:  # the log has it anyway
                    log.debug("memory over limit not told", reason=str(error))


class OverLimitWatch(Worker):
    """A thread that looks who has more memory than the limit. `clock` is monotonic."""

    def __init__(  # noqa: PLR0913 (all that it takes to know whom to end)
        self,
        look: NodeLook,
        *,
        records: Callable[[], Iterable[ClaimRecord]],
        reserved: ReservedPods,
        inventory: InventorySource,
        what: OverLimit,
        end: Ends,
        told: Told,
        count: Counted,
        clock: Callable[[], float],
    ) -> None:
        """Take what looks; `records` are those of prepared claims."""
        super().__init__("over-limit")
        self._look = look
        self._records = records
        self._reserved = reserved
        self._inventory = inventory
        self._what = what
        self._end = end
        self._told = told
        self._count = count
        self._clock = clock
        self._before: Mapping[tuple[str, ...], Excess] = {}
        self._told_at: dict[tuple[str, ...], float] = {}
        self._ending: dict[tuple[str, ...], str] = {}
        self._once = LogOnce()

    def look(self) -> float:
        """Look once; return after how many seconds to look again. Raises DriverError."""
        records = [record for record in self._records() if has_limit(record)]
        gpus = {gpu for record in records for gpu in record.held_gpus}
        indices = [gpu.index for gpu in self._inventory.current().gpus if gpu.uuid in gpus]
        if not indices:
            self._before = {}
            return _IDLE_SECONDS
        began = self._clock()
        seen = self._look.see(indices, sampled=False)
        known = self._known(seen)
        is_late = self._clock() - began > _LATE_SECONDS
        now = {
            excess.party: excess
            for use in seen.used(known)
            for excess in excesses(use, known, allowance_mib=self._what.allowance_mib)
        }
        self._told_at = {party: at for party, at in self._told_at.items() if self._is_told(at)}
        self._ending = {party: who for party, who in self._ending.items() if party in now}
        for party, excess in now.items():
            if party in self._before:
                self._judge(excess, self._before[party], seen, known, is_late=is_late)
        self._before = now
        return self._pause(known)

    def _run(self) -> None:
        while not self._stop.is_set():
            pause = REPORT_SECONDS
            try:
                pause = self.look()
                self._once.forget()
            except TransientError:
                self._before = {}  # NVML is being opened again
            except DriverError as error:
                self._before = {}
                if self._once.is_new(str(error)):
                    log.warning("memory over limits not watched", reason=str(error))
            self._wait(pause)

    def _known(self, seen: Seen) -> Known:
        """Return what is known, with the pods that came later to a claim where there may be any."""
        known = self._look.known()
        strange = {
            record.ref.uid: record for use in seen.used(known) for record in unsure(use, known)
        }
        if not strange:
            return known
        reserved = self._reserved.of(list(strange.values()))
        return Known(
            records=known.records, reserved=reserved, names=known.names, daemons=known.daemons
        )

    def _pause(self, known: Known) -> float:
        """Return how soon to look again: often only where somebody may be ended."""
        shares = (entry.device.share for record in known.records for entry in record.devices)
        names = {share.division.served_as for share in shares if share and share.division}
        may_end = END in {self._what.of_node, *map(self._what.of_resource, names)}
        return self._what.interval if may_end else max(REPORT_SECONDS, self._what.interval)

    def _judge(
        self, excess: Excess, before: Excess, seen: Seen, known: Known, *, is_late: bool
    ) -> None:
        if self._what.action(claim.served_as for claim in excess.claims) == REPORT:
            self._report(excess, known)
            return
        victim = next((user for user in excess.users if user.container_id), None)
        if victim is None:
            self._report(excess, known)  # no container of it is known
            return
        here = {user.container_id for user in excess.users}
        if is_late or self._ending.get(excess.party) in here:
            return
        if victim.container_id in {user.container_id for user in before.users}:
            self._ending[excess.party] = victim.container_id
            self._end_it(excess, victim, seen, known)

    def _end_it(self, excess: Excess, victim: User, seen: Seen, known: Known) -> None:
        processes = [seen.processes[process.pid] for process in victim.processes]
        who = Victim(pod_uid=victim.pod_uid, container_id=victim.container_id, processes=processes)
        log_of = log.bind(**_facts(excess, victim))
        text = f"{_had(excess, victim, 'had')}; its processes were ended"
        try:
            self._end(who)
        except EndingError as error:
            self._count("failed")
            log_of.warning("container over its memory limit not ended", reason=str(error))
            text = f"{_had(excess, victim, 'has')}, and {error}"
        else:
            self._count("ended")
            log_of.warning("container over its memory limit ended")
        pods = _pods(excess, known)
        self._told.tell(excess, pods, reason=KILLED, note=f"{text}. {_ADVICE}")

    def _report(self, excess: Excess, known: Known) -> None:
        if excess.party in self._told_at:
            return
        self._told_at[excess.party] = self._clock()
        self._count("reported")
        log.warning("container over its memory limit", **_facts(excess, excess.users[0]))
        note = f"{_had(excess, excess.users[0], 'has')}; others may run out of memory. {_ADVICE}"
        self._told.tell(excess, _pods(excess, known), reason=OVER, note=note)

    def _is_told(self, at: float) -> bool:
        return self._clock() < at + BETWEEN_EVENTS


_ADVICE = "Let the program use less memory, or ask for more of the GPU"


def _had(excess: Excess, user: User, verb: str) -> str:
    used, limit = excess.used_bytes // _MIB, excess.limit_mib
    name = f"container {user.container or user.container_id[:13] or 'of this pod'}"
    if len(excess.users) > 1:
        name += f", with the others of its claim, {verb}"
    else:
        name += f" {verb}"
    return f"{name} {used} MiB of {excess.device}, and its limit is {limit} MiB"


def _facts(excess: Excess, user: User) -> dict[str, object]:
    return {
        "claims": [str(claim.ref) for claim in excess.claims],
        "device": excess.device,
        "pod": user.pod or user.pod_uid,
        "container": user.container or user.container_id,
        "used_mib": excess.used_bytes // _MIB,
        "limit_mib": excess.limit_mib,
    }


def _pods(excess: Excess, known: Known) -> Sequence[tuple[str, ConsumerPod]]:
    """Return the pods that have memory there, with their namespaces."""
    here = {user.pod_uid for user in excess.users}
    uids = {claim.ref.uid for claim in excess.claims}
    pods = {
        pod.uid: (record.ref.namespace, pod)
        for record in known.records
        if record.ref.uid in uids
        for pod in (*record.pods, *known.reserved.get(record.ref.uid, ()))
        if pod.uid in here
    }
    return list(pods.values())
