"""A made-up cluster without what `dra-driver explain` names as in the way.

In: a case, and what is said of it. Out: the case with each obstacle taken away that is named, and
with nothing else changed. So what is said can be held against what the scheduler makes of it.
"""

import copy
from typing import Any

from allocation_cases import NODE, Case
from dra_driver.admin.explain.answers import NodeAnswer, RequestAnswer
from dra_driver.admin.explain.reasons import Kind, Reason

Object = dict[str, Any]
PLENTY = "1000"
_PLACES = ("allNodes", "nodeSelector", "nodeName")


def without(one: Case, answer: NodeAnswer) -> Case:
    """The case without the obstacles that the answer names."""
    cleared = _Cleared(copy.deepcopy(one))
    if answer.given_up is not None:
        cleared.give_up(str(answer.given_up), answer.given_up.selector)
    elif answer.together:
        cleared.together(answer)
    elif not any(request.devices for request in answer.requests):
        cleared.mend_pools()
    else:
        for request in _in_want(answer):
            cleared.request(request)
    return cleared.case


def _in_want(answer: NodeAnswer) -> list[RequestAnswer]:
    """The first alternative of each request for which no alternative has enough devices."""
    found: dict[tuple[str, str], list[RequestAnswer]] = {}
    for request in answer.requests:
        found.setdefault((request.claim, request.request.parent), []).append(request)
    return [each[0] for each in found.values() if not any(request.suffices for request in each)]


