"""Server-side apply of the test API server, by the rules of the real one."""

from typing import Any

import pytest
from testbed.apiserver.apply import applied
from testbed.apiserver.store import Refusal

import make

READY = {
    "type": "Ready",
    "status": "True",
    "reason": "Fine",
    "message": "",
    "lastTransitionTime": "2026-01-02T03:04:05Z",
}


def entry(device: str = "gpu-0", **fields: Any) -> dict[str, Any]:
    return {"driver": "gpu.nvidia.com", "pool": "node-1", "device": device, **fields}


def body(*devices: dict[str, Any]) -> dict[str, Any]:
    claim = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim"}
    return {**claim, "metadata": {"name": "claim"}, "status": {"devices": list(devices)}}


def old() -> dict[str, Any]:
    return make.claim_object("gpu-0", "gpu-1")


def apply(claim: Any, *devices: Any, who: str = "one", force: bool = False) -> Any:
    return applied(claim, body(*devices), manager=who, force=force)


def managers(claim: Any) -> list[str]:
    return [one["manager"] for one in claim["metadata"]["managedFields"]]


def test_what_is_applied_is_there_beside_what_was() -> None:
    found = apply(old(), entry(data={"uuid": "u"}, conditions=[READY]))
    assert found["status"]["devices"] == [entry(data={"uuid": "u"}, conditions=[READY])]
    assert found["status"]["allocation"] == old()["status"]["allocation"]
    assert found["status"]["reservedFor"] == old()["status"]["reservedFor"]
    (owner,) = found["metadata"]["managedFields"]
    key = 'k:{"device":"gpu-0","driver":"gpu.nvidia.com","pool":"node-1"}'
    owned = owner["fieldsV1"]["f:status"]["f:devices"][key]
    assert owned["."] == owned["f:data"] == {}  # data has one owner as a whole
    assert set(owned["f:conditions"]) == {'k:{"type":"Ready"}'}


def test_applied_again_it_changes_nothing() -> None:
    found = apply(old(), entry(data={"uuid": "u"}, conditions=[READY]))
    assert apply(found, entry(data={"uuid": "u"}, conditions=[READY])) == found


def test_what_a_manager_no_longer_applies_goes() -> None:
    found = apply(old(), entry(data={"a": 1}, conditions=[READY]), entry("gpu-1", data={"b": 2}))
    fewer = apply(found, entry(data={"c": 3}))
    assert fewer["status"]["devices"] == [entry(data={"c": 3})]
    none = applied(fewer, {**body(), "status": {}}, manager="one", force=False)
    assert "devices" not in none["status"]
    assert managers(none) == []


def test_fields_of_others_stay_and_a_conflict_is_named() -> None:
    found = apply(old(), entry(data={"a": 1}), who="other")
    with pytest.raises(Refusal, match='conflict with "other"') as refused:
        apply(found, entry(data={"a": 2}))
    assert refused.value.code == 409
    taken = apply(found, entry(data={"a": 2}), force=True)
    assert taken["status"]["devices"] == [entry(data={"a": 2})]
    # The entry itself is both's, so it stays when one of them goes.
    mine = applied(taken, {**body(), "status": {}}, manager="one", force=False)
    assert mine["status"]["devices"] == [entry()]
    assert managers(mine) == ["other"]


def test_shares_of_one_device_are_entries_of_their_own() -> None:
    found = apply(old(), entry(shareID="s1", data={"n": 1}), entry(shareID="s2", data={"n": 2}))
    whole = apply(found, entry(data={"n": 0}), who="other")
    by_share = {device.get("shareID"): device["data"]["n"] for device in whole["status"]["devices"]}
    assert by_share == {"s1": 1, "s2": 2, None: 0}


def test_a_request_without_a_manager_or_with_managed_fields_is_refused() -> None:
    with pytest.raises(Refusal, match="fieldManager is required"):
        applied(old(), body(entry()), manager=None, force=True)
    told = body(entry())
    told["metadata"]["managedFields"] = []
    with pytest.raises(Refusal, match="managedFields must be nil"):
        applied(old(), told, manager="one", force=True)
    other = body(entry()) | {"kind": "Pod"}
    with pytest.raises(Refusal, match="kind of the applied object"):
        applied(old(), other, manager="one", force=True)
