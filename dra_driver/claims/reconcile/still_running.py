"""Tells whether pods may still run with a claim that the API server no longer has.

A user with the role `edit` can delete a claim by force, or lose its allocation, while its pod runs
on. What runs is therefore asked of the node, in three ways, none of which a tenant can write to:

- the kubelet's PodResources names pods that have the claim (kubelet/pod_resources.py);
- the control group of a pod that the claim was prepared for exists until the kubelet has ended it;
- a process in a pod of no other claim has a GPU of the claim open, and began after the claim was
  prepared. Monitoring also keeps GPUs open, but usually for longer.

What cannot be asked counts as running. Usually the kubelet's Unprepare comes first, and needs none
of this.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from msgspec import Struct

from dra_driver.claims.model.claim import ClaimUid, PodName
from dra_driver.claims.model.record import ClaimRecord
from dra_driver.devices.holders import Holder
from dra_driver.devices.model import GpuUuid
from dra_driver.errors import DeviceError, TransientError
from dra_driver.sharing.pod_groups import PodGroups


class PodHolder(Struct, frozen=True, kw_only=True):
    """A process in a pod that has a GPU open; it began at `began`, in seconds since the epoch."""

    process: Holder
    pod_uid: str
    began: float


class StillRunning:
    """Asks the node.

    `pods_with` returns the pods that have claims, and raises TransientError if it does not know.
    `groups` are where control groups of pods may be. `holders` returns who has a GPU open, nobody
    if processes are not seen.
    """

    def __init__(
        self,
        *,
        pods_with: Callable[[Collection[ClaimUid]], Mapping[ClaimUid, Sequence[PodName]]],
        groups: Iterable[PodGroups],
        holders: Callable[[GpuUuid], Iterable[PodHolder]],
    ) -> None:
        self._pods_with = pods_with
        self._groups = tuple(groups)
        self._holders = holders

    def why_unknown(self) -> str | None:
        """Return why the node cannot be asked now; None if it can."""
        if any(groups.tops() for groups in self._groups):
            return self.by_kubelet(ClaimUid(""))
        return "the control groups of the node's pods (kubepods) are not seen"

    def by_kubelet(self, uid: ClaimUid) -> str | None:
        """Return which pods have a claim according to the kubelet; None if it names none."""
        try:
            pods = self._pods_with([uid]).get(uid, ())
        except TransientError as error:
            return str(error)
        return f"the kubelet still runs it in pod {', '.join(map(str, pods))}" if pods else None

    def why(
        self, record: ClaimRecord, others: Iterable[ClaimRecord], written_at: float
    ) -> str | None:
        """Return why pods may still run with a recorded claim; None if none does.

        `others` are the records of other claims. The record was written at `written_at`, in seconds
        since the epoch.
        """
        return (
            self.why_unknown()
            or self.by_kubelet(record.ref.uid)
            or self._by_groups(record)
            or self._by_holders(record, others, written_at)
        )

    def _by_groups(self, record: ClaimRecord) -> str | None:
        for pod in record.pods:
            for groups in self._groups:
                try:
                    is_there = groups.find(pod.uid) is not None
                except DeviceError:  # it has two
                    is_there = True
                if is_there:
                    return f"pod {record.ref.namespace}/{pod.name} still has its control group"
        return None

    def _by_holders(
        self, record: ClaimRecord, others: Iterable[ClaimRecord], since: float
    ) -> str | None:
        known = {pod.uid for other in others for pod in other.pods}
        for gpu in record.held_gpus:
            for holder in self._holders(gpu):
                if holder.pod_uid not in known and holder.began >= since:
                    return f"{holder.process} of pod UID {holder.pod_uid} has {gpu} open"
        return None
