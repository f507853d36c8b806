"""The pods that claims are reserved for: whom it asks, when, and for how long."""

from collections.abc import Mapping
from typing import Any

import pytest
from msgspec.structs import replace

import make
from dra_driver.claims.model.claim import ClaimRef, ClaimUid, ConsumerPod
from dra_driver.claims.model.record import ClaimRecord, RecordState
from dra_driver.errors import ApiError, DriverError, NotFoundError, UnavailableError
from dra_driver.usage.reserved import ReservedPods, ReservedTiming

TIMING = ReservedTiming()


def record(name: str, **facts: object) -> ClaimRecord:
    ref = ClaimRef(uid=ClaimUid(f"uid-{name}"), namespace="team-a", name=name)
    return replace(make.record(), ref=ref, **facts)  # type: ignore[arg-type]


ONE, TWO = record("one"), record("two")


class Api:
    """Claims by name, each reserved for pods; a clock that each request moves on."""

    def __init__(self) -> None:
        self.pods: dict[str, list[str]] = {"one": ["a", "b"], "two": ["c"]}
        self.uids: dict[str, str] = {}
        self.error: DriverError | None = None
        self.bad = ""
        self.asked: list[str] = []
        self.now = 100.0
        self.takes = 0.0
        self.problems: list[str] = []
        self.reserved = ReservedPods(self, on_problem=self.problems.append, clock=lambda: self.now)

    def get_claim(self, namespace: str, name: str, *, timeout: float) -> Mapping[str, Any]:
        assert namespace == "team-a"
        assert 0 < timeout <= TIMING.look
        self.asked.append(name)
        self.now += self.takes
        if self.error is not None and self.bad in {"", name}:
            raise self.error
        if name not in self.pods:
            raise NotFoundError("no such claim", status=404)
        claim = make.claim_object()
        claim["metadata"] |= {"namespace": namespace, "name": name}
        claim["metadata"]["uid"] = self.uids.get(name, f"uid-{name}")
        claim["status"]["reservedFor"] = [
            {"resource": "pods", "name": f"pod-{pod}", "uid": f"uid-{pod}"}
            for pod in self.pods[name]
        ]
        return claim

    def found(self, *records: ClaimRecord) -> dict[str, list[str]]:
        return {
            str(uid): [pod.name for pod in pods] for uid, pods in self.reserved.of(records).items()
        }


def test_each_claims_pods_are_asked_for_and_remembered_for_a_while() -> None:
    api = Api()
    assert api.reserved.of([ONE])[ONE.ref.uid] == (
        ConsumerPod(name="pod-a", uid="uid-a"),
        ConsumerPod(name="pod-b", uid="uid-b"),
    )
    assert api.found(ONE, TWO) == {"uid-one": ["pod-a", "pod-b"], "uid-two": ["pod-c"]}
    assert api.asked == ["one", "two"]
    api.pods["one"] = ["b", "d"]
    api.now += TIMING.fresh
    assert api.found(ONE, TWO)["uid-one"] == ["pod-b", "pod-d"]
    assert api.found(TWO) == {"uid-two": ["pod-c"]}
    assert api.found(ONE) == {"uid-one": ["pod-b", "pod-d"]}
    assert api.asked == ["one", "two", "one", "two", "one"]


def test_a_claim_that_is_gone_or_another_one_has_no_pods() -> None:
    api = Api()
    del api.pods["one"]
    api.uids["two"] = "uid-of-another"
    assert api.found(ONE, TWO) == {}
    assert api.found(ONE, TWO) == {}
    assert api.asked == ["one", "two"]
    assert api.problems == []


def test_what_has_no_name_or_no_devices_is_not_asked_for() -> None:
    api = Api()
    nameless = replace(ONE, ref=replace(ONE.ref, namespace="", name=""))
    assert api.found(nameless, replace(TWO, state=RecordState.RELEASED)) == {}
    assert api.asked == []


def test_an_api_server_that_is_away_is_left_alone_for_a_while() -> None:
    api = Api()
    assert api.found(ONE) == {"uid-one": ["pod-a", "pod-b"]}
    api.now += TIMING.fresh
    api.error = UnavailableError("it may be restarting")
    for _ in range(2):
        assert api.found(ONE, TWO) == {"uid-one": ["pod-a", "pod-b"]}
    assert api.asked == ["one", "two"]
    api.now += TIMING.pause
    api.found(ONE, TWO)
    assert len(api.asked) == 3
    assert api.problems == ["it may be restarting"]
    api.now += TIMING.pause
    api.error = None
    assert set(api.found(ONE, TWO)) == {"uid-one", "uid-two"}


def test_one_that_refuses_is_left_alone_for_longer() -> None:
    api = Api()
    api.error = ApiError("it may not", status=403)
    api.found(ONE)
    api.now += TIMING.pause
    api.found(ONE)
    assert len(api.asked) == 1
    api.now += TIMING.refused_pause
    api.found(ONE)
    assert len(api.asked) == 2
    assert api.problems == ["it may not"]


def test_a_slow_one_is_asked_for_a_second_and_then_for_the_rest() -> None:
    api = Api()
    api.takes = 0.6
    three = record("three")
    api.pods["three"] = ["e"]
    assert set(api.found(ONE, TWO, three)) == {"uid-one", "uid-two"}
    assert api.asked == ["one", "two"]
    assert set(api.found(ONE, TWO, three)) == {"uid-one", "uid-two", "uid-three"}


@pytest.mark.parametrize(
    "error",
    [
        UnavailableError("its webhook fails"),
        ApiError("a policy", status=403),
        ApiError("no", status=405),
    ],
    ids=repr,
)
def test_a_claim_that_fails_keeps_no_other_from_being_asked_for(error: DriverError) -> None:
    api = Api()
    api.error, api.bad = error, "one"
    for pods in (["c"], ["d"], ["e"]):
        api.pods["two"] = pods
        api.found(ONE, TWO)
        api.now += TIMING.pause
        assert api.found(ONE, TWO) == {"uid-two": [f"pod-{pods[0]}"]}
        api.now += TIMING.fresh
    api.error = None
    api.now += TIMING.refused_pause
    assert set(api.found(ONE, TWO)) == {"uid-one", "uid-two"}