class _Cleared:
    def __init__(self, case: Case) -> None:
        self.case = case

    def _devices_of(self, claim: str) -> Object:
        (found,) = [
            one["spec"]["devices"]
            for one in self.case.claims
            if f"team/{one['metadata']['name']}" == claim
        ]
        return dict(found) and found

    def _entries(self, claim: str, request: str = "") -> list[Object]:
        """The parts of a claim that ask for devices."""
        return [
            entry
            for one in self._devices_of(claim)["requests"]
            if request in ("", one["name"])
            for entry in one.get("firstAvailable", [one.get("exactly")])
        ]

    def give_up(self, cause: str, selector: str) -> None:
        if selector:
            self._drop_selector(selector)
        elif "does not exist" in cause:
            name = cause.split()[2]
            self.case.classes.append({"metadata": {"name": name}, "spec": {"selectors": []}})
        elif "asks for more than" in cause:
            for entry in self._entries(cause.split()[1]):
                entry.update({"allocationMode": "ExactCount", "count": 1})
        elif "the pool" in cause:
            self.mend_pools()
        elif "a constraint of the claim" in cause:
            self._drop_constraints()
        else:
            raise AssertionError(cause)

    def _drop_selector(self, text: str) -> None:
        holders = [one["spec"] for one in self.case.classes]
        holders += [
            entry
            for claim in self.case.claims
            for entry in self._entries(f"team/{claim['metadata']['name']}")
        ]
        for holder in holders:
            holder["selectors"] = [
                selector
                for selector in holder["selectors"]
                if selector["cel"]["expression"] != text
            ]

    def _drop_constraints(self) -> None:
        for claim in self.case.claims:
            claim["spec"]["devices"].pop("constraints", None)

    def mend_pools(self) -> None:
        """Each pool is whole, well-formed, and the node's."""
        pools: dict[tuple[str, str], list[Object]] = {}
        for one in self.case.slices:
            spec = one["spec"]
            pools.setdefault((spec["driver"], spec["pool"]["name"]), []).append(spec)
        for specs in pools.values():
            names: set[str] = set()
            sets = [spec for spec in specs if spec.get("sharedCounters")]
            for spec in sets[1:]:
                spec["sharedCounters"] = []
            for spec in specs:
                spec["pool"] |= {"generation": 9, "resourceSliceCount": len(specs)}
                _place_here(spec)
                for device in spec.get("devices", []):
                    self._mend(device, names)
                    if not sets:
                        device.pop("consumesCounters", None)

    @staticmethod
    def _mend(device: Object, names: set[str]) -> None:
        for key in _PLACES:
            device.pop(key, None)
        while device["name"] in names:
            device["name"] += "-other"
        names.add(device["name"])
        for one in device.get("consumesCounters", []):
            one["counters"].pop("missing", None)

    def together(self, answer: NodeAnswer) -> None:
        """What the requests are in each other's way for: a constraint, or their number."""
        assert answer.together is not None
        text, names = answer.together.text, {holder.claim for holder in answer.together.holders}
        if names:
            self._end(names)
            return
        if "has the constraint" in text and "enough devices have" not in text:
            for claim in self.case.claims:
                if f"claim team/{claim['metadata']['name']} has the constraint" in text:
                    claim["spec"]["devices"].pop("constraints", None)
            return
        if "all constraints of the claims" in text:
            self._drop_constraints()
            return
        assert "counters or capacity" in text
        self.fewer()

    def fewer(self) -> None:
        """Less is asked for: fewer of a request, else a request less, else a claim less."""
        claim = self.case.claims[-1]
        requests = claim["spec"]["devices"]["requests"]
        entries = [
            entry
            for request in requests
            for entry in request.get("firstAvailable", [request.get("exactly")])
        ]
        many = [one for one in entries if one["allocationMode"] == "All" or one.get("count", 1) > 1]
        if many:
            for entry in many:
                entry.update({"allocationMode": "ExactCount", "count": 1})
        elif len(requests) > 1:
            gone = requests.pop()["name"]
            for constraint in claim["spec"]["devices"].get("constraints", []):
                named = constraint.get("requests", [])
                if gone in named:
                    named.remove(gone)
        elif len(self.case.claims) > 1:
            self.case.claims.pop()
        else:
            raise AssertionError("one device of one request is in nobody's way")

    def request(self, request: RequestAnswer) -> None:
        """What keeps devices from a request."""
        entries = self._entries(request.claim, request.request.parent)
        entry = entries[0]
        reasons = [
            (device.device, device.reason)
            for device in request.devices
            if device.reason is not None
        ]
        selected = request.selected
        if selected and len(selected) < request.request.count and not _any_shared(request):
            entry["count"] = len(selected)
            return
        kinds = {reason.kind for _, reason in reasons}
        if not selected:
            if kinds & {Kind.CLASS, Kind.CLASS_FAILS}:
                self._class(request.request.device_class)["selectors"] = []
            if kinds & {Kind.SELECTOR, Kind.FAILS}:
                entry["selectors"] = []
            if Kind.NODE in kinds:
                self.mend_pools()
            return
        if kinds & {Kind.CAPACITY}:
            entry.pop("capacity", None)
        if Kind.TAINT in kinds:
            entry["tolerations"] = [{"operator": "Exists"}]
        for _, reason in reasons:
            self._free(reason)

    def _class(self, name: str) -> Object:
        (found,) = [one["spec"] for one in self.case.classes if one["metadata"]["name"] == name]
        return dict(found) and found

    def _end(self, claims: set[str]) -> None:
        self.case.taken[:] = [
            one for one in self.case.taken if f"team/{one['metadata']['name']}" not in claims
        ]

    def _free(self, reason: Reason) -> None:
        names = {holder.claim for holder in reason.holders}
        self._end(names)
        if reason.kind is Kind.COUNTERS and not names:
            for one in self.case.slices:
                for each in one["spec"].get("sharedCounters", []):
                    for value in each["counters"].values():
                        value["value"] = PLENTY


def _place_here(spec: Object) -> None:
    for key in (*_PLACES, "perDeviceNodeSelection"):
        spec.pop(key, None)
    spec["nodeName"] = NODE["metadata"]["name"]


def _any_shared(request: RequestAnswer) -> bool:
    return any(one.device.shared for one in request.selected)
