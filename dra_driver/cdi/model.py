"""A CDI spec: its parts that this driver writes, as frozen values, and their layout.

Fields, their names and rules are those of the Container Device Interface, SPEC.md, and of its Go
library, with which containerd and CRI-O load files. A loader refuses unknown fields and drops the
whole file for one bad entry, so a claim would fail at container start with "unresolvable CDI
devices". The values come from cdi/driver_edits.py, cdi/devices.py and sharing/, and all of them are
made by this driver; what comes from outside, such as paths in settings, is checked where it comes
in. Host paths are as the container runtime sees them, and container paths are as the container sees
them. No file is touched here.
"""

from collections.abc import Iterable, Mapping
from itertools import chain
from typing import Any, Literal, TypeVar

import msgspec
from msgspec import Struct, field
from msgspec.structs import replace

T = TypeVar("T")

VENDOR = "k8s.gpu.nvidia.com"
CLASS = "claim"
KIND = f"{VENDOR}/{CLASS}"


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
    some = [each for each in entries if each]
    return some[0] if len(some) == 1 else tuple(dict.fromkeys(chain.from_iterable(some)))


def claim_device_name(uid: str, device: str, share_id: str | None = None) -> str:
    """Return the CDI name of a claim's device, or of the share of it that one request has."""
    return f"{uid}-{device}" if share_id is None else f"{uid}-{device}-{share_id}"


def claim_device_id(uid: str, device: str, share_id: str | None = None) -> str:
    """Return the fully qualified CDI name, `vendor/class=name`, that the kubelet is told."""
    return f"{KIND}={claim_device_name(uid, device, share_id)}"


def render(spec: Spec) -> dict[str, object]:
    """Return a spec as the CDI JSON object, its entries in a fixed order.

    Device nodes and mounts are sorted by path depth, then path, so that a mount never hides one
    below it and equal content gives equal bytes. Env and hooks keep their order, which matters.
    """
    document: dict[str, object] = {
        "cdiVersion": minimum_version(spec),
        "kind": KIND,
        "devices": [
            {"name": name, "containerEdits": _edits(edits)}
            for name, edits in sorted(spec.devices.items())
        ],
    }
    common = _edits(spec.edits)
    return document | {"containerEdits": common} if common else document


def minimum_version(spec: Spec) -> str:
    """Return the lowest CDI version that has every feature the spec uses.

    A runtime refuses versions that are newer than it knows.
    """
    every = [spec.edits, *spec.devices.values()]
    if any(gid for edits in every for gid in edits.additional_gids):
        return "0.7.0"
    starts_with_digit = any(name[:1].isdigit() for name in spec.devices)
    if starts_with_digit or any(node.host_path for edits in every for node in edits.device_nodes):
        return "0.5.0"
    return "0.3.0"


def _edits(edits: Edits) -> dict[str, object]:
    nodes = sorted(edits.device_nodes, key=lambda node: _depth_first(node.path))
    mounts = sorted(edits.mounts, key=lambda mount: _depth_first(mount.container_path))
    gids = sorted({gid for gid in edits.additional_gids if gid})
    ordered = replace(
        edits, device_nodes=tuple(nodes), mounts=tuple(mounts), additional_gids=tuple(gids)
    )
    document: dict[str, Any] = msgspec.to_builtins(ordered)
    for node in document.get("deviceNodes", ()):
        node |= {"type": "c", "permissions": "rwm"}
    return document


def _depth_first(path: str) -> tuple[int, str]:
    return path.count("/"), path
