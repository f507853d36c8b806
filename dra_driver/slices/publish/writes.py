"""Computes the writes that turn the existing slices on the API server into the desired ones. Pure.

These are deletes, updates and creates, in that order. Rules (KEP-4381): the scheduler uses a pool
only if it is complete, which means that as many slices of its newest generation exist as each of
them states. Writing one slice is atomic, writing several is not. The API server silently drops
fields of disabled features. It writes quantities in its own canonical form, so they are compared
by value.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum
from typing import TypeGuard

from msgspec import Struct
from msgspec.structs import replace

from dra_driver.kube.fields import Object, at, mapping, number, objects, text
from dra_driver.slices.pool import DesiredPool
from resource_nvidia_com.quantity import Quantity

_INDEX_PREFIX = re.compile(r"([0-9a-f]{5,15})-")


def owner_reference(name: str, uid: str) -> Object:
    """Return the reference to the Node, with which the slices are garbage-collected."""
    return {"apiVersion": "v1", "kind": "Node", "name": name, "uid": uid, "controller": True}


class Delete(Struct, frozen=True, kw_only=True):
    """Deletes a slice if it has not changed since it was read."""

    name: str
    uid: str
    resource_version: str


class Update(Struct, frozen=True, kw_only=True):
    """Replaces a slice if it has not changed since it was read."""

    name: str
    body: dict[str, object]


class Create(Struct, frozen=True, kw_only=True):
    """Creates the slice with an index in the pool."""

    index: int
    name: str
    body: dict[str, object]

    def renamed(self, name: str) -> "Create":
        """Return the same write with another name for the slice."""
        metadata = {**mapping(self.body, "metadata"), "name": name}
        return replace(self, name=name, body={**self.body, "metadata": metadata})


Write = Delete | Update | Create


class Settled(Struct, frozen=True, kw_only=True):
    """A write that the server did not store as requested; repeating it would change nothing."""

    asked: Object
    answered: Object


def writes_for(
    desired: DesiredPool,
    existing: Sequence[Object],
    *,
    owner: Object,
    settled: Mapping[str, Settled] | None = None,
) -> tuple[Write, ...]:
    """Return the writes that turn the existing slices into the desired ones, in order.

    The generation stays the same if at most one slice changes and none is new, because one write is
    atomic. Otherwise it rises and every slice is written, so a mixture never counts as complete.
    `existing` are all slices of this driver on this node, in any pool and made by anybody.
    `settled` are the writes that the server did not store as requested, by slice name.
    """
    known = settled or {}
    kept, obsolete = _match(desired, existing)
    generation = max(map(_generation, kept.values()), default=0)
    changed = [
        index
        for index, entry in sorted(kept.items())
        if not _serves(desired.spec(index, generation=generation), entry, known)
    ]
    missing = [index for index in range(len(desired.contents)) if index not in kept]
    if missing or len(changed) > 1:
        generation += 1
        changed = sorted(kept)
    disowned = {index for index, entry in kept.items() if not _is_owned(entry, owner)}
    writes: list[Write] = [_delete(entry) for entry in obsolete]
    writes += [
        _update(kept[index], desired.spec(index, generation=generation), owner)
        for index in sorted({*changed, *disowned})
    ]
    writes += [_create(desired, index, generation, owner) for index in missing]
    return tuple(writes)


def _serves(asked: Object, entry: Object, settled: Mapping[str, Settled]) -> bool:
    """Tell whether a slice is as requested, or as close to that as the server stores it."""
    actual = mapping(entry, "spec")
    agreed = settled.get(_name(entry))
    if agreed is not None and not any(differences(agreed.asked, asked)):
        return not any(differences(agreed.answered, actual))
    return not any(differences(asked, actual))


def _match(
    desired: DesiredPool, existing: Sequence[Object]
) -> tuple[dict[int, Object], list[Object]]:
    """Return the existing slice for each index, and the slices that are left over.

    The start of a slice's name is its index, so slices of NVIDIA's driver are taken over. Of two
    slices with the same index, the newer generation stays, or in a tie the one with our name.
    """
    kept: dict[int, Object] = {}
    obsolete: list[Object] = []

    def rank(entry: Object) -> tuple[int, bool, str]:
        index = _index(entry)
        ours = index is not None and _name(entry) == desired.slice_name(index)
        return _generation(entry), ours, _name(entry)

    for entry in sorted(existing, key=rank, reverse=True):
        index = _index(entry)
        is_of_pool = at(entry, "spec", "pool", "name") == desired.node_name
        if index is None or index >= len(desired.contents) or index in kept or not is_of_pool:
            obsolete.append(entry)
        else:
            kept[index] = entry
    return kept, sorted(obsolete, key=_name)


def _update(entry: Object, spec: dict[str, object], owner: Object) -> Update:
    """Return the write that replaces the spec; others' labels, annotations and references stay."""
    meta = {**mapping(entry, "metadata")}
    meta.pop("managedFields", None)
    others = [
        reference
        for reference in _references(entry)
        if not (reference.get("controller") or reference.get("kind") == "Node")
    ]
    meta["ownerReferences"] = [owner, *others]
    return Update(name=_name(entry), body=slice_body(meta, spec))


