"""The last good share config of this node, kept on disk across restarts of the driver.

In: a config file's bytes, and where they come from. Out: the same, sealed, in a file of the driver.
So a driver that starts with a damaged config continues as before, and pods that have shares keep
what they have.
"""

from pathlib import Path

from msgspec import Struct

from dra_driver.errors import StateError
from dra_driver.host.envelope import MALFORMED, seal, unseal
from dra_driver.host.files import read_whole, write_whole

FILE = "share-config.json"
"""Its name in the driver's directory."""


class KeptConfig(Struct, frozen=True, kw_only=True):
    """A config as it was read, and where it came from, for people."""

    data: bytes
    origin: str


def keep(path: Path, config: KeptConfig) -> None:
    """Keep a config, unless it is kept already. Raises StateError."""
    if kept(path) == config:
        return
    payload = {"origin": config.origin, "data": config.data.decode(errors="surrogateescape")}
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, seal(payload), mode=0o600, durable=True)
    except OSError as error:
        raise StateError(f"{path} cannot be written: {error.strerror or error}") from error


def kept(path: Path) -> KeptConfig | None:
    """Return the config that is kept; None if there is none, or its file is damaged."""
    try:
        contents = read_whole(path)
        if contents is None:
            return None
        payload = unseal(contents[0])
        return KeptConfig(
            data=str(payload["data"]).encode(errors="surrogateescape"),
            origin=str(payload["origin"]),
        )
    except (OSError, StateError, *MALFORMED):
        return None
