"""The real API server's rules for drivers' entries in the status of ResourceClaims.

In: a new ResourceClaim and the stored one. Out: nothing, or a Refusal 422 that names every broken
field. Written from the API's documentation and independent of the driver's own code, so that the
two check each other. Sources: resource.k8s.io/v1 AllocatedDeviceStatus, meta/v1 Condition, and
KEP-4817; entries of devices that are given back are dropped here and not by the driver.
"""

import json
import re
from collections.abc import Iterator

from testbed.apiserver.rules import Problems, refuse
from testbed.apiserver.store import Object

_REASON = re.compile(r"[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?")
_TYPE = re.compile(r"([a-z0-9.-]{1,253}/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ")
_FIELDS = {"driver", "pool", "device", "shareID", "conditions", "data", "networkData"}
_NODE_FIELD = {"key": "metadata.name", "operator": "In"}

Key = tuple[str, str, str, str]


def check_claim_status(new: Object, old: Object | None) -> None:
    """Refuse a status that the real API server would refuse; drop entries of devices given back."""
    if new["kind"] != "ResourceClaim" or "devices" not in (new.get("status") or {}):
        return
    status, before = new["status"], allocated((old or {}).get("status") or {})
    now = allocated(status)
    given_back = before - now
    status["devices"] = [device for device in status["devices"] if key_of(device) not in given_back]
    if not status["devices"]:
        del status["devices"]
        return
    problems = [
        (f"status.devices[{index}]{field}", what)
        for index, entry in enumerate(status["devices"])
        for field, what in _problems(entry, now)
    ]
    keys = [key_of(device) for device in status["devices"]]
    problems += [
        ("status.devices", f"Duplicate value: {key}") for key in set(keys) if keys.count(key) > 1
    ]
    refuse(new, problems)


def check_bytes(old: Object, *, is_applied: bool) -> None:
    """Refuse a patch of a claim whose opaque configs the real API server would write differently.

    It keeps them as the bytes that were sent, and an allocation never changes. To apply, it decodes
    them and writes their keys in order; to merge, it escapes the characters < > and &. (It also
    removes blanks, which are not visible here.)
    """
    status = old.get("status") or {}
    configs = ((status.get("allocation") or {}).get("devices") or {}).get("config") or ()
    for config in configs:
        text = json.dumps((config.get("opaque") or {}).get("parameters"))
        in_order = json.dumps(json.loads(text), sort_keys=True)
        if set(text) & set("<>&") or (is_applied and text != in_order):
            what = "Invalid value: null: field cannot be modified once set"
            refuse(old, [("status.allocation", what)])


def check_granted(new: Object, old: Object, verb: str, node: str, *, may: bool) -> None:
    """Refuse a driver's change of entries that it may not make (Kubernetes 1.36 and newer).

    `may`: whether its role lets it change those on its own node, which is `node`.
    """
    if new["kind"] != "ResourceClaim" or _entries(new) == _entries(old):
        return
    selector = ((new["status"].get("allocation") or {}).get("nodeSelector")) or {}
    here = {"nodeSelectorTerms": [{"matchFields": [{**_NODE_FIELD, "values": [node]}]}]}
    is_here = selector == here
    if may and is_here:
        return
    verbs = (
        f"[associated-node:{verb} arbitrary-node:{verb}]" if is_here else f"[arbitrary-node:{verb}]"
    )
    what = (
        'Forbidden: changing status.devices requires resource="resourceclaims/driver", '
        f'verb="{verbs}" permission: denied'
    )
    refuse(new, [("status.devices", what)])


def without_device_status(new: Object, old: Object | None) -> None:
    """Drop the drivers' entries, as with the feature gate DRAResourceClaimDeviceStatus off."""
    if (
        new["kind"] == "ResourceClaim"
        and old is not None
        and "devices" not in (old.get("status") or {})
    ):
        new.get("status", {}).pop("devices", None)


def key_of(entry: Object) -> Key:
    driver, pool, device, share = (
        entry.get(name, "") for name in ("driver", "pool", "device", "shareID")
    )
    return driver, pool, device, share


def allocated(status: Object) -> set[Key]:
    """Return the allocated devices in the form of entries."""
    results = ((status.get("allocation") or {}).get("devices") or {}).get("results") or ()
    return {key_of(result) for result in results}


def _entries(item: Object) -> dict[Key, Object]:
    return {key_of(device): device for device in (item.get("status") or {}).get("devices") or ()}


def _problems(entry: Object, now: set[Key]) -> Problems:
    if key_of(entry) not in now:
        yield "", f"Invalid value: {key_of(entry)}: must be an allocated device in the claim"
    for name in entry.keys() - _FIELDS:
        yield f".{name}", "unknown field"
    conditions = entry.get("conditions") or []
    if len(conditions) > 8:
        yield ".conditions", f"Too many: {len(conditions)}: must have at most 8 items"
    types = [condition.get("type") for condition in conditions]
    if len(set(types)) != len(types):
        yield ".conditions", "Duplicate value: types"
    for index, told in enumerate(conditions):
        for field, what in _problems_of_condition(told):
            yield f".conditions[{index}].{field}", what
    if "data" in entry:
        yield from _problems_of_data(entry["data"])


def _problems_of_condition(condition: Object) -> Iterator[tuple[str, str]]:
    if not _TYPE.fullmatch(condition.get("type") or ""):
        yield "type", f"Invalid value: {condition.get('type')!r}"
    if condition.get("status") not in {"True", "False", "Unknown"}:
        yield "status", f"Unsupported value: {condition.get('status')!r}"
    if not _REASON.fullmatch(condition.get("reason") or "") or len(condition["reason"]) > 1024:
        yield "reason", f"Invalid value: {condition.get('reason')!r}"
    if not isinstance(condition.get("message"), str) or len(condition["message"]) > 32768:
        yield "message", "Too long: may not be more than 32768 bytes"
    if not _TIME.fullmatch(condition.get("lastTransitionTime") or ""):
        yield "lastTransitionTime", "Required value"


def _problems_of_data(data: object) -> Problems:
    if not isinstance(data, dict):
        yield ".data", "Invalid value: must be a valid JSON object"
    # As Go writes it: < > and & are escaped, other characters are not.
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"))
    size = len(text.encode()) + 5 * sum(map(text.count, "<>&"))
    if size > 10240:
        yield ".data", "Too long: may not be more than 10240 bytes"
