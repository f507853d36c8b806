"""Events about objects: what people read below `kubectl describe`.

The rules are in the API reference of events.k8s.io/v1: a note of at most 1 kB, a reporting instance
of at most 128 bytes, and the event in its object's namespace, or in `default` for an object without
one. Names are made as by client-go: the object's name, and the time. Nothing here talks to a
server.
"""

import zlib
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta

from msgspec import Struct

from resource_nvidia_com.printable import printable

_LONGEST_NOTE = 1024
_LONGEST_INSTANCE = 128
_LONGEST_NAME = 253
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


class Regarding(Struct, frozen=True, kw_only=True):
    """The object that an event is about; cluster-wide ones, such as a Node, have no namespace."""

    api_version: str
    kind: str
    namespace: str
    name: str
    uid: str

    @property
    def event_namespace(self) -> str:
        """The namespace of events about it."""
        return self.namespace or "default"


def about_node(name: str) -> Regarding:
    """Return what an event on a Node is about, with its name as UID, as in a kubelet's own."""
    return Regarding(api_version="v1", kind="Node", namespace="", name=name, uid=name)


class Reporter(Struct, frozen=True, kw_only=True):
    """The reporter: a qualified name such as `gpu.nvidia.com/dra-driver`, and its node."""

    controller: str
    instance: str


class Happening(Struct, frozen=True, kw_only=True):
    """What happened, at `time` (aware): reason and action in CamelCase, the note for people."""

    reason: str
    action: str
    note: str
    time: datetime


def utc_now() -> datetime:
    """Return the time of day."""
    return datetime.now(UTC)  # noqa: TID251 (told)


def warning_event(about: Regarding, what: Happening, reporter: Reporter) -> Mapping[str, object]:
    """Return the event of type Warning; a note that is too long is cut."""
    # Three digits after the microseconds, by which a pod differs from a claim of its name.
    apart = zlib.crc32(f"{about.kind} {about.uid} {what.reason}".encode()) % 1000
    stamp = f"{(what.time - _EPOCH) // _MICROSECOND * 1000 + apart:x}"
    name = about.name[: _LONGEST_NAME - len(stamp) - 1].rstrip("-.")
    return {
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        "metadata": {"name": f"{name}.{stamp}", "namespace": about.event_namespace},
        "type": "Warning",
        "reason": what.reason,
        "action": what.action,
        "note": _cut(printable(what.note), _LONGEST_NOTE),
        "eventTime": what.time.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
        "reportingController": reporter.controller,
        "reportingInstance": _cut(reporter.instance, _LONGEST_INSTANCE),
        "regarding": {
            "apiVersion": about.api_version,
            "kind": about.kind,
            **({"namespace": about.namespace} if about.namespace else {}),
            "name": about.name,
            "uid": about.uid,
        },
    }


def _cut(text: str, most: int) -> str:
    """Return as much of a text as fits into `most` bytes of UTF-8."""
    return text.encode()[:most].decode(errors="ignore")
