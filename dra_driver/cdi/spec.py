"""A CDI spec as data: checked against every rule a container runtime applies, then laid out.

In: a `Spec` (cdi/model.py). Out: the dict that cdi/store.py writes. The rules are those of the
Container Device Interface, SPEC.md, and of its Go library, with which containerd and CRI-O load
files. A loader refuses unknown fields and drops the whole file for one bad entry, so a claim would
fail at container start with "unresolvable CDI devices". So nothing is written unchecked. The
declared version is the lowest that has everything the spec uses, because a runtime refuses versions
that are newer than it knows. No file is touched here.
"""

import re
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
from msgspec.structs import replace

from dra_driver.cdi.model import DeviceNode, Edits, Spec
from dra_driver.errors import StateError

VENDOR = "k8s.gpu.nvidia.com"
CLASS = "claim"
KIND = f"{VENDOR}/{CLASS}"

_DEVICE_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9_.:-]*[A-Za-z0-9])?")
_UINT32_MAX = 2**32 - 1
_INT64_MAX = 2**63 - 1


def claim_device_name(uid: str, device: str, share_id: str | None = None) -> str:
    """Return the CDI name of a claim's device, or of the share of it that one request has."""
    return f"{uid}-{device}" if share_id is None else f"{uid}-{device}-{share_id}"


def claim_device_id(uid: str, device: str, share_id: str | None = None) -> str:
    """Return the fully qualified CDI name, `vendor/class=name`, that the kubelet is told."""
    return f"{KIND}={claim_device_name(uid, device, share_id)}"


def render_edits(edits: Edits) -> dict[str, object]:
    """Check container edits and return their JSON object; raises StateError as `render` does."""
    problem = next(_edit_problems(edits), None)
    if problem is not None:
        raise StateError(problem)
    return _edits(edits)


def render(spec: Spec, edits_json: Callable[[Edits], object] = render_edits) -> dict[str, object]:
    """Check a spec and return it as the CDI JSON object, its entries in a fixed order.

    Device nodes and mounts are sorted by path depth, then path, so that a mount never hides one
    below it and equal content gives equal bytes. Env and hooks keep their order, which matters.
    `edits_json` checks container edits and returns them as they appear in the object, possibly from
    a cache. Raises StateError if a rule of CDI is broken; the text names the entry and the rule.
    """
    problem = next(_problems(spec), None)
    if problem is not None:
        raise _refused(problem)
    document: dict[str, object] = {
        "cdiVersion": minimum_version(spec),
        "kind": KIND,
        "devices": [
            {"name": name, "containerEdits": _part(f"device {name!r}", edits, edits_json)}
            for name, edits in sorted(spec.devices.items())
        ],
    }
    common = _part("common edits", spec.edits, edits_json)
    return document if _is_empty(spec.edits) else document | {"containerEdits": common}


def _part(name: str, edits: Edits, edits_json: Callable[[Edits], object]) -> object:
    try:
        return edits_json(edits)
    except StateError as error:
        raise _refused(f"{name}: {error}") from error


def _refused(problem: str) -> StateError:
    return StateError(f"CDI spec {KIND} cannot be written: {problem}")


def minimum_version(spec: Spec) -> str:
    """Return the lowest CDI version that has every feature the spec uses."""
    every = [spec.edits, *spec.devices.values()]
    if any(gid for edits in every for gid in edits.additional_gids):
        return "0.7.0"
    starts_with_digit = any(name[:1].isdigit() for name in spec.devices)
    if starts_with_digit or any(node.host_path for edits in every for node in edits.device_nodes):
        return "0.5.0"
    return "0.3.0"


def _problems(spec: Spec) -> Iterator[str]:
    if not spec.devices:
        yield "it has no device, but needs at least one"
    for name, edits in spec.devices.items():
        if not _DEVICE_NAME.fullmatch(name):
            yield (
                f"device name {name!r} is not valid: it may have only letters, digits and"
                " _ - . :, and must start and end with a letter or digit"
            )
        if _is_empty(edits):
            yield f"device {name!r} has no container edits"


def _edit_problems(edits: Edits) -> Iterator[str]:
    yield from _env_problems(edits.env)
    for node in edits.device_nodes:
        for problem in _node_problems(node):
            yield f"device node {node.path!r}: {problem}"
    for mount in edits.mounts:
        if not (_is_absolute(mount.host_path) and _is_absolute(mount.container_path)):
            yield (
                f"mount {mount.host_path!r} to {mount.container_path!r}:"
                " both must be absolute paths"
            )
    for hook in edits.hooks:
        if not _is_absolute(hook.path):
            yield f"hook {hook.hook_name!r}: path {hook.path!r} is not absolute"
        for problem in _env_problems(hook.env):
            yield f"hook {hook.hook_name!r}: {problem}"
    for gid in edits.additional_gids:
        if not 0 <= gid <= _UINT32_MAX:
            yield f"additional group id {gid} is not a 32-bit unsigned number"


def _env_problems(env: tuple[str, ...]) -> Iterator[str]:
    for entry in env:
        # NUL is refused because execve cannot pass it on, and no loader strips it.
        if entry.find("=") < 1 or "\0" in entry:
            yield f"env {entry!r} is not of the form NAME=value"


def _node_problems(node: DeviceNode) -> Iterator[str]:
    if not _is_absolute(node.path):
        yield "the path is not absolute"
    if node.host_path is not None and not _is_absolute(node.host_path):
        yield f"host path {node.host_path!r} is not absolute"
    limits = {"major": _INT64_MAX, "minor": _INT64_MAX, "file_mode": _UINT32_MAX}
    for field, largest in (limits | {"gid": _UINT32_MAX}).items():
        value = getattr(node, field)
        if value is not None and not 0 <= value <= largest:
            yield f"{field} {value} is not between 0 and {largest}"


def _is_absolute(path: str) -> bool:
    return path.startswith("/") and "\0" not in path


def _is_empty(edits: Edits) -> bool:
    # The loader ignores group 0, so edits with nothing else are empty to it.
    return not (
        edits.env or edits.device_nodes or edits.mounts or edits.hooks or any(edits.additional_gids)
    )


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
