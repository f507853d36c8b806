"""What `dra-driver status` shows about shares: how devices are divided, used and limited. Pure."""

from collections import Counter
from collections.abc import Collection, Iterable, Sequence

from msgspec import Struct

from dra_driver.admin.output import aligned
from dra_driver.claims.model.record import ClaimRecord, DeviceRecord, RecordState
from dra_driver.devices.names import (
    MigName,
    ShareName,
    gpu_name,
    in_order,
    parse_device_name,
    undivided_name,
)
from dra_driver.devices.shares import ConsumedShare
from dra_driver.host.words import named
from dra_driver.shares.notes import NotedDevice, ShareNotes
from dra_driver.sharing.limiters import Limiter

_COLUMNS = (
    "DEVICE",
    "RESOURCE",
    "SHARES",
    "USED",
    "FREE",
    "SHARED BY",
    "MEMORY LIMITED BY",
    "NOTE",
)
_PART_COLUMNS = ("DEVICE", "PARTS", "MEMORY USED", "MEMORY FREE", "SMS USED", "SHARED BY", "NOTE")
_BLOCKED = "in use by a claim that holds all of it, or a part by capacity"
_LIMITED = {
    None: "not limited",
    Limiter.OVER_LIMIT.words(): "not limited in advance; containers that use more are reported or "
    "ended (--over-limit)",
}
_WAITS = "a new config waits"


def lines(notes: ShareNotes, records: Sequence[ClaimRecord]) -> list[str]:
    """Return lines for people; none on a node without shares."""
    held = _held(records)
    used, blocked = _used(held), _blocked(notes, held)
    rows = [
        (
            device.name,
            device.served_as,
            str(device.count),
            str(used[device.name]),
            "0" if device.name in blocked else str(max(0, device.count - used[device.name])),
            device.strategy,
            device.limited_by or "nothing",
            _WAITS if device.name in notes.waiting else _BLOCKED if device.name in blocked else "-",
        )
        for device in _in_order(notes)
    ]
    shown = ["", *aligned([_COLUMNS, *rows])] if rows else []
    shown += [f"  {text}" for text in _reasons(notes)]
    parts = list(map(_part_row, _parts(notes, held)))
    shown += ["", *aligned([_PART_COLUMNS, *parts])] if parts else []
    if rows or notes.problem:
        shown += ["", f"share config: {notes.origin or 'none has been read yet'}"]
    if notes.problem:
        shown.append(f"  the newest one cannot be used: {notes.problem}")
    shown += [f"  {remark}" for remark in notes.remarks]
    return shown + [f"  {_waits(name, records)}" for name in notes.waiting]


def as_json(notes: ShareNotes, records: Sequence[ClaimRecord]) -> dict[str, object]:
    """Return the same for programs."""
    held = _held(records)
    used, blocked = _used(held), _blocked(notes, held)
    return {
        "config": notes.origin,
        "problem": notes.problem,
        "remarks": notes.remarks,
        "devices": [
            {
                "name": device.name,
                "resource": device.served_as,
                "shares": device.count,
                "used": used[device.name],
                "heldOtherwise": device.name in blocked,
                "strategy": device.strategy,
                "memoryLimitedBy": device.limited_by,
                "whyNotBetter": device.why,
                "changeWaits": device.name in notes.waiting,
            }
            for device in _in_order(notes)
        ],
        "consumable": [
            {
                "name": part.name,
                "parts": part.count,
                "memoryMiB": part.memory_mib,
                "memoryUsedMiB": part.used_mib,
                "memoryFreeMiB": part.free_mib,
                "heldOtherwise": part.is_blocked,
                "coresUsed": part.cores,
                "sharesAtMost": part.most or None,
                "strategy": part.strategy,
            }
            for part in _parts(notes, held)
        ],
    }


