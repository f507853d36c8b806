"""What a claim has of a device, as its record and the kubelet say. Pure."""

from collections.abc import Iterator

from msgspec import Struct

from dra_driver.claims.model.claim import ClaimRef, ConsumerPod
from dra_driver.claims.model.record import ClaimRecord, DeviceRecord
from dra_driver.claims.report.descriptions import memory_limit
from dra_driver.devices.device import DeviceUuid
from dra_driver.errors import StateError


class Holding(Struct, frozen=True, kw_only=True):
    """What a claim has of a device: `entries` of its record, of which none or all `is_admin`.

    `limit_mib` is the memory that all of it may have; None without a limit. `later` are the claim's
    pods now, as far as the kubelet names them; the record has only the first.
    """

    record: ClaimRecord
    device: DeviceUuid
    entries: tuple[DeviceRecord, ...]
    is_admin: bool
    limit_mib: int | None
    later: tuple[ConsumerPod, ...] = ()

    @property
    def ref(self) -> ClaimRef:
        """The claim."""
        return self.record.ref

    @property
    def pods(self) -> tuple[ConsumerPod, ...]:
        """The pods that have or had the claim; one may be named twice."""
        return (*self.later, *self.record.pods)

    @property
    def is_share(self) -> bool:
        """Whether the limit is one for all of the claim's containers."""
        return any(entry.device.share is not None for entry in self.entries)

    @property
    def served_as(self) -> str:
        """The resource name of equal shares, empty for others."""
        division = self.entries[0].device.division
        return "" if division is None else division.served_as


def holdings(record: ClaimRecord, later: tuple[ConsumerPod, ...] = ()) -> Iterator[Holding]:
    """Yield what a claim has of each device, and by itself what it only sees (adminAccess)."""
    parts: dict[tuple[DeviceUuid, bool], list[DeviceRecord]] = {}
    for entry in record.devices:
        if entry.device.uuid is not None:
            parts.setdefault((entry.device.uuid, entry.admin_access), []).append(entry)
    for (uuid, is_admin), entries in parts.items():
        try:
            limit = memory_limit(record, entries)
        except StateError:
            limit = None
        yield Holding(
            record=record,
            device=uuid,
            entries=tuple(entries),
            is_admin=is_admin,
            limit_mib=limit,
            later=later,
        )
