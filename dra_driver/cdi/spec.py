"""A CDI spec as data, laid out for the file that cdi/store.py writes.

In: a `Spec` (cdi/model.py). Out: its JSON object. The rules are those of the Container Device
Interface, SPEC.md, and of its Go library, with which containerd and CRI-O load files. A loader
refuses unknown fields and drops the whole file for one bad entry, so a claim would fail at
container start with "unresolvable CDI devices". All that a spec has is made by this driver; what
comes from outside, such as paths in settings, is checked where it comes in. The declared version is
the lowest that has everything the spec uses, because a runtime refuses versions that are newer than
it knows. No file is touched here.
"""

from typing import Any

import msgspec
from msgspec.structs import replace

from dra_driver.cdi.model import Edits, Spec

VENDOR = "k8s.gpu.nvidia.com"
CLASS = "claim"
KIND = f"{VENDOR}/{CLASS}"


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
    """Return the lowest CDI version that has every feature the spec uses."""
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
