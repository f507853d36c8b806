"""Answers to the kubelet, claim by claim, without gRPC."""

import threading
from collections.abc import Callable

import pytest

import make
from clock import Clock
from dra_driver.claims.model.claim import ClaimRef, ClaimUid
from dra_driver.claims.model.record import DeviceRecord
from dra_driver.errors import ConflictError
from dra_driver.kubelet.service import CALM_SECONDS, PARALLEL_CLAIMS, ClaimCalls
from dra_driver.ops.metrics import Metrics
from scrape import metrics_text

(DEVICE,) = make.record().devices


class RecordedClaims:
    """Claims whose outcome the test gives; keeps what was asked."""

    def __init__(self, outcome: Callable[[ClaimRef], tuple[DeviceRecord, ...]]) -> None:
        self.outcome = outcome
        self.asked: list[tuple[str, float]] = []

    def prepare(self, ref: ClaimRef, *, deadline: float) -> tuple[DeviceRecord, ...]:
        self.asked.append((ref.uid, deadline))
        return self.outcome(ref)

    def unprepare(self, ref: ClaimRef, *, deadline: float) -> None:
        self.asked.append((ref.uid, deadline))
        self.outcome(ref)


def ref(uid: str) -> ClaimRef:
    return ClaimRef(uid=ClaimUid(uid), namespace="ns", name=f"claim-{uid}")


def calls(claims: RecordedClaims, clock: Callable[[], float] | None = None) -> ClaimCalls:
    return ClaimCalls(claims, metrics(), clock=clock or Clock())


def metrics() -> Metrics:
    return Metrics(driver="gpu.nvidia.com", node="n", version="1")


def succeed(_: ClaimRef) -> tuple[DeviceRecord, ...]:
    return (DEVICE,)


def test_a_claim_named_twice_is_prepared_once() -> None:
    claims = RecordedClaims(succeed)
    answers = calls(claims).prepare([ref("a"), ref("a")], 45)
    assert list(answers) == ["a"]
    assert len(claims.asked) == 1


@pytest.mark.parametrize("operation", ["prepare", "unprepare"])
def test_a_claims_failure_stays_that_claims(operation: str) -> None:
    def outcome(claim: ClaimRef) -> tuple[DeviceRecord, ...]:
        if claim.uid == "bad":
            raise ConflictError("gpu-0 is held by ns/other: wait for its pod to end")
        return (DEVICE,)

    service = calls(RecordedClaims(outcome))
    answers = getattr(service, operation)([ref("bad"), ref("good")], 45)
    assert answers["bad"].error == "gpu-0 is held by ns/other: wait for its pod to end"
    assert answers["good"].error == ""
    assert service.running() == ()


@pytest.mark.parametrize(
    ("error", "text"),
    [(KeyError("gpu-7"), "internal error: KeyError: 'gpu-7'"), (ConflictError(), "ConflictError")],
)
def test_an_internal_fault_and_an_error_without_words_have_a_text(
    error: Exception, text: str
) -> None:
    def outcome(claim: ClaimRef) -> tuple[DeviceRecord, ...]:
        raise error

    answer = calls(RecordedClaims(outcome)).prepare([ref("a")], 45)[ClaimUid("a")]
    assert text in answer.error


@pytest.mark.parametrize(
    ("seconds", "granted"), [(45.0, 45.0), (None, 45.0), (9.0, 9.0), (1e12, 45.0)]
)
def test_the_work_learns_that_its_caller_is_gone(seconds: float | None, granted: float) -> None:
    claims = RecordedClaims(succeed)
    calls(claims).prepare([ref("a")], seconds)
    assert claims.asked == [("a", pytest.approx(1000.0 + granted))]


def test_a_call_without_a_caller_starts_nothing() -> None:
    claims = RecordedClaims(succeed)
    answers = calls(claims).prepare([ref("a"), ref("b")], 0.0)
    assert claims.asked == []
    assert all(
        "stopped waiting before this claim's turn" in answer.error for answer in answers.values()
    )


def test_claims_beyond_the_deadline_are_not_started() -> None:
    release = threading.Event()
    refs = [ref(f"{number}") for number in range(1000)]
    quick = {one.uid for one in refs[:40]}

    def outcome(claim: ClaimRef) -> tuple[DeviceRecord, ...]:
        if claim.uid not in quick:
            release.wait(30)
        return (DEVICE,)

    claims = RecordedClaims(outcome)
    service = calls(claims)
    try:
        answers = service.prepare(refs, 1.0)
        assert answers.keys() == {one.uid for one in refs}
        assert {uid for uid, answer in answers.items() if answer.devices} == quick
        assert all("not prepared within" in answers[one.uid].error for one in refs[40:])
    finally:
        release.set()
        while service.running():
            threading.Event().wait(0.01)
    assert len(claims.asked) == len(quick) + PARALLEL_CLAIMS


def test_background_work_waits_for_calls_and_a_moment_longer() -> None:
    clock = Clock()
    during: list[float] = []

    def outcome(_: ClaimRef) -> tuple[DeviceRecord, ...]:
        during.append(service.busy())
        return (DEVICE,)

    service = calls(RecordedClaims(outcome), clock)
    assert service.busy() == 0
    service.prepare([ref("a")], 45)
    assert during == [CALM_SECONDS]
    assert service.busy() == CALM_SECONDS
    clock.now += CALM_SECONDS
    assert service.busy() == 0


def test_listeners_hear_only_of_successes() -> None:
    prepared: list[str] = []
    unprepared: list[str] = []

    def outcome(claim: ClaimRef) -> tuple[DeviceRecord, ...]:
        if claim.uid == "bad":
            raise ConflictError("no")
        return (DEVICE,)

    service = ClaimCalls(RecordedClaims(outcome), metrics(), clock=Clock())
    service.prepared.add(
        lambda one: prepared.append(one.uid), lambda one: prepared.append(one.name)
    )
    service.unprepared.add(lambda one: unprepared.append(one.uid))
    service.prepare([ref("bad")], 45)
    service.prepare([ref("good")], 45)
    service.unprepare([ref("bad")], 45)
    service.unprepare([ref("good")], 45)
    assert prepared == ["good", "claim-good"]
    assert unprepared == ["good"]


def test_counts_tell_successes_from_failures() -> None:
    counted = metrics()

    def outcome(claim: ClaimRef) -> tuple[DeviceRecord, ...]:
        if claim.uid == "bad":
            raise ConflictError("no")
        return (DEVICE,)

    service = ClaimCalls(RecordedClaims(outcome), counted, clock=Clock())
    service.prepare([ref("bad"), ref("good")], 45)
    text = metrics_text(counted.wsgi_app)
    labels = 'driver="gpu.nvidia.com"'
    assert f'nvidia_dra_requests_total{{{labels},operation="prepare"}} 1.0' in text
    assert f'nvidia_dra_requests_inflight{{{labels},operation="prepare"}} 0.0' in text
    errors = f'nvidia_dra_node_prepare_errors_total{{{labels},error_type="prepare_devices"}} 1.0'
    assert errors in text
