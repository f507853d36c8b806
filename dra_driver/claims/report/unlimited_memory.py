"""Posts Events on claims whose limits have no effect.

There are three cases: nothing limits the memory that a claim uses of a shared GPU; the limit in its
config is more than the device has; or it asked for a part of a device and got all of it.

In: the claims that have been prepared, and their records. Out: an Event with the reason and what to
do, once while the claim is prepared. It is posted after Prepare has answered: on the claim, and on
its pods, where people look who do not know the claim because they wrote resource names in limits.
"""

from functools import partial

from dra_driver.claims.model.claim import ClaimRef, ClaimUid
from dra_driver.claims.model.record import ClaimRecord
from dra_driver.claims.report.claim_events import ClaimEvents, about_claim, about_pod
from dra_driver.claims.report.later import Later
from dra_driver.claims.state.holdings import share_steps
from dra_driver.claims.state.records import RecordStore
from dra_driver.errors import UnavailableError
from dra_driver.sharing.steps import Backend, MpsDomain
from dra_driver.words import named
from resource_nvidia_com.printable import listed

NOT_LIMITED = "GPUMemoryNotLimited"
TOO_HIGH = "GPUMemoryLimitTooHigh"
WHOLE = "WholeDeviceAllocated"
"""Reasons of the Events."""


class UnlimitedMemory:
    """Has Events posted about prepared claims. Methods may be called from any thread."""

    def __init__(self, records: RecordStore, events: ClaimEvents, later: Later) -> None:
        self._records = records
        self._events = events
        self._later = later
        self._told: set[ClaimUid] = set()

    def prepared(self, ref: ClaimRef) -> None:
        """Take note that a claim was prepared, for the first time or again. Never blocks."""
        if ref.uid not in self._told:
            self._later.do(partial(self._tell, ref))

    def unprepared(self, ref: ClaimRef) -> None:
        """Take note that a claim was unprepared. Never blocks."""
        self._told.discard(ref.uid)

    def _tell(self, ref: ClaimRef) -> None:
        if ref.uid in self._told:
            return
        record = self._records.peek(ref.uid)
        if record is None:
            return
        notes = {
            NOT_LIMITED: _not_limited(record),
            TOO_HIGH: _too_high(record),
            WHOLE: _whole(record),
        }
        if any(notes.values()):
            self._told.add(ref.uid)  # set before posting, as it may be unprepared meanwhile
        told = [about_claim(ref), *(about_pod(ref.namespace, pod) for pod in record.pods)]
        try:
            for reason, note in notes.items():
                for about in told if note is not None else ():
                    self._events.post(
                        about, reason=reason, action="PreparingDevices", note=str(note)
                    )
        except UnavailableError:
            self._told.discard(ref.uid)
            raise


def _whole(record: ClaimRecord) -> str | None:
    """Return the requests for a part of a device that got all of it; None if there are none."""
    if not record.asked_parts:
        return None
    return (
        f"the claim asks for {listed(record.asked_parts)}: parts of devices are given out only "
        "where the driver runs with --consumable-shares (chart value consumableShares)"
    )


def _too_high(record: ClaimRecord) -> str | None:
    """Return the MPS limits that are more than the device has; None if there are none."""
    limits = [
        f"{asked} MiB for {entry.name}, which has {step.memory_mib(key)} MiB"
        for step in record.steps
        if isinstance(step, MpsDomain)
        for key, asked in step.too_high.items()
        for entry in record.devices
        if entry.device.key == key and not entry.admin_access
    ]
    if not limits:
        return None
    return (
        f"the pinned device memory limit is {listed(limits)}: programs may use all of its "
        "memory. Set a lower limit in the claim's mpsConfig"
    )


def _not_limited(record: ClaimRecord) -> str | None:
    """Return what to tell a claim; None if something limits the memory of all its shares."""
    loose = [step for step in share_steps(record) if step.memory.by is Backend.NOTHING]
    names = [
        entry.name for entry in record.devices if any(step.is_about(entry.device) for step in loose)
    ]
    if not names:
        return None
    reasons = "; ".join(dict.fromkeys(step.memory.why for step in loose))
    return (
        f"nothing limits the GPU memory that this claim uses with {named(names)}: {reasons}. "
        "Each tenant can take the memory of all others. For a limit, write memory: equal in the "
        "share config, share by MPS (Volta or newer), or use a GPU driver of R615 or newer and "
        "cgroup v2"
    )
