"""Checks the memory limits of shares, every half minute and at start, and restores them.

In: the records of claims whose memory control groups limit, the pods that have them according to
the kubelet, and the limits that NVML reports. Lost limits are set again (the kubelet made a pod's
group again, or the GPU driver was loaded again). Containers that escape their pod's limit are bound
again. Pods that came to a claim that another pod has get no memory. Events report all this. If the
recorded pod is gone and exactly one other is left, that one gets its place. What a lost record has
left of the limit of all pods is removed. Decision 13 gives the reasons.

Takes the locks of the claim and its GPUs, as the kubelet's calls do, and gives way to them.
"""

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path

import structlog
from msgspec.structs import replace

from dra_driver.claims.model.claim import ClaimUid, ConsumerPod, PodsOf
from dra_driver.claims.model.record import ClaimRecord, RecordState
from dra_driver.claims.prepare.node_claims import NodeClaims
from dra_driver.claims.report.claim_events import ClaimEvents, about_pod
from dra_driver.claims.state.holdings import share_steps
from dra_driver.claims.state.locks import NodeLocks
from dra_driver.devices.model import GpuUuid, InventorySource
from dra_driver.errors import (
    ConflictError,
    DeviceError,
    DriverError,
    TransientError,
    try_all,
)
from dra_driver.host.worker import LogOnce, Worker
from dra_driver.sharing.memory_groups import MemoryGroups
from dra_driver.sharing.steps import UseShares

log = structlog.get_logger()

NO_MEMORY = "NoGPUMemory"
"""Reason of the Event of a pod that came to a claim that another pod has."""

ESCAPED = "GPUMemoryLimitRestored"
"""Reason of the Event of a pod that had a container without the pod's limit."""

NOT_IN_FORCE = "GPUMemoryLimitNotInForce"
"""Reason of the Event of a pod whose limit cannot be set again."""

_LOCK_SECONDS = 1.0
"""How long to wait for the lock of a claim or GPU that a call of the kubelet has."""


