"""Who has more memory of a device than the limit, according to NVML, procfs and records. Pure.

In: the processes on a GPU, and the claims that have a limit there. Out: the parties that have more
than they may. With shares, a party is all containers of a claim, or of claims that pods have
together: a share is one, however many containers use it. With MPS by a claim's config, it is one
container, as such a limit is per process (NVIDIA's MPS documentation; k8s-device-plugin#594).

Only pods that certainly have the claim count: its record or the kubelet names them. The limit
comes from the record, and the container from the process's control group; nothing that a tenant
writes is believed. A process without a figure from NVML counts as 0.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence

from msgspec import Struct

from dra_driver.claims.model.claim import ClaimUid, ConsumerPod
from dra_driver.devices.shares import MIB
from dra_driver.usage.model import DeviceUse, Holding, User

OVER = "GPUMemoryOverLimit"
"""Reason of the Event about memory over the limit."""

KILLED = "GPUOOMKilled"
"""Reason of the Event about a container that was ended for that."""

_CONTEXT_MIB = 510
"""The memory of a CUDA context with all SMs on an H100 (docs/hardware.md)."""


class Excess(Struct, frozen=True, kw_only=True):
    """A party that has more than its limit. `tenants` begin with the largest."""

    device: str
    uuid: str
    claims: tuple[Holding, ...]
    tenants: tuple[User, ...]

    @property
    def used_bytes(self) -> int:
        """What they have together."""
        return sum(map(used_bytes, self.tenants))

    @property
    def limit_mib(self) -> int:
        """What they may have together."""
        return _limit(self.claims)

    @property
    def party(self) -> tuple[str, ...]:
        """What identifies the party in another look."""
        uids = sorted(claim.ref.uid for claim in self.claims)
        alone = () if self.claims[0].is_share else (self.tenants[0].container_id,)
        return (self.uuid, *uids, *alone)

    def pods(self) -> Iterator[tuple[str, ConsumerPod]]:
        """Yield the pods that have memory there, with their namespaces."""
        here = {tenant.pod_uid for tenant in self.tenants}
        pods = {
            pod.uid: (claim.ref.namespace, pod)
            for claim in self.claims
            for pod in claim.pods
            if pod.uid in here
        }
        yield from pods.values()


def excesses(device: DeviceUse, claims: Iterable[Holding]) -> Iterator[Excess]:
    """Yield the parties that have more of a device than their limit and a CUDA context."""
    of_pod: dict[str, list[Holding]] = {}
    for claim in claims:
        if claim.device == device.uuid:
            for uid in {pod.uid for pod in claim.pods}:
                of_pod.setdefault(uid, []).append(claim)
    for party, members in _parties(device.users, of_pod):
        if sum(map(used_bytes, members)) > MIB * (_limit(party) + _CONTEXT_MIB):
            greatest = sorted(members, key=used_bytes, reverse=True)
            yield Excess(
                device=device.name, uuid=device.uuid, claims=party, tenants=tuple(greatest)
            )


def used_bytes(tenant: User) -> int:
    """Return how much memory a container's processes have, as far as NVML says."""
    return sum(process.memory_bytes or 0 for process in tenant.processes)


def _limit(claims: Iterable[Holding]) -> int:
    return sum(claim.limit_mib or 0 for claim in claims)


def _parties(
    tenants: Iterable[User], of_pod: Mapping[str, Sequence[Holding]]
) -> Iterator[tuple[tuple[Holding, ...], list[User]]]:
    """Yield the claims and the containers of each party; those without a limit are in none."""
    parties: list[tuple[dict[ClaimUid, Holding], list[User]]] = []
    for tenant in tenants:
        mine = of_pod.get(tenant.pod_uid, ())
        if not mine or any(claim.limit_mib is None for claim in mine):
            continue
        if not all(claim.is_share for claim in mine):
            yield tuple(mine), [tenant]
            continue
        claims, members = {claim.ref.uid: claim for claim in mine}, [tenant]
        for other in [party for party in parties if party[0].keys() & claims.keys()]:
            parties.remove(other)
            claims.update(other[0])
            members += other[1]
        parties.append((claims, members))
    yield from ((tuple(claims.values()), members) for claims, members in parties)
