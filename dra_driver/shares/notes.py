"""What the driver notes about parts of GPUs for commands on its node, as bytes on disk and back.

In: the share config's state, the divisions in force, what is published to be consumed in parts, and
the GPUs that refuse MIG devices. Out: a sealed file in the driver's directory, written when any of
it has changed. Only commands read it.
"""

from collections.abc import Mapping
from pathlib import Path

import msgspec
from msgspec import Struct, field

from dra_driver.devices.model import GpuUuid, Refusal
from dra_driver.errors import StateError
from dra_driver.host.envelope import seal, unseal, value_of
from dra_driver.host.files import read_whole, write_whole

FILE = "shares.json"
"""Its name in the driver's directory."""


class NotedDevice(Struct, frozen=True, kw_only=True, rename="camel"):
    """A device that is divided.

    `served_as` is the resource name that its shares serve, `limited_by` what limits the memory of a
    share (None for nothing), and `why` why nothing better does.
    """

    name: str
    served_as: str
    count: int
    strategy: str
    limited_by: str | None
    why: str = ""


class NotedConsumable(Struct, frozen=True, kw_only=True):
    """A device of which several claims can have parts.

    Together they can have `memory_mib` MiB (0: the device reports none), in at most `shares`
    shares, one for each claim (0: any number).
    """

    name: str
    memory_mib: int = field(name="memoryMiB")
    shares: int


class ShareNotes(Struct, frozen=True, kw_only=True):
    """What is known about a node's shares, and about MIG devices that cannot be made.

    `origin` is where the config comes from, `problem` why the newest could not be used (None if it
    was). `remarks` are what has no effect or is not possible on this node, and what may end limits.
    `waiting` names the devices that are to be divided differently once no claim has any of them.
    `refused` are the GPUs on which no MIG device can be made at present.
    """

    origin: str = ""
    problem: str | None = None
    remarks: tuple[str, ...] = ()
    devices: tuple[NotedDevice, ...] = ()
    waiting: tuple[str, ...] = ()
    consumables: tuple[NotedConsumable, ...] = ()
    refused: Mapping[GpuUuid, Refusal] = field(default_factory=dict)


def write_notes(directory: Path, notes: ShareNotes) -> None:
    """Write the notes. Raises StateError."""
    path = directory / FILE
    try:
        write_whole(path, seal(msgspec.to_builtins(notes)), mode=0o600, durable=False)
    except OSError as error:
        raise StateError(f"{path} cannot be written: {error.strerror}") from error


def read_notes(directory: Path) -> ShareNotes:
    """Return the notes; empty ones if there are none, or they are damaged."""
    try:
        saved = read_whole(directory / FILE)
        return ShareNotes() if saved is None else value_of(unseal(saved[0]), ShareNotes, "notes")
    except (OSError, StateError):
        return ShareNotes()
