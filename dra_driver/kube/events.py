"""Events about objects: what people read below `kubectl describe`.

The rules are in the API reference of events.k8s.io/v1: a note of at most 1 kB, a reporting instance
of at most 128 bytes, and the event in its object's namespace, or in `default` for an object without
one. Names are made as by client-go: the object's name, and the time.

Events are posted in the background (kube/outbox.py). One that the API server refuses is dropped: a
namespace may be deleted meanwhile, and logs and `dra-driver status` have the same facts.
"""

import zlib
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime, timedelta

from msgspec import Struct

from dra_driver.errors import StaleError
from dra_driver.host.words import cut
from dra_driver.kube.client import KubeClient
from dra_driver.kube.outbox import Message, Outbox
from dra_driver.kube.resource import EVENTS
from resource_nvidia_com.printable import printable

_REQUEST_SECONDS = 10.0
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


class Events:
    """Posts events of type Warning, in the name of a controller on one node."""

    def __init__(self, api: KubeClient, outbox: Outbox, *, controller: str, node: str) -> None:
        """Take the reporter: a qualified name such as `gpu.nvidia.com/dra-driver`, and its node."""
        self._api = api
        self._outbox = outbox
        self._controller = controller
        self._node = node

    def post_on_node(self, *, reason: str, action: str, note: str) -> None:
        """Have an event posted on the Node. Never blocks."""
        name = self._node  # also as UID, as in a kubelet's own events
        node = Regarding(api_version="v1", kind="Node", namespace="", name=name, uid=name)
        self.post(node, reason=reason, action=action, note=note)

    def post(self, about: Regarding, *, reason: str, action: str, note: str) -> None:
        """Have an event posted on one object, without asking whether it exists. Never blocks.

        Reason and action are in CamelCase; a note that is too long is cut.
        """
        now = datetime.now(UTC)  # noqa: TID251 (told)
        event = self.event(about, reason=reason, action=action, note=note, time=now)
        where = about.event_namespace

        def create() -> None:
            with suppress(StaleError):  # it is there, though no answer came
                self._api.create(EVENTS, event, namespace=where, timeout=_REQUEST_SECONDS)

        of = Message(kind="event", about={"regarding": f"{about.kind} {about.name}"})
        self._outbox.put(("event", about.kind, about.uid, reason, note), create, of)

    def event(
        self, about: Regarding, *, reason: str, action: str, note: str, time: datetime
    ) -> Mapping[str, object]:
        """Return the event, as of an aware time."""
        # Three digits after the microseconds, by which a pod differs from a claim of its name.
        apart = zlib.crc32(f"{about.kind} {about.uid} {reason}".encode()) % 1000
        stamp = f"{(time - _EPOCH) // _MICROSECOND * 1000 + apart:x}"
        name = about.name[: _LONGEST_NAME - len(stamp) - 1].rstrip("-.")
        return {
            "apiVersion": "events.k8s.io/v1",
            "kind": "Event",
            "metadata": {"name": f"{name}.{stamp}", "namespace": about.event_namespace},
            "type": "Warning",
            "reason": reason,
            "action": action,
            "note": cut(printable(note), _LONGEST_NOTE),
            "eventTime": time.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
            "reportingController": self._controller,
            "reportingInstance": cut(self._node, _LONGEST_INSTANCE),
            "regarding": {
                "apiVersion": about.api_version,
                "kind": about.kind,
                **({"namespace": about.namespace} if about.namespace else {}),
                "name": about.name,
                "uid": about.uid,
            },
        }
