"""The real API server's rules for ResourceSlices and Events that a GPU driver could break.

In: a new object and the stored one. Out: nothing, or a Refusal 422 that names every broken
field. Written from the API's documentation and independent of the driver's own code, so that the
two check each other. Sources: resource.k8s.io/v1 ResourceSlice, Kubernetes 1.36 limits; for Events
of events.k8s.io/v1, whose rules are stricter than core's, pkg/apis/core/validation/events.go.
"""

import re
from collections.abc import Iterator, Sequence
from typing import Any

from testbed.apiserver.kinds import Kind
from testbed.apiserver.store import Object, Refusal

_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_C_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,31}")
_LABEL_NAME = re.compile(r"([a-z0-9.-]{1,253}/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
_NUMBER = r"(0|[1-9][0-9]*)"
_SEMVER = re.compile(
    rf"{_NUMBER}\.{_NUMBER}\.{_NUMBER}"
    r"(-(0|[1-9]\d*|\d*[a-zA-Z-][0-9a-zA-Z-]*)(\.(0|[1-9]\d*|\d*[a-zA-Z-][0-9a-zA-Z-]*))*)?"
    r"(\+[0-9a-zA-Z-]+(\.[0-9a-zA-Z-]+)*)?",
    re.ASCII,
)
_QUANTITY = re.compile(
    r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([KMGTPE]i|[numkMGTPE]|[eE][+-]?[0-9]+)?", re.ASCII
)
_VALUES = {"int": int, "bool": bool, "string": str, "version": str}
_REPORTER = re.compile(
    r"([a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?/)?[A-Za-z0-9]([-\w.]{0,61}[A-Za-z0-9])?"
)
_LONGEST_WORD, _LONGEST_NOTE = 128, 1024
"""Of an Event, in bytes."""
_FORMER = ("deprecatedSource", "deprecatedFirstTimestamp", "deprecatedLastTimestamp")
_MUTABLE = {"metadata", "series"}

Problems = Iterator[tuple[str, str]]


def check_slice(new: Object, old: Object | None) -> None:
    """Refuse a ResourceSlice that the real API server would refuse; ignore every other kind."""
    if new["kind"] != "ResourceSlice":
        return
    problems = list(_problems_of_spec(new.get("spec") or {}))
    if old is not None:
        problems += _problems_of_change(new.get("spec") or {}, old["spec"])
    refuse(new, problems)


def refuse(
    item: Object, problems: Sequence[tuple[str, str]], group: str = "resource.k8s.io"
) -> None:
    """Refuse an object for the problems of its fields, if there are any."""
    if problems:
        kind, name = item["kind"], item["metadata"]["name"]
        text = ", ".join(f"{field}: {what}" for field, what in problems)
        raise Refusal(
            422,
            "Invalid",
            f'{kind}.{group} "{name}" is invalid: {text}',
            {"name": name, "causes": [{"field": f, "message": m} for f, m in problems]},
        )


def _problems_of_change(new: Object, old: Object) -> Problems:
    for field in ("driver", "nodeName"):
        if new.get(field) != old.get(field):
            yield f"spec.{field}", "field is immutable"
    if new.get("pool", {}).get("name") != old["pool"]["name"]:
        yield "spec.pool.name", "field is immutable"


def _problems_of_spec(spec: Object) -> Problems:
    driver = spec.get("driver", "")
    if not (len(driver) <= 63 and _SUBDOMAIN.fullmatch(driver)):
        yield "spec.driver", f"Invalid value: {driver!r}"
    pool = spec.get("pool", {})
    name = pool.get("name", "")
    if not (0 < len(name) <= 253 and all(_SUBDOMAIN.fullmatch(part) for part in name.split("/"))):
        yield "spec.pool.name", f"Invalid value: {name!r}"
    if pool.get("resourceSliceCount", 0) <= 0:
        yield "spec.pool.resourceSliceCount", "must be greater than zero"
    if pool.get("generation", 0) < 0:
        yield "spec.pool.generation", "must be greater than or equal to zero"
    ways = ("nodeName", "nodeSelector", "allNodes", "perDeviceNodeSelection")
    places = [key for key in ways if key in spec]
    if len(places) != 1 or not spec[places[0]]:
        what = f"exactly one of nodeName, nodeSelector, allNodes ... is required, not {places}"
        yield "spec", what
    yield from _problems_of_content(spec)


def _problems_of_content(spec: Object) -> Problems:
    devices, counters = spec.get("devices") or [], spec.get("sharedCounters") or []
    if devices and counters:
        yield "spec", "only one of devices or sharedCounters may be set"
    advanced = any(_is_advanced(device) for device in devices)
    most = 64 if advanced else 128
    if len(devices) > most:
        yield "spec.devices", f"Too many: {len(devices)}: must have at most {most} items"
    if len(counters) > 8:
        yield "spec.sharedCounters", f"Too many: {len(counters)}: must have at most 8 items"
    for index, counter_set in enumerate(counters):
        yield from _problems_of_counters(f"spec.sharedCounters[{index}]", counter_set)
    seen: set[str] = set()
    for index, device in enumerate(devices):
        path = f"spec.devices[{index}]"
        if device.get("name") in seen:
            yield f"{path}.name", f"Duplicate value: {device['name']!r}"
        seen.add(device.get("name", ""))
        yield from _problems_of_device(path, device)


def _is_advanced(device: Object) -> bool:
    lists = ("ints", "bools", "strings", "versions")
    attributes = device.get("attributes") or {}
    return bool(
        device.get("taints")
        or device.get("consumesCounters")
        or any(key in value for value in attributes.values() for key in lists)
    )


def _problems_of_counters(path: str, counter_set: Object) -> Problems:
    if not _LABEL.fullmatch(counter_set.get("name", "")):
        yield f"{path}.name", "must be a DNS label"
    counters = counter_set.get("counters") or {}
    if not 0 < len(counters) <= 32:
        yield f"{path}.counters", "must have 1 to 32 items"
    for name, counter in counters.items():
        if not _LABEL.fullmatch(name):
            yield f"{path}.counters[{name}]", "must be a DNS label"
        yield from _problems_of_quantity(f"{path}.counters[{name}].value", counter.get("value"))


def _problems_of_device(path: str, device: Object) -> Problems:
    if not _LABEL.fullmatch(device.get("name", "")):
        yield f"{path}.name", f"Invalid value: {device.get('name')!r}: must be a DNS label"
    attributes, capacity = device.get("attributes") or {}, device.get("capacity") or {}
    if len(attributes) + len(capacity) > 32:
        yield path, f"Too many: {len(attributes) + len(capacity)}: must have at most 32 items"
    for name, value in attributes.items():
        yield from _problems_of_name(f"{path}.attributes", name)
        yield from _problems_of_attribute(f"{path}.attributes[{name}]", value)
    for name, entry in capacity.items():
        yield from _problems_of_name(f"{path}.capacity", name)
        yield from _problems_of_quantity(f"{path}.capacity[{name}].value", entry.get("value"))
        if "requestPolicy" in entry and not device.get("allowMultipleAllocations"):
            yield f"{path}.capacity[{name}].requestPolicy", "allowMultipleAllocations must be true"
    yield from _problems_of_extras(path, device)


def _problems_of_extras(path: str, device: Object) -> Problems:
    consumed = device.get("consumesCounters") or []
    if len(consumed) > 2:
        yield f"{path}.consumesCounters", "must have at most 2 items"
    for index, entry in enumerate(consumed):
        counters = {"name": entry.get("counterSet", ""), "counters": entry.get("counters")}
        yield from _problems_of_counters(f"{path}.consumesCounters[{index}]", counters)
    taints = device.get("taints") or []
    if len(taints) > 16:
        yield f"{path}.taints", "must have at most 16 items"
    for index, taint in enumerate(taints):
        if not _LABEL_NAME.fullmatch(taint.get("key", "")):
            yield f"{path}.taints[{index}].key", "must be a label name"
        if taint.get("effect") not in {"NoSchedule", "NoExecute", "None"}:
            yield f"{path}.taints[{index}].effect", f"Unsupported value: {taint.get('effect')!r}"


def _problems_of_name(path: str, name: str) -> Problems:
    domain, slash, identifier = name.rpartition("/")
    if slash and not (len(domain) <= 63 and _SUBDOMAIN.fullmatch(domain)):
        yield f"{path}[{name}]", "the domain must be a DNS subdomain of at most 63 bytes"
    if not _C_IDENTIFIER.fullmatch(identifier):
        yield f"{path}[{name}]", "must be a C identifier of at most 32 bytes"


def _problems_of_attribute(path: str, value: dict[str, Any]) -> Problems:
    if len(value) != 1:
        yield path, f"exactly one value must be specified, not {sorted(value)}"
        return
    ((kind, content),) = value.items()
    if kind not in _VALUES or type(content) is not _VALUES[kind]:
        yield path, f"Invalid value: {value!r}"
    elif isinstance(content, str) and len(content.encode()) > 64:
        yield f"{path}.{kind}", "Too long: may not be more than 64 bytes"
    elif kind == "version" and not _SEMVER.fullmatch(str(content)):
        yield f"{path}.version", f"Invalid value: {content!r}: must be a semantic version"


def _problems_of_quantity(path: str, value: object) -> Problems:
    if not (isinstance(value, str) and _QUANTITY.fullmatch(value)):
        yield path, f"Invalid value: {value!r}: must be a quantity"


def without_device_fields(*fields: str) -> Any:
    """Return a rule that drops device fields silently, as a disabled feature gate does."""

    def drop(new: Object, _old: Object | None) -> None:
        for device in _devices(new):
            for field in fields:
                device.pop(field, None)

    return drop


def stamp_taints(new: Object, _old: Object | None) -> None:
    """Set a missing timeAdded of a taint, as the real API server does."""
    for device in _devices(new):
        for taint in device.get("taints") or ():
            taint.setdefault("timeAdded", "2026-01-02T03:04:05Z")


def _devices(new: Object) -> list[Object]:
    """The devices of a slice. A claim's `spec.devices` is something else."""
    return (new["spec"].get("devices") or []) if new["kind"] == "ResourceSlice" else []


def check_event(kind: Kind, namespace: str, new: Object, old: Object | None) -> None:
    """Refuse an Event that the real API server would refuse; ignore every other kind.

    Tests may store events that kubelets make by the core API, which requires less.
    """
    if kind.kind == "Event":
        problems = [*_of_words(new), *_of_facts(new, namespace)]
        problems += _changes_of_event(new, old) if old else ()
        refuse({"kind": kind.kind, **new}, problems, group=kind.group)


def _of_words(event: Object) -> Problems:
    if not _REPORTER.fullmatch(event.get("reportingController") or ""):
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


def _changes_of_event(new: Object, old: Object) -> Problems:
    for name in sorted(new.keys() | old.keys()):
        if name not in _MUTABLE and new.get(name) != old.get(name):
            yield name, "field is immutable"
