"""The parts of a CDI spec that this driver writes, as frozen values.

Fields, their names and rules are those of the Container Device Interface, SPEC.md. The values come
from cdi/driver_edits.py, cdi/devices.py and sharing/; cdi/spec.py lays them out. Host
paths are as the container runtime sees them, and container paths are as the container sees them.
"""

from collections.abc import Iterable, Mapping
from itertools import chain
from typing import Literal, TypeVar

from msgspec import Struct, field

T = TypeVar("T")


class DeviceNode(Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """A character device that the container may use. With `major`, the host needs no node."""

    path: str
    host_path: str | None = None
    major: int | None = None
    minor: int | None = None
    file_mode: int | None = None
    gid: int | None = None


class Mount(Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """A bind mount into the container."""

    host_path: str
    container_path: str
    options: tuple[str, ...] = ()


class Hook(Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """An OCI hook; `path` is resolved on the host."""

    hook_name: Literal["createContainer"]
    path: str
    args: tuple[str, ...] = ()
    env: tuple[str, ...] = ()


class Edits(Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """Container edits. `env` entries are `NAME=value`."""

    env: tuple[str, ...] = ()
    device_nodes: tuple[DeviceNode, ...] = ()
    mounts: tuple[Mount, ...] = ()
    hooks: tuple[Hook, ...] = ()
    additional_gids: tuple[int, ...] = ()

    def __add__(self, other: "Edits") -> "Edits":
        """Return the edits of both without duplicates, beginning with those of `self`."""
        return merged(self, other)


class Spec(Struct, frozen=True, kw_only=True):
    """One CDI spec file: its devices by name, and the edits that all of them share."""

    devices: Mapping[str, Edits]
    edits: Edits = field(default_factory=Edits)


def merged(*parts: Edits) -> Edits:
    """Return the edits of all parts, in their order, without duplicates."""
    return Edits(
        env=_union(part.env for part in parts),
        device_nodes=_union(part.device_nodes for part in parts),
        mounts=_union(part.mounts for part in parts),
        hooks=_union(part.hooks for part in parts),
        additional_gids=_union(part.additional_gids for part in parts),
    )


def _union(entries: Iterable[tuple[T, ...]]) -> tuple[T, ...]:
    return tuple(dict.fromkeys(chain.from_iterable(entries)))