class _Parts(Struct):
    """A device of which several claims can have parts; memory in MiB, cores in percent."""

    name: str
    memory_mib: int | None = None
    most: int = 0
    count: int = 0
    used_mib: int = 0
    cores: int = 0
    strategy: str | None = None
    is_blocked: bool = False

    @property
    def free_mib(self) -> int | None:
        """Memory that no claim has, in MiB; None for a device that is no longer published."""
        if self.memory_mib is None:
            return None
        return 0 if self.is_blocked else max(0, self.memory_mib - self.used_mib)


def _held(records: Iterable[ClaimRecord]) -> list[DeviceRecord]:
    """Return the devices that claims have, except by admin access."""
    return [device for record in records for device in record.devices if not device.admin_access]


def _parts(notes: ShareNotes, held: Iterable[DeviceRecord]) -> list[_Parts]:
    """Return the devices that are published for use in parts, or already used in parts."""
    by_name = {
        device.name: _Parts(name=device.name, memory_mib=device.memory_mib, most=device.shares)
        for device in notes.consumables
    }
    for entry in held:
        share = entry.device.share
        if isinstance(share, ConsumedShare):
            parts = by_name.setdefault(entry.name, _Parts(name=entry.name))
            parts.count += share.shares
            parts.used_mib += share.memory_mib
            parts.cores += share.cores
            parts.strategy = str(share.strategy)
    for name in _concerned(by_name, {entry.name for entry in held if entry.device.share is None}):
        by_name[name].is_blocked = True
    return sorted(by_name.values(), key=lambda parts: in_order(parts.name))


def _part_row(part: _Parts) -> tuple[str, ...]:
    free = "-" if part.free_mib is None else f"{part.free_mib} MiB"
    return (
        part.name,
        f"{part.count} of {part.most}" if part.most else str(part.count),
        f"{part.used_mib} MiB",
        free,
        f"{part.cores} %",
        part.strategy or "-",
        _BLOCKED if part.is_blocked else "-",
    )


def _in_order(notes: ShareNotes) -> list[NotedDevice]:
    return sorted(notes.devices, key=lambda device: in_order(device.name))


def _reasons(notes: ShareNotes) -> list[str]:
    """Return why there is no better limit on memory, each reason once."""
    devices: dict[tuple[str | None, str], list[str]] = {}
    for device in _in_order(notes):
        if device.why:
            devices.setdefault((device.limited_by, device.why), []).append(device.name)
    return [
        f"memory of {', '.join(names)} is {_LIMITED.get(by, f'limited by {by}')}: {why}"
        for (by, why), names in devices.items()
    ]


def _waits(device: str, records: Iterable[ClaimRecord]) -> str:
    """Return when the newest config takes effect on a device, and which claims delay it."""
    refs = sorted(
        str(record.ref)
        for record in records
        if record.state is not RecordState.RELEASED
        and _concerned({device}, {undivided_name(entry.name) for entry in _held([record])})
    )
    if not refs:
        return f"{device}: a new config takes effect when the driver next checks"
    claims = "this claim has" if len(refs) == 1 else f"these {len(refs)} claims have"
    return f"{device}: a new config takes effect when {claims} ended: {named(refs)}"


def _used(held: Iterable[DeviceRecord]) -> Counter[str]:
    """Return how many shares of each device claims have, by the device's name."""
    shares = (entry.name for entry in held if isinstance(parse_device_name(entry.name), ShareName))
    return Counter(map(undivided_name, shares))


def _blocked(notes: ShareNotes, held: Iterable[DeviceRecord]) -> set[str]:
    """Return the names of divided devices of which a claim has something other than a share."""
    names = {entry.name for entry in held}
    others = {name for name in names if not isinstance(parse_device_name(name), ShareName)}
    return _concerned({device.name for device in notes.devices}, others)


def _concerned(names: Collection[str], held: Collection[str]) -> set[str]:
    """Return the names of devices that are held, and of GPUs of which a MIG device is held."""
    parsed = (parse_device_name(name) for name in held)
    parents = {gpu_name(name.minor) for name in parsed if isinstance(name, MigName)}
    return {name for name in names if name in held or name in parents}