class MemoryWatch(Worker):
    """A thread that checks memory limits every `period` seconds; `clock` is monotonic.

    `pods_of` returns the pods that have claims now, as far as they are known.
    """

    def __init__(  # noqa: PLR0913 (all that a limit depends on)
        self,
        *,
        pods_of: PodsOf,
        claims: NodeClaims,
        groups: MemoryGroups,
        inventory: InventorySource,
        locks: NodeLocks,
        events: ClaimEvents,
        clock: Callable[[], float],
        period: float = 30.0,
    ) -> None:
        super().__init__("memory-watch")
        self._pods_of = pods_of
        self._claims = claims
        self._groups, self._pods = groups, groups.pods
        self._inventory = inventory
        self._locks = locks
        self._events = events
        self._clock = clock
        self._period = period
        self._once = LogOnce()
        self._told: dict[ClaimUid, set[tuple[str, str]]] = {}
        self._not_in_force: set[ClaimUid] = set()

    def not_in_force(self) -> int:
        """Return the number of claims whose limits were not in force and could not be set."""
        return len(self._not_in_force)

    def check(self) -> None:
        """Check all claims that control groups limit, and unshared GPUs. Raises StateError."""
        records = self._claims.ledger.readable()
        limited = [record.ref.uid for record in records if _limited(record)]
        self._told = {uid: told for uid, told in self._told.items() if uid in limited}
        self._not_in_force.intersection_update(limited)
        pods = self._pods_of(limited) if limited else {}
        for uid in limited:
            self._try(uid, partial(self._check_claim, uid, pods.get(uid, ())))
        for gpu in self._inventory.current().gpus:
            self._try(gpu.uuid, partial(self._admit_others, gpu.uuid))

    def _run(self) -> None:
        pause = 0.0
        while not self._stop.wait(pause):
            pause = self._period
            self._try("all", self.check)

    def _try(self, subject: str, work: Callable[[], None]) -> None:
        """Do the work; log each failure once, so that one claim or GPU does not hold up others."""
        if self._stop.is_set():
            return
        try:
            work()
        except ConflictError:
            return  # a call of the kubelet has its lock
        except DriverError as error:
            if self._once.is_new(str(error), subject):
                log.warning("memory limits not checked", of=subject, reason=str(error))
        else:
            self._once.forget(subject)

    def _check_claim(self, uid: ClaimUid, pods: Sequence[ConsumerPod]) -> None:
        end = self._clock() + _LOCK_SECONDS
        with self._locks.claim(uid, end):
            record = self._claims.ledger.read(uid)
            if record is None or not (self._claims.ledger.is_prepared(record) and _limited(record)):
                return
            with self._locks.gpus(record.touched_gpus, end):
                record = self._handed_over(record, pods)
                try:
                    self._mend(record)
                    self._not_in_force.discard(uid)
                finally:
                    self._tell_later_pods(record, pods)

    def _handed_over(self, record: ClaimRecord, pods: Sequence[ConsumerPod]) -> ClaimRecord:
        """Give the place of a pod that is gone to the only pod that has the claim now.

        The kubelet makes no call when one pod of a claim ends and another one stays.
        """
        limited = _limited(record)
        if self._pods.find(limited[0].pod):
            return record
        there = tuple(pod for pod in pods if self._pods.find(pod.uid))
        if len(there) != 1:
            return record
        steps = tuple(
            replace(step, pod=there[0].uid) if step in limited else step for step in record.steps
        )
        record = replace(record, steps=steps, pods=there)
        self._claims.ledger.write(record)
        log.info("share handed over", claim=str(record.ref), pod=there[0].name)
        return record

    def _mend(self, record: ClaimRecord) -> None:
        try:
            self._claims.steps.ensure(record.steps)
        except (DeviceError, TransientError) as error:
            self._not_in_force.add(record.ref.uid)
            if isinstance(error, DeviceError):
                self._tell(record, _owners(record), NOT_IN_FORCE, str(error))
            raise
        for step in _limited(record):
            free = self._groups.free_containers(step)
            try_all(partial(self._bind, record, step, container) for container in free)

    def _bind(self, record: ClaimRecord, step: UseShares, container: Path) -> None:
        self._groups.bind(step, container)
        log.warning("container had no memory limit", claim=str(record.ref), group=str(container))
        note = (
            f"a container of this pod ({container.name}) had its own GPU memory limit, or none, "
            "instead of the pod's; the pod's limit was set again. Something else on the node "
            "sets such limits, or did so before: remove it"
        )
        self._tell(record, _owners(record), ESCAPED, note)

    def _tell_later_pods(self, record: ClaimRecord, pods: Sequence[ConsumerPod]) -> None:
        """Tell pods that came to a claim that another pod has, and so have no memory."""
        names = ", ".join(pod.name for pod in _owners(record))
        note = (
            f"this pod has no GPU memory: claim {record.ref} has a share that pod {names} "
            "already has; give each pod a claim of its own by a resourceClaimTemplate"
        )
        limited = {step.pod for step in _limited(record)}
        self._tell(record, [pod for pod in pods if pod.uid not in limited], NO_MEMORY, note)

    def _tell(
        self, record: ClaimRecord, pods: Iterable[ConsumerPod], reason: str, note: str
    ) -> None:
        """Post an Event on each pod, once for each text."""
        told = self._told.setdefault(record.ref.uid, set())

        def tell(pod: ConsumerPod) -> None:
            about = about_pod(record.ref.namespace, pod)
            self._events.post(about, reason=reason, action="LimitingMemory", note=note)
            told.add((pod.uid, note))

        try_all(partial(tell, pod) for pod in pods if (pod.uid, note) not in told)

    def _admit_others(self, gpu: GpuUuid) -> None:
        """Remove the limit of all other pods that a claim without a record has left on a GPU."""
        if self._groups.is_used(gpu) or not self._groups.others_are_refused(gpu):
            return
        with self._locks.gpus([gpu], self._clock() + _LOCK_SECONDS):
            if not self._groups.is_used(gpu):
                self._groups.admit_others(gpu)
                log.warning("leftover limit of all pods removed", gpu=gpu)


def _limited(record: ClaimRecord) -> list[UseShares]:
    """Return the steps for which control groups limit a claim."""
    if record.state is RecordState.RELEASED:
        return []
    return [step for step in share_steps(record) if step.pod]


def _owners(record: ClaimRecord) -> list[ConsumerPod]:
    """Return the pod that has the claim's memory."""
    limited = {step.pod for step in _limited(record)}
    return [pod for pod in record.pods if pod.uid in limited]
