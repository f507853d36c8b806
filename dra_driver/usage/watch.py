"""Watches which containers have more memory of a GPU than their limit, and reports or ends them.

In: looks at the GPUs on which claims have limits, and what to do. Out: an Event on the claim and
its pods, a metric, and, if an admin says so, the end of the container. There are no looks while no
prepared claim has a limit.

Nothing is ended on the first look: a party has to be above its limit in two looks in a row, and the
container that is ended must be on its GPU in both. It is the one of the party with the most memory.
A look that a GPU has delayed ends nothing, because its figures are old, and a party's next end
comes only after the processes of the last one are gone. Who is not ended for such a reason is
reported. The reasons are in decision 30.
"""

from collections.abc import Callable, Iterable, Mapping

import structlog
from msgspec import Struct
from msgspec.structs import replace

from dra_driver.claims.model.claim import PodsOf
from dra_driver.claims.model.record import ClaimRecord
from dra_driver.claims.report.claim_events import ClaimEvents, about_claim, about_pod
from dra_driver.devices.model import InventorySource
from dra_driver.devices.shares import MIB
from dra_driver.errors import DriverError, TransientError
from dra_driver.host.worker import LogOnce, Worker
from dra_driver.usage.ending import EndingError
from dra_driver.usage.model import DeviceUse, Holding, Known, User, holdings
from dra_driver.usage.node import NodeLook
from dra_driver.usage.over_limit import KILLED, OVER, Excess, excesses

log = structlog.get_logger()

REPORT, END = "report", "end"
REPORT_SECONDS = 10.0
"""Between two looks if nothing may be ended."""

END_SECONDS = 0.5
"""Between two looks if containers may be ended."""

BETWEEN_EVENTS = 600.0
_IDLE_SECONDS = 60.0
_LATE_SECONDS = 1.0
"""How old the figures may be by which a container is ended."""

Counted = Callable[[str], None]
"""Counts what was done: reported, ended or failed."""


class OverLimit(Struct, frozen=True, kw_only=True):
    """What to do about memory over the limit.

    `of_node` is `report` or `end`; `of_resource` returns what a share config says of a resource
    name, None for nothing.
    """

    of_node: str = REPORT
    of_resource: Callable[[str], str | None] = lambda _: None

    def action(self, served_as: Iterable[str]) -> str:
        """Return what to do about a party with these resource names: `end` only if all say so."""
        actions = {self.of_resource(name) or self.of_node for name in served_as}
        return END if actions == {END} else REPORT


def tell(events: ClaimEvents, excess: Excess, reason: str, note: str) -> None:
    """Send an Event to claims, and to their pods with memory there. Never blocks."""
    about = [about_claim(claim.ref) for claim in excess.claims]
    about += [about_pod(namespace, pod) for namespace, pod in excess.pods()]
    for each in about:
        events.post(each, reason=reason, action="LimitingMemory", note=note)