def _create(desired: DesiredPool, index: int, generation: int, owner: Object) -> Create:
    name = desired.slice_name(index)
    meta: dict[str, object] = {"name": name, "ownerReferences": [owner]}
    return Create(
        index=index, name=name, body=slice_body(meta, desired.spec(index, generation=generation))
    )


def _delete(entry: Object) -> Delete:
    meta = mapping(entry, "metadata")
    return Delete(
        name=_name(entry),
        uid=str(meta.get("uid", "")),
        resource_version=str(meta.get("resourceVersion", "")),
    )


def slice_body(metadata: dict[str, object], spec: dict[str, object]) -> dict[str, object]:
    """Return a ResourceSlice with this metadata and spec."""
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": metadata,
        "spec": spec,
    }


def _is_owned(entry: Object, owner: Object) -> bool:
    return any(
        all(reference.get(key) == value for key, value in owner.items())
        for reference in _references(entry)
    )


def _references(entry: Object) -> tuple[Object, ...]:
    return objects(entry, "metadata", "ownerReferences")


def _name(entry: Object) -> str:
    return text(entry, "metadata", "name")


def _generation(entry: Object) -> int:
    return number(entry, "spec", "pool", "generation")


def _index(entry: Object) -> int | None:
    match = _INDEX_PREFIX.match(_name(entry))
    return None if match is None else int(match[1], 16)


Path = tuple[str | int, ...]


class Kind(StrEnum):
    """How a field differs from what was requested."""

    DROPPED = "dropped"
    CHANGED = "changed"
    ADDED = "added"


class Difference(Struct, frozen=True, kw_only=True):
    """One field that is not as requested; `path` begins below `spec`."""

    kind: Kind
    path: Path

    def __str__(self) -> str:
        where = "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in self.path)
        return f"spec{where} {self.kind}"


_QUANTITIES = frozenset({"capacity", "counters"})
"""Below these keys, two strings are compared as quantities if both can be parsed as such."""


def differences(asked: object, actual: object, path: Path = ()) -> Iterator[Difference]:
    """Yield each field of `actual` that differs from `asked`, depth first and in a fixed order.

    An empty list or map equals an absent one, as in Go's omitempty.
    """
    if isinstance(asked, Mapping) and isinstance(actual, Mapping):
        for key in sorted({*asked, *actual}, key=str):
            yield from _field(asked.get(key), actual.get(key), (*path, key))
    elif _is_list(asked) and _is_list(actual):
        if len(asked) != len(actual):
            yield Difference(kind=Kind.CHANGED, path=path)
            return
        for index, (wanted, other) in enumerate(zip(asked, actual, strict=True)):
            yield from differences(wanted, other, (*path, index))
    elif not _same_value(asked, actual, path):
        yield Difference(kind=Kind.CHANGED, path=path)


def _field(asked: object, actual: object, path: Path) -> Iterator[Difference]:
    if _is_empty(asked) and _is_empty(actual):
        return
    if _is_empty(actual):
        yield Difference(kind=Kind.DROPPED, path=path)
    elif _is_empty(asked):
        yield Difference(kind=Kind.ADDED, path=path)
    else:
        yield from differences(asked, actual, path)


def _is_empty(value: object) -> bool:
    return value is None or (isinstance(value, Mapping | list | tuple) and not value)


def _is_list(value: object) -> TypeGuard[Sequence[object]]:
    return isinstance(value, Sequence) and not isinstance(value, str)


def _same_value(asked: object, actual: object, path: Path) -> bool:
    if type(asked) is type(actual) and asked == actual:
        return True
    if not (isinstance(asked, str) and isinstance(actual, str)):
        return False
    if _QUANTITIES.isdisjoint(path):
        return False
    try:
        return Quantity.parse(asked) == Quantity.parse(actual)
    except ValueError:
        return False
