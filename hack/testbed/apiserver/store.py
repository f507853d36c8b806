"""Objects with resourceVersions, and the history that watches are fed from.

In: decoded objects. Out: stored copies, events, or a Refusal that becomes a Status. Rules:
Kubernetes API concepts and conventions: optimistic concurrency by resourceVersion, preconditions,
generation counts changes of spec, an update that changes nothing keeps the resourceVersion and
makes no event, a history that was compacted answers 410.
"""

import secrets
import threading
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, TypeVar

import msgspec

from testbed.apiserver.kinds import Kind

T = TypeVar("T")

Object = dict[str, Any]
Key = tuple[str, str, str]
"""plural, namespace (empty for cluster-scoped kinds), name."""


def copied(value: T) -> T:
    """Return a copy of values of JSON, in a third of the time of copy.deepcopy.

    Nodes with partitions have hundreds of devices, and tests look at them twenty times a second.
    """
    copy: T = msgspec.json.decode(msgspec.json.encode(value))
    return copy


class Refusal(Exception):  # noqa: N818 - the domain's word: an answer, not a fault of this server
    """An unsuccessful answer, as the fields of a Status object."""

    def __init__(self, code: int, reason: str, message: str, details: Object | None = None) -> None:
        super().__init__(message)
        self.code, self.reason, self.message = code, reason, message
        self.details = details or {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One change, as a watch of everything reports it, and the object `before`."""

    version: int
    type: str
    plural: str
    object: Object
    before: Object | None


@dataclass
class Store:
    """All objects. `rules` sees (new, old) before storing and may change new or raise Refusal."""

    rules: list[Callable[[Object, Object | None], None]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.changed = threading.Condition()
        self._objects: dict[Key, Object] = {}
        self._history: list[Event] = []
        self._snapshots: dict[int, list[Object]] = {}
        self._version = 100
        self._compacted = 100

    @property
    def version(self) -> int:
        with self.changed:
            return self._version

    def get(self, kind: Kind, namespace: str, name: str) -> Object:
        with self.changed:
            return copied(self._find(kind, namespace, name))

    def keep_snapshot(self, version: int, items: list[Object]) -> None:
        """Keep the objects of a list with more pages, until the history is compacted."""
        with self.changed:
            self._snapshots[version] = copied(items)

    def snapshot(self, version: int) -> tuple[list[Object], int]:
        """Return the objects of an earlier list, as they were then."""
        with self.changed:
            if version not in self._snapshots:
                raise Refusal(
                    410,
                    "Expired",
                    "The provided continue parameter is too old to display a consistent list "
                    "result. You can start a new list without the continue parameter.",
                )
            return copied(self._snapshots[version]), version

    def list(self, kind: Kind, namespace: str | None = None) -> tuple[list[Object], int]:
        """Return a consistent view of a collection in order of names, and its resourceVersion."""
        with self.changed:
            listed = [
                copied(stored)
                for (plural, in_namespace, _), stored in sorted(self._objects.items())
                if plural == kind.plural and namespace in {None, in_namespace}
            ]
            return listed, self._version

    def create(
        self,
        kind: Kind,
        namespace: str,
        body: Object,
        *,
        keep_status: bool,
        dry_run: bool = False,
    ) -> Object:
        new = copied(body)
        meta = new.setdefault("metadata", {})
        if not meta.get("name") and meta.get("generateName"):
            meta["name"] = meta["generateName"] + secrets.token_hex(3)
        name = meta.get("name")
        if not name:
            raise Refusal(422, "Invalid", "metadata.name: Required value: name or generateName")
        if meta.get("resourceVersion"):
            raise Refusal(
                400, "BadRequest", "resourceVersion should not be set on objects to be created"
            )
        with self.changed:
            if (kind.plural, namespace, name) in self._objects:
                raise Refusal(409, "AlreadyExists", f'{kind.plural} "{name}" already exists')
            if kind.namespaced:
                meta["namespace"] = namespace
            if kind.with_status and not keep_status:
                new.pop("status", None)
            new.update(apiVersion=kind.api_version, kind=kind.kind)
            meta["uid"] = (keep_status and meta.get("uid")) or str(uuid.uuid4())
            meta["generation"] = 1
            meta["creationTimestamp"] = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
            self._check(new, None)
            return new if dry_run else self._store("ADDED", kind, namespace, new)

    def update(
        self, kind: Kind, namespace: str, name: str, body: Object, *, status_only: bool = False
    ) -> Object:
        with self.changed:
            old = self._find(kind, namespace, name)
            new = copied(body)
            meta = new.setdefault("metadata", {})
            if meta.get("name", name) != name:
                raise Refusal(400, "BadRequest", "the name of the object does not match the URL")
            if meta.get("uid", old["metadata"]["uid"]) != old["metadata"]["uid"]:
                raise Refusal(
                    409, "Conflict", f"Precondition failed: UID in precondition: {meta['uid']}"
                )
            asked = meta.get("resourceVersion")
            if asked and asked != old["metadata"]["resourceVersion"]:
                raise Refusal(
                    409,
                    "Conflict",
                    f'Operation cannot be fulfilled on {kind.plural} "{name}": the object has been '
                    "modified; please apply your changes to the latest version and try again",
                )
            if status_only:
                new = copied(old) | {"status": new.get("status", {})}
            else:
                new["metadata"] = meta | {
                    key: old["metadata"][key]
                    for key in ("uid", "creationTimestamp", "generation", "resourceVersion", "name")
                }
                if kind.namespaced:
                    new["metadata"]["namespace"] = namespace
                if kind.with_status and "status" in old:
                    new["status"] = copied(old["status"])
            new.update(apiVersion=kind.api_version, kind=kind.kind)
            self._check(new, old)
            if new == old:
                return copied(old)
            if new.get("spec") != old.get("spec"):
                new["metadata"]["generation"] = old["metadata"]["generation"] + 1
            return self._store("MODIFIED", kind, namespace, new)

    def apply(
        self,
        kind: Kind,
        namespace: str,
        name: str,
        body: Object,
        change: Callable[[Object], Object],
    ) -> Object:
        """Store an object with an applied body, if the body names this object."""
        with self.changed:
            old = self._find(kind, namespace, name)
            meta = body.get("metadata", {})
            if meta.get("name", name) != name or meta.get("namespace", namespace) != namespace:
                raise Refusal(400, "BadRequest", "the name of the object does not match the URL")
            for key in ("uid", "resourceVersion"):
                if meta.get(key, old["metadata"][key]) != old["metadata"][key]:
                    raise Refusal(
                        409,
                        "Conflict",
                        f'Operation cannot be fulfilled on {kind.plural} "{name}": {key} in '
                        f"precondition: {meta[key]}, in object meta: {old['metadata'][key]}",
                    )
            new = change(copied(old))
            self._check(new, old)
            if new == old:
                return copied(old)
            return self._store("MODIFIED", kind, namespace, new)

    def delete(
        self, kind: Kind, namespace: str, name: str, preconditions: Object | None = None
    ) -> Object:
        with self.changed:
            old = self._find(kind, namespace, name)
            for key, wanted in (preconditions or {}).items():
                if old["metadata"].get(key) != wanted:
                    raise Refusal(
                        409,
                        "Conflict",
                        f"Precondition failed: {key} in precondition: {wanted}, "
                        f"{key} in object meta: {old['metadata'].get(key)}",
                    )
            del self._objects[kind.plural, namespace, name]
            self._version += 1
            gone = copied(old)
            gone["metadata"]["resourceVersion"] = str(self._version)
            self._tell("DELETED", kind, gone, gone)
            return copied(gone)

    def compact(self) -> None:
        """Forget the history: a watch from an older resourceVersion is answered with 410."""
        with self.changed:
            self._history.clear()
            self._snapshots.clear()
            self._compacted = self._version
            self.changed.notify_all()

    def events_after(self, version: int, kind: Kind) -> Iterator[Event]:
        """Return what happened after `version`; the caller holds `changed`."""
        if version < self._compacted:
            raise Refusal(
                410, "Expired", f"too old resource version: {version} ({self._compacted})"
            )
        return (
            event
            for event in list(self._history)
            if event.version > version and event.plural == kind.plural
        )

    def _find(self, kind: Kind, namespace: str, name: str) -> Object:
        stored = self._objects.get((kind.plural, namespace, name))
        if stored is None:
            group = f".{kind.group}" if kind.group else ""
            raise Refusal(
                404,
                "NotFound",
                f'{kind.plural}{group} "{name}" not found',
                {"name": name, "kind": kind.plural, "group": kind.group},
            )
        return stored

    def _check(self, new: Object, old: Object | None) -> None:
        for rule in self.rules:
            rule(new, old)

    def _store(self, change: str, kind: Kind, namespace: str, new: Object) -> Object:
        self._version += 1
        new["metadata"]["resourceVersion"] = str(self._version)
        key = (kind.plural, namespace, new["metadata"]["name"])
        before = self._objects.get(key)
        self._objects[key] = new
        self._tell(change, kind, new, before)
        return copied(new)

    def _tell(self, change: str, kind: Kind, stored: Object, before: Object | None) -> None:
        self._history.append(
            Event(
                version=self._version,
                type=change,
                plural=kind.plural,
                object=copied(stored),
                before=copied(before),
            )
        )
        self.changed.notify_all()