class OverLimitWatch(Worker):
    """A thread that looks for memory over the limit. `clock` is monotonic."""

    def __init__(  # noqa: PLR0913 (all that it takes to know whom to end)
        self,
        look: NodeLook,
        *,
        records: Callable[[], Iterable[ClaimRecord]],
        pods_of: PodsOf,
        inventory: InventorySource,
        what: OverLimit,
        end: Callable[[User], None],
        tell: Callable[[Excess, str, str], None],
        count: Counted,
        clock: Callable[[], float],
    ) -> None:
        """Take what looks.

        `records` are those of prepared claims, and `pods_of` returns the pods that claims have now.
        `end` ends a container's processes, or raises EndingError. `tell` has reason and note.
        """
        super().__init__("over-limit")
        self._look = look
        self._records = records
        self._pods_of = pods_of
        self._inventory = inventory
        self._what = what
        self._end = end
        self._tell = tell
        self._count = count
        self._clock = clock
        self._before: Mapping[tuple[str, ...], Excess] = {}
        self._told_at: dict[tuple[str, ...], float] = {}
        self._ending: dict[tuple[str, ...], tuple[float, set[tuple[int, int]]]] = {}
        self._once = LogOnce()

    def check(self) -> float:
        """Check once; return after how many seconds to check again. Raises DriverError."""
        before, self._before = self._before, {}  # a look that fails is followed by a first one
        claims = [
            claim for record in self._records() for claim in holdings(record) if not claim.is_admin
        ]
        gpus = {claim.entries[0].device.gpu for claim in claims if claim.limit_mib is not None}
        indices = [gpu.index for gpu in self._inventory.current().gpus if gpu.uuid in gpus]
        if not indices:
            return _IDLE_SECONDS
        began = self._clock()
        seen = self._look.see(indices, sampled=False)
        devices = [device for gpu in seen.used(Known()) for device in gpu.devices]
        claims = self._with_later_pods(claims, devices)
        is_late = self._clock() - began > _LATE_SECONDS
        now = {excess.party: excess for device in devices for excess in excesses(device, claims)}
        old = self._clock() - BETWEEN_EVENTS
        self._told_at = {party: at for party, at in self._told_at.items() if at > old}
        self._ending = {party: who for party, who in self._ending.items() if party in now}
        for party, excess in now.items():
            if party in before:
                self._judge(excess, before[party], is_late=is_late)
        self._before = now
        return self._pause(claims)

    def _run(self) -> None:
        while not self._stop.is_set():
            pause = REPORT_SECONDS
            try:
                pause = self.check()
                self._once.forget()
            except TransientError:
                pass  # NVML is being opened again
            except DriverError as error:
                if self._once.is_new(str(error)):
                    log.warning("memory over limits not watched", reason=str(error))
            # Two looks need their interval, however often claims come and go.
            if not self._stop.wait(END_SECONDS):
                self._wait(pause - END_SECONDS)

    def _with_later_pods(
        self, claims: list[Holding], devices: Iterable[DeviceUse]
    ) -> list[Holding]:
        """Return claims with their later pods, which are asked for only if there may be any."""
        named = {(claim.device, pod.uid) for claim in claims for pod in claim.pods}
        with_strangers = {
            device.uuid
            for device in devices
            if any((device.uuid, user.pod_uid) not in named for user in device.users)
        }
        asked = {claim.ref.uid for claim in claims if claim.device in with_strangers}
        later = self._pods_of(asked) if asked else {}
        return [replace(claim, later=tuple(later.get(claim.ref.uid, ()))) for claim in claims]

    def _pause(self, claims: Iterable[Holding]) -> float:
        """Return how soon to look again: often only if a container may be ended."""
        limited = (claim for claim in claims if claim.limit_mib is not None)
        actions = {self._what.action([claim.served_as]) for claim in limited}
        return END_SECONDS if END in actions else REPORT_SECONDS

    def _judge(self, excess: Excess, before: Excess, *, is_late: bool) -> None:
        if self._what.action(claim.served_as for claim in excess.claims) == REPORT:
            self._report(excess)
            return
        victim = next((each for each in excess.tenants if each.container_id), None)
        were_here = {each.container_id for each in before.tenants}
        here = {key for each in excess.tenants for key in _keys(each)}
        at, ended = self._ending.get(excess.party, (0.0, set()))
        if ended & here:
            if self._clock() < at + REPORT_SECONDS:
                return  # their memory is still being freed
        elif victim is not None and not is_late and victim.container_id in were_here:
            self._ending[excess.party] = self._clock(), _keys(victim)
            self._end_it(excess, victim)
            return
        self._report(excess)

    def _end_it(self, excess: Excess, victim: User) -> None:
        who, facts = self._name(victim), self._facts(excess, victim)
        text = f"{_had(excess, who, 'had')}; its processes were ended"
        try:
            self._end(victim)
        except EndingError as error:
            self._count("failed")
            log.warning("container over its memory limit not ended", reason=str(error), **facts)
            text = f"{_had(excess, who, 'has')}, and {error}"
        else:
            self._count("ended")
            log.warning("container over its memory limit ended", **facts)
        key = (*excess.party, victim.container_id)
        if key not in self._told_at:  # a container may start what was ended again and again
            self._told_at[key] = self._clock()
            self._tell(excess, KILLED, f"{text}. {_ADVICE}")

    def _report(self, excess: Excess) -> None:
        if excess.party in self._told_at:
            return
        self._told_at[excess.party] = self._clock()
        self._count("reported")
        greatest = excess.tenants[0]
        log.warning("container over its memory limit", **self._facts(excess, greatest))
        had = _had(excess, self._name(greatest), "has")
        self._tell(excess, OVER, f"{had}; others may run out of memory. {_ADVICE}")

    def _name(self, tenant: User) -> str:
        if not tenant.container_id:
            return "a process outside of the pod's containers"
        name = self._look.known().names.get(tenant.container_id)
        return f"container {name.name if name else f'with ID {tenant.container_id[:13]}'}"

    def _facts(self, excess: Excess, tenant: User) -> dict[str, object]:
        return {
            "claims": [str(claim.ref) for claim in excess.claims],
            "device": excess.device,
            "pod": next((pod.name for _, pod in excess.pods() if pod.uid == tenant.pod_uid), ""),
            "container": self._name(tenant).removeprefix("container "),
            "used_mib": excess.used_bytes // MIB,
            "limit_mib": excess.limit_mib,
        }


def _keys(tenant: User) -> set[tuple[int, int]]:
    """Return what identifies a container's processes, whatever they call themselves."""
    return {(process.pid, process.start_ticks) for process in tenant.processes}


_ADVICE = "Let the program use less memory, or ask for more of the GPU"


def _had(excess: Excess, who: str, verb: str) -> str:
    others = ", with the others of its claim," if len(excess.tenants) > 1 else ""
    return (
        f"{who}{others} {verb} {excess.used_bytes // MIB} MiB of {excess.device}, "
        f"and its limit is {excess.limit_mib} MiB"
    )
