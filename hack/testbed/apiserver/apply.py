"""Server-side apply to the status of ResourceClaims, with field ownership as in the real one.

In: the stored object, what a manager applies, and the owners in `metadata.managedFields`. Out:
the object with the fields merged and the owners noted, or a Refusal 409 that names the conflicts.
Rules: Kubernetes API concepts, "Server-Side Apply", and the merge keys of resource.k8s.io/v1. In
the subresource `status` the rest of an applied object has no effect. Not here: ownership by
updates, which the real one also tracks; a field that was only updated has no owner.
"""

import copy
import json
from collections.abc import Iterator
from collections.abc import Set as AbstractSet
from datetime import UTC, datetime
from typing import Any

from testbed.apiserver.store import Object, Refusal

Path = tuple[str, ...]
"""The path of a field in the object, as in FieldsV1: `f:name`, or `k:{…}` for a list's entry."""

KEYS = {
    ("f:status", "f:devices"): ("driver", "device", "pool", "shareID"),
    ("f:status", "f:devices", "k:", "f:conditions"): ("type",),
    ("f:status", "f:reservedFor"): ("uid",),
}
"""Lists that are merged entry by entry, and the keys of their entries."""

ATOMIC = {("f:status", "f:devices", "k:", "f:data"), ("f:status", "f:allocation")}
"""Objects that have one owner as a whole, like lists that are not merged."""

_LONGEST_MANAGER = 128


def applied(old: Object, body: Object, *, manager: str | None, force: bool) -> Object:
    """Return the object after a manager has applied the status in `body`."""
    if not manager:
        raise _bad("fieldManager is required for apply patch")
    if len(manager.encode()) > _LONGEST_MANAGER or not manager.isprintable():
        raise _bad(f"fieldManager: Invalid value: {manager!r}")
    if "managedFields" in body.get("metadata", {}):
        raise _bad("metadata.managedFields must be nil")
    for name in ("apiVersion", "kind"):
        if body.get(name) != old[name]:
            raise _bad(f"{name} of the applied object is {body.get(name)!r}, not {old[name]!r}")
    fields = dict(_fields(("f:status",), body.get("status") or {}))
    others = {own["manager"]: _owned(own) for own in _managed(old) if own["manager"] != manager}
    before = next((_owned(own) for own in _managed(old) if own["manager"] == manager), set())
    new = copy.deepcopy(old)
    there = dict(_fields(("f:status",), new.get("status") or {}))
    conflicts = {
        (other, path)
        for other, owned in others.items()
        for path in owned & fields.keys()
        if path in there and there[path] != fields[path]
    }
    if conflicts and not force:
        named = ", ".join(f'conflict with "{who}": {"".join(path)}' for who, path in conflicts)
        raise Refusal(409, "Conflict", f"Apply failed with {len(conflicts)} conflicts: {named}")
    for other, path in conflicts:
        others[other].discard(path)
    kept = {path for owned in others.values() for path in owned}
    status = {path: value for path, value in there.items() if path not in before or path in kept}
    # An entry of a list is removed with its last owner, and stays while somebody owns a part.
    going = {path for path in before - fields.keys() if path[-1].startswith("k:")}
    going = {place for place in going if not any(path[: len(place)] == place for path in kept)}
    status = {
        path: value
        for path, value in status.items()
        if not any(path[: len(place)] == place for place in going)
    }
    new["status"] = _built(status | fields)
    _note(new, {**others, manager: set(fields)})
    return new


def _managed(item: Object) -> list[Object]:
    entries: list[Object] = item["metadata"].get("managedFields") or []
    return entries


def _note(item: Object, owners: dict[str, set[Path]]) -> None:
    """Write the owners; those whose fields are unchanged keep their time."""
    before = {entry["manager"]: entry for entry in _managed(item)}
    item["metadata"]["managedFields"] = [
        before[manager]
        if manager in before and _owned(before[manager]) == owned
        else {
            "manager": manager,
            "operation": "Apply",
            "apiVersion": item["apiVersion"],
            "time": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
            "fieldsType": "FieldsV1",
            "fieldsV1": _tree(owned),
            "subresource": "status",
        }
        for manager, owned in sorted(owners.items())
        if owned
    ]


def _fields(path: Path, value: Any) -> Iterator[tuple[Path, Any]]:
    """Yield each field that can have an owner of its own, with its value."""
    shape = _shape(path)
    if isinstance(value, dict) and shape not in ATOMIC:
        for name, member in value.items():
            yield from _fields((*path, f"f:{name}"), member)
    elif shape in KEYS:
        for entry in value or ():
            key = {name: entry[name] for name in KEYS[shape] if name in entry}
            if not key:
                raise _bad(f"{''.join(path)}: an entry has none of the keys {KEYS[shape]}")
            place = (*path, f"k:{json.dumps(key, sort_keys=True, separators=(',', ':'))}")
            yield place, key
            yield from _fields(place, entry)
    else:
        yield path, value


def _shape(path: Path) -> Path:
    return tuple("k:" if step.startswith("k:") else step for step in path)


def _built(fields: dict[Path, Any]) -> Object:
    """Return the object of fields: entries of lists in their order."""
    root: Object = {}
    for path, value in fields.items():
        *way, last = path[1:]
        place: Any = root
        for step, following in zip(way, path[2:], strict=True):
            place = _entered(place, step, [] if following.startswith("k:") else {})
        if last.startswith("k:"):
            _entered(place, last, {})
        else:
            place[last[2:]] = copy.deepcopy(value)
    return root


def _entered(place: Any, step: str, empty: Any) -> Any:
    if step.startswith("f:"):
        return place.setdefault(step[2:], empty)
    key = json.loads(step[2:])
    for entry in place:
        if entry.items() >= key.items() and entry.get("shareID") == key.get("shareID"):
            return entry
    place.append(dict(key))
    return place[-1]


def _tree(owned: AbstractSet[Path]) -> Object:
    """Return fields as FieldsV1: an entry of a list that is owned itself has a `.`."""
    root: Object = {}
    for path in sorted(owned):
        place = root
        for step in path:
            place = place.setdefault(step, {})
        if path[-1].startswith("k:"):
            place["."] = {}
    return root


def _owned(entry: Object) -> set[Path]:
    def paths(path: Path, tree: Object) -> Iterator[Path]:
        if not tree or "." in tree:
            yield path
        for step, below in tree.items():
            if step != ".":
                yield from paths((*path, step), below)

    return {path for path in paths((), entry["fieldsV1"]) if path}


def _bad(message: str) -> Refusal:
    return Refusal(400, "BadRequest", message)
