"""Who has more memory of a device than the limit: by what NVML, procfs and records say. Pure.

In: who uses a GPU (usage/model.py), and the records of claims. Out: the parties that have more than
they may. With shares a party are all containers of a claim, or of claims that pods have together:
a share is one, however many containers use it. Under MPS by a claim's config it is one container,
as such a limit is for each process (NVIDIA's MPS documentation).

Only those count of whom it is sure that they have the claim: pods that its record or the API server
names. A limit is known by the record, and a container by its control group; nothing that a tenant
writes is heeded. A process of which NVML gives no figure counts nothing.
"""

from collections.abc import Iterator, Mapping, Sequence

from msgspec import Struct

from dra_driver.claims.model.claim import ClaimRef, ClaimUid
from dra_driver.claims.model.record import ClaimRecord, DeviceRecord, RecordState
from dra_driver.claims.report.descriptions import memory_limit
from dra_driver.devices.shares import MIB
from dra_driver.errors import StateError
from dra_driver.sharing.steps import UseShares
from dra_driver.usage.model import DeviceUse, GpuUse, Known, User

CONTEXT_MIB = 510
"""The memory of a CUDA context with all SMs on an H100 (docs/hardware.md)."""


class Claimed(Struct, frozen=True, kw_only=True):
    """What a claim has of a device: the limit in MiB, and for shares the resource name, if any.

    `is_share`: the limit is one for all of the claim's containers.
    """

    ref: ClaimRef
    pods: frozenset[str]
    limit_mib: int
    is_share: bool
    served_as: str = ""


class Excess(Struct, frozen=True, kw_only=True):
    """A party that has more than its limit: users that have memory there, the greatest first."""

    device: str
    uuid: str
    claims: tuple[Claimed, ...]
    users: tuple[User, ...]
    used_bytes: int

    @property
    def limit_mib(self) -> int:
        """What they may have together."""
        return sum(claim.limit_mib for claim in self.claims)

    @property
    def party(self) -> tuple[str, ...]:
        """By what the same party is known in another look."""
        uids = sorted(claim.ref.uid for claim in self.claims)
        alone = [] if self.claims[0].is_share else [self.users[0].container_id]
        return (self.uuid, *uids, *alone)


def claimed(device: str, records: Sequence[ClaimRecord], known: Known) -> Iterator[Claimed]:
    """Yield what prepared claims with a limit have of a device, by its UUID."""
    for record in records:
        entries = [
            entry
            for entry in record.devices
            if entry.device.uuid == device and not entry.admin_access
        ]
        limit = _limit(record, entries)
        if limit is None:
            continue
        shares = [entry.device.share for entry in entries if entry.device.share is not None]
        division = shares[0].division if shares else None
        pods = [*record.pods, *known.reserved.get(record.ref.uid, ())]
        yield Claimed(
            ref=record.ref,
            pods=frozenset(pod.uid for pod in pods),
            limit_mib=limit,
            is_share=any(isinstance(step, UseShares) for step in record.steps),
            served_as=division.served_as if division is not None else "",
        )


def has_limit(record: ClaimRecord) -> bool:
    """Tell whether a claim is prepared with a limit on any of its devices."""
    return any(_limit(record, [entry]) is not None for entry in record.devices)


def _limit(record: ClaimRecord, entries: Sequence[DeviceRecord]) -> int | None:
    if record.state is not RecordState.PREPARED or not entries:
        return None
    try:
        return memory_limit(record, entries)
    except StateError:
        return None


def excesses(use: GpuUse, known: Known, *, allowance_mib: int) -> Iterator[Excess]:
    """Yield the parties that have more than their limit and the allowance."""
    for device in use.devices:
        limited = {claim.ref.uid: claim for claim in claimed(device.uuid, known.records, known)}
        unlimited = _unlimited(device.uuid, known, limited)
        for claims, users in _parties(device, list(limited.values()), unlimited):
            used = sum(map(_known_bytes, users))
            if used > MIB * (sum(claim.limit_mib for claim in claims) + allowance_mib):
                yield Excess(
                    device=device.name,
                    uuid=device.uuid,
                    claims=claims,
                    users=tuple(sorted(users, key=_known_bytes, reverse=True)),
                    used_bytes=used,
                )


def unsure(use: GpuUse, known: Known) -> Iterator[ClaimRecord]:
    """Yield the claims that a pod may have whom nothing names yet: the API server knows."""
    for device in use.devices:
        held = [
            record
            for record in known.records
            if any(entry.device.uuid == device.uuid for entry in record.devices)
        ]
        named = {pod.uid for record in held for pod in record.pods}
        strange = {user.namespace for user in device.users if user.pod_uid not in named}
        yield from (record for record in held if record.ref.namespace in strange)


def _unlimited(device: str, known: Known, limited: Mapping[ClaimUid, Claimed]) -> frozenset[str]:
    """Return the pods that have a device without a limit, too: they may take all of it."""
    return frozenset(
        pod.uid
        for record in known.records
        if record.state is RecordState.PREPARED
        and record.ref.uid not in limited
        and any(entry.device.uuid == device for entry in record.devices)
        for pod in (*record.pods, *known.reserved.get(record.ref.uid, ()))
    )


def _parties(
    device: DeviceUse, limited: Sequence[Claimed], unlimited: frozenset[str]
) -> Iterator[tuple[tuple[Claimed, ...], list[User]]]:
    """Yield the claims and the users of each party; who has no limit is in none."""
    parties: list[tuple[dict[ClaimUid, Claimed], list[User]]] = []
    for user in device.users:
        mine = {claim.ref.uid: claim for claim in limited if user.pod_uid in claim.pods}
        if not user.processes or not mine or user.pod_uid in unlimited:
            continue
        users = [user]
        if all(claim.is_share for claim in mine.values()):
            others = [party for party in parties if mine.keys() & party[0].keys()]
            for claims, theirs in others:
                mine |= claims
                users += theirs
            parties = [party for party in parties if party not in others]
            parties.append((mine, users))
        else:
            yield tuple(mine.values()), users
    yield from ((tuple(claims.values()), users) for claims, users in parties)


def _known_bytes(user: User) -> int:
    return sum(process.memory_bytes or 0 for process in user.processes)
