"""Pods that have devices and do not start, because a driver refuses to prepare them.

The kubelet says it in an event of reason FailedPrepareDynamicResources, again at each try; the
claim stays allocated all the while, so that nobody else gets its devices. Without the permission to
read events nothing is said of it.
"""

from collections.abc import Iterable
from contextlib import suppress

from dra_driver.admin.api.reads import Reads, read, read_all
from dra_driver.dataclass import dataclass
from dra_driver.errors import ApiError, NotFoundError
from dra_driver.fields import Object, mapping, text
from dra_driver.kube.resource import EVENTS, PODS

_REASON = "FailedPrepareDynamicResources"
_LOOKED_AT = 10
"""So many pods with such events are asked for; each is a request."""

PodName = tuple[str, str]
"""Its namespace and name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """A pod, as namespace/name, and what its newest event says."""

    pod: str
    why: str


def refusals(api: Reads, asked: Iterable[PodName]) -> tuple[Refusal, ...]:
    """Return the pods that do not start, of these."""
    pods = frozenset(asked)
    said: dict[PodName, Object] = {}
    if pods:
        with suppress(ApiError):
            for event in read_all(api, EVENTS, f"reason={_REASON}"):
                about = mapping(event, "regarding")
                pod = (text(about, "namespace"), text(about, "name"))
                if pod in pods and text(event, "reason") == _REASON:
                    said[pod] = max(said.get(pod, event), event, key=_time)
    found = []
    for (namespace, name), newest in list(said.items())[:_LOOKED_AT]:
        with suppress(ApiError, NotFoundError):
            if _still_waits(read(api, PODS, name, namespace), newest):
                found.append(Refusal(pod=f"{namespace}/{name}", why=text(newest, "note")))
    return tuple(found)


def _still_waits(pod: Object, event: Object) -> bool:
    is_the_same = text(pod, "metadata", "uid") == text(event, "regarding", "uid")
    return is_the_same and text(pod, "status", "phase") == "Pending"


def _time(event: Object) -> str:
    return text(event, "deprecatedLastTimestamp") or text(event, "eventTime")
