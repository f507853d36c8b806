"""What the driver notes of its shares for `dra-driver status`, as bytes on disk and back.

In: the share config's state, the divisions that hold, and what is published to be consumed in
parts. Out: a sealed file in the driver's directory, written when something of it has changed.
Nothing but status reads it.
"""

from pathlib import Path
from typing import Any

from msgspec import Struct

from dra_driver.errors import StateError
from dra_driver.host.envelope import MALFORMED, seal, unseal
from dra_driver.host.files import read_whole, write_whole

FILE = "shares.json"
"""Its name in the driver's directory."""


class NotedDevice(Struct, frozen=True, kw_only=True):
    """A device that is divided.

    `served_as` is the resource name that its shares serve, `limited_by` what limits the memory of a
    share (None for nothing), and `why` why nothing better does. If it `waits`, the config wants it
    otherwise, once nobody has a share.
    """

    name: str
    served_as: str
    count: int
    strategy: str
    limited_by: str | None
    waits: bool
    why: str = ""


class NotedConsumable(Struct, frozen=True, kw_only=True):
    """A device of which several claims can have parts.

    Together they can have `memory_mib` MiB (0: the device tells none), in at most `shares` shares,
    one for each claim (0: any number).
    """

    name: str
    memory_mib: int
    shares: int


class ShareNotes(Struct, frozen=True, kw_only=True):
    """What is known of a node's shares.

    `origin` is where the config comes from, `problem` why the newest could not be taken (None if it
    was), and `remarks` what of it has no effect or cannot be had on this node, and what may end
    limits. `devices` are in the order of their names.
    """

    origin: str = ""
    problem: str | None = None
    remarks: tuple[str, ...] = ()
    devices: tuple[NotedDevice, ...] = ()
    consumables: tuple[NotedConsumable, ...] = ()


def write_notes(directory: Path, notes: ShareNotes) -> None:
    """Write the notes. Raises StateError."""
    payload = {
        "origin": notes.origin,
        "problem": notes.problem,
        "remarks": notes.remarks,
        "devices": [
            {
                "name": one.name,
                "servedAs": one.served_as,
                "count": one.count,
                "strategy": one.strategy,
                "limitedBy": one.limited_by,
                "why": one.why,
                "waits": one.waits,
            }
            for one in notes.devices
        ],
        "consumables": [
            {"name": one.name, "memoryMiB": one.memory_mib, "shares": one.shares}
            for one in notes.consumables
        ],
    }
    path = directory / FILE
    try:
        write_whole(path, seal(payload), mode=0o600, durable=False)
    except OSError as error:
        raise StateError(f"{path} cannot be written: {error.strerror}") from error


def read_notes(directory: Path) -> ShareNotes:
    """Return the notes; empty ones where there are none, or they are damaged."""
    try:
        found = read_whole(directory / FILE)
        return ShareNotes() if found is None else _notes(unseal(found[0]))
    except (OSError, StateError, *MALFORMED):
        return ShareNotes()


def _notes(payload: Any) -> ShareNotes:
    problem = payload["problem"]
    return ShareNotes(
        origin=str(payload["origin"]),
        problem=None if problem is None else str(problem),
        remarks=tuple(map(str, payload["remarks"])),
        devices=tuple(
            NotedDevice(
                name=str(one["name"]),
                served_as=str(one["servedAs"]),
                count=int(one["count"]),
                strategy=str(one["strategy"]),
                limited_by=None if one["limitedBy"] is None else str(one["limitedBy"]),
                waits=bool(one["waits"]),
                why=str(one.get("why", "")),
            )
            for one in payload["devices"]
        ),
        consumables=tuple(
            NotedConsumable(
                name=str(one["name"]),
                memory_mib=int(one["memoryMiB"]),
                shares=int(one["shares"]),
            )
            for one in payload.get("consumables", ())
        ),
    )
