"""What the driver keeps on disk about parts of GPUs: notes, and the last good share config.

The notes are about the share config's state, the divisions in force, what is published to be
consumed in parts, and the GPUs that refuse MIG devices. They are written when any of these change,
and only commands on the node read them. The config is kept as the bytes that were read: so a driver
that starts with a damaged one continues as before, and pods that have shares keep what they have.
Both files are sealed.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import TypeVar

from msgspec import Struct, field

from dra_driver.devices.model import GpuUuid, Refusal
from dra_driver.errors import StateError
from dra_driver.host.envelope import seal, unseal, value_of
from dra_driver.host.files import read_whole, write_whole

T = TypeVar("T")

FILE = "shares.json"
"""The name of the notes in the driver's directory."""

CONFIG_FILE = "share-config.json"
"""The name of the last good config there."""


class NotedDevice(Struct, frozen=True, kw_only=True, rename="camel"):
    """A device that is divided.

    `served_as` is the resource name that its shares serve, `limited_by` what limits the memory of a
    share (None for nothing), and `why` the reason why nothing better does.
    """

    name: str
    served_as: str
    count: int
    strategy: str
    limited_by: str | None
    why: str = ""


class NotedConsumable(Struct, frozen=True, kw_only=True):
    """A device that several claims can consume in part.

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
    _write(directory / FILE, notes, durable=False)


class KeptConfig(Struct, frozen=True, kw_only=True):
    """A config as it was read, and where it came from, for people."""

    data: bytes
    origin: str


def keep(path: Path, config: KeptConfig) -> None:
    """Keep a config, unless it is kept already. Raises StateError."""
    if kept(path) != config:
        _write(path, config, durable=True)


def kept(path: Path) -> KeptConfig | None:
    """Return the config that is kept; None if there is none, or its file is damaged."""
    return read_sealed(path, KeptConfig)


def read_sealed(path: Path, of: type[T]) -> T | None:
    """Return what a file of these has; None if there is none, or it is damaged."""
    try:
        contents = read_whole(path)
        return None if contents is None else value_of(unseal(contents[0]), of, "a note")
    except (OSError, StateError):
        return None


def _write(path: Path, value: Struct, *, durable: bool) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, seal(value), mode=0o600, durable=durable)
    except OSError as error:
        raise StateError(f"{path} cannot be written: {error.strerror or error}") from error
