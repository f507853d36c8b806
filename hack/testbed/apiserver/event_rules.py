"""The real API server's rules for Events of events.k8s.io/v1, which are stricter than for core's.

In: a new Event and the stored one. Out: nothing, or a Refusal 422 that names every broken field.
Source: Kubernetes' pkg/apis/core/validation/events.go (ValidateEventCreate, ValidateEventUpdate).
"""

import re

from testbed.apiserver.kinds import Kind
from testbed.apiserver.rules import Problems, refuse
from testbed.apiserver.store import Object

_NAME = re.compile(r"([a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?/)?[A-Za-z0-9]([-\w.]{0,61}[A-Za-z0-9])?")
_LONGEST_WORD, _LONGEST_NOTE = 128, 1024
"""In bytes."""
_FORMER = ("deprecatedSource", "deprecatedFirstTimestamp", "deprecatedLastTimestamp")
_MUTABLE = {"metadata", "series"}


def check_event(kind: Kind, namespace: str, new: Object, old: Object | None) -> None:
    """Refuse an Event that the real API server would refuse; ignore every other kind.

    Objects that tests store may be events that kubelets make by the core API, which asks for less.
    """
    if kind.kind == "Event":
        problems = [*_of_words(new), *_of_facts(new, namespace)]
        problems += _changes(new, old) if old else ()
        refuse({"kind": kind.kind, **new}, problems, group=kind.group)


def _of_words(event: Object) -> Problems:
    if not _NAME.fullmatch(event.get("reportingController") or ""):
        yield "reportingController", "must be a qualified name"
    for name in ("reportingInstance", "action", "reason"):
        size = len(str(event.get(name) or "").encode())
        if not 0 < size <= _LONGEST_WORD:
            yield name, f"must have 1 to {_LONGEST_WORD} characters"
    if event.get("type") not in {"Normal", "Warning"}:
        yield "type", f"has invalid value: {event.get('type')}"
    if len(str(event.get("note") or "").encode()) > _LONGEST_NOTE:
        yield "note", f"can have at most {_LONGEST_NOTE} characters"


def _of_facts(event: Object, namespace: str) -> Problems:
    if not event.get("eventTime"):
        yield "eventTime", "Required value"
    for name in _FORMER:
        if event.get(name):
            yield name, "needs to be unset"
    # Events about objects without a namespace may be in these two.
    regarding = (event.get("regarding") or {}).get("namespace")
    allowed = {regarding} if regarding else {"default", "kube-system"}
    if namespace not in allowed:
        yield "involvedObject.namespace", "does not match event.namespace"
    series = event.get("series")
    if series and (series.get("count", 0) < 2 or not series.get("lastObservedTime")):
        yield "series", "count should be at least 2, and lastObservedTime is required"


def _changes(new: Object, old: Object) -> Problems:
    for name in sorted(new.keys() | old.keys()):
        if name not in _MUTABLE and new.get(name) != old.get(name):
            yield name, "field is immutable"
