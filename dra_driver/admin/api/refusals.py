"""What events report about pods: a driver refuses to prepare devices, or no claim is created.

The kubelet reports the first in an event of reason FailedPrepareDynamicResources, again at each
attempt; the claim stays allocated, so no other claim gets its devices. The second is reported by
the controller that creates claims from templates (FailedResourceClaimCreation), and by the
scheduler for claims that it creates for resource names: a quota, a policy or a webhook refuses
them. Without the permission to read events, neither is known.
"""

from collections.abc import Iterable
from contextlib import suppress

from msgspec import Struct

from dra_driver.admin.api.reads import Reads, read, read_all
from dra_driver.errors import ApiError, NotFoundError
from dra_driver.kube.fields import Object, mapping, text
from dra_driver.kube.resource import EVENTS, PODS
from dra_driver.usage.over_limit import KILLED, OVER

_REASON = "FailedPrepareDynamicResources"
_NOT_CREATED = "FailedResourceClaimCreation"
_NOT_SCHEDULED = "FailedScheduling"
_FORBIDDEN = "is forbidden: "
"""Part of the API server's message about an object that a quota or a policy refuses."""
_LOOKED_AT = 10
"""How many pods with such events are read; each is a request."""

PodName = tuple[str, str]
"""Its namespace and name."""


class Refusal(Struct, frozen=True, kw_only=True):
    """A pod, as namespace/name, and the text of its newest event."""

    pod: str
    why: str


def refusals(api: Reads, asked: Iterable[PodName]) -> tuple[Refusal, ...]:
    """Return which of these pods do not start."""
    said = _newest(api, _REASON, frozenset(asked))
    refused = []
    for (namespace, name), newest in list(said.items())[:_LOOKED_AT]:
        with suppress(ApiError, NotFoundError):
            if _still_waits(read(api, PODS, name, namespace), newest):
                refused.append(Refusal(pod=f"{namespace}/{name}", why=text(newest, "note")))
    return tuple(refused)


def why_no_claim(api: Reads, pod: Object) -> str:
    """Return what prevents a claim from being created for a pod; empty if nothing is known.

    Other reasons of the scheduler for not placing a pod are not returned.
    """
    for reason in (_NOT_CREATED, _NOT_SCHEDULED):
        note = text(_newest_of(api, reason, pod), "note")
        if note and (reason == _NOT_CREATED or _FORBIDDEN in note):
            return note
    return ""


def was_looked_at(api: Reads, pod: Object, scheduler: str) -> bool:
    """Tell whether a scheduler has reported an event about a pod."""
    with suppress(ApiError):
        return any(
            scheduler
            in (text(each, "reportingController"), text(each, "deprecatedSource", "component"))
            or text(each, "reason") == _NOT_SCHEDULED
            for each in read_all(api, EVENTS, f"regarding.uid={text(pod, 'metadata', 'uid')}")
        )
    return False


def over_limit(api: Reads, thing: Object) -> str:
    """Return the newest event about the GPU memory of a pod or claim, with its time; empty if none.

    The API server keeps an event for an hour, unless it is configured otherwise.
    """
    newest = max((_newest_of(api, reason, thing) for reason in (OVER, KILLED)), key=_time)
    return f"{_time(newest)[:19]}Z: {text(newest, 'note')}" if newest else ""


def _newest_of(api: Reads, reason: str, thing: Object) -> Object:
    metadata = mapping(thing, "metadata")
    name = (text(metadata, "namespace"), text(metadata, "name"))
    about = f"regarding.uid={text(metadata, 'uid')}"
    return _newest(api, reason, frozenset({name}), about).get(name, {})


def _newest(api: Reads, reason: str, pods: frozenset[PodName], *also: str) -> dict[PodName, Object]:
    """Return the newest event of a reason for each of these pods that has one."""
    said: dict[PodName, Object] = {}
    if pods:
        with suppress(ApiError):
            for event in read_all(api, EVENTS, ",".join((f"reason={reason}", *also))):
                about = mapping(event, "regarding")
                pod = (text(about, "namespace"), text(about, "name"))
                if pod in pods and text(event, "reason") == reason:
                    said[pod] = max(said.get(pod, event), event, key=_time)
    return said


def _still_waits(pod: Object, event: Object) -> bool:
    is_the_same = text(pod, "metadata", "uid") == text(event, "regarding", "uid")
    return is_the_same and text(pod, "status", "phase") == "Pending"


def _time(event: Object) -> str:
    return text(event, "deprecatedLastTimestamp") or text(event, "eventTime")
