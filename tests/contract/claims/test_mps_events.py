"""Deaths of MPS daemons become events on the claim and its pods, each reported once."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from testbed.apiserver.server import ApiServer

import make
from dra_driver.claims.model.claim import ClaimRef, ClaimUid
from dra_driver.claims.report.claim_events import ClaimEvents
from dra_driver.claims.report.mps_events import (
    BETWEEN_EVENTS,
    FILE_NAME,
    IDLE_SECONDS,
    LOOK_SECONDS,
    MpsEvents,
)
from dra_driver.claims.state.ledger import Ledger
from dra_driver.errors import UnavailableError
from dra_driver.kube.kubeconfig import from_kubeconfig
from dra_driver.kube.outbox import Outbox
from dra_driver.mps.domain import DomainId, State, Status, encode, shared_domain
from dra_driver.mps.files import MpsFiles
from dra_driver.mps.requests import DomainRequests

UID = "11111111-0000-4000-8000-000000000000"
DOMAIN = DomainId(UID)
SHARED = shared_domain("node")


class Watching:
    """What looks at MPS daemons, one look after the other."""

    def __init__(self, events: MpsEvents, outbox: Outbox) -> None:
        self._events, self._outbox = events, outbox

    def look(self) -> None:
        self._outbox.put(("check MPS daemons",), self._events.watch)
        self._outbox.deliver()


class MpsClaim:
    """One claim under MPS, its domain's status file, and an API server."""

    def __init__(self, folder: Path, server: ApiServer) -> None:
        self.folder, self.server = folder, server
        self.time = 0.0
        self.records = Ledger(folder, boot_id="boot-1")
        self.records.write(make.record())
        server.put(make.claim_object("gpu-0"))
        self.files = MpsFiles(root=folder / "mps")
        self.files.make_folders()
        self.member(DOMAIN, make.record().ref.uid)
        self.outbox = Outbox(clock=lambda: self.time, jitter=lambda: 0.0)
        self.kube = from_kubeconfig(server.write_kubeconfig(folder / "kubeconfig"))

    def driver(self) -> "Watching":
        """What a driver that has just been started has."""
        domains = DomainRequests(self.files.root, lambda: self.time)
        events = ClaimEvents(self.kube, self.outbox, node="node-1")
        folder, clock = self.files.root, lambda: self.time
        made = MpsEvents(domains, self.records, events, self.outbox, folder=folder, clock=clock)
        return Watching(made, self.outbox)

    def say(
        self, restarts: int, state: State = State.READY, reason: str = "", domain: DomainId = DOMAIN
    ) -> None:
        """Let the supervisor say how the domain is."""
        status = Status(id=domain, state=state, supervisor="s", restarts=restarts, reason=reason)
        self.files.status(domain).write_bytes(encode(status))

    def join(self, *names: str) -> None:
        """Let more claims be prepared, each with a pod, and be members of the shared domain."""
        for name in names:
            ref = ClaimRef(uid=ClaimUid(f"uid-{name}"), namespace="default", name=name)
            self.records.write(replace(make.record(), ref=ref))
            self.server.put(make.claim_object("gpu-0", uid=ref.uid, name=name))
            self.member(SHARED, ref.uid)

    def member(self, domain: DomainId, uid: str) -> None:
        """Let a claim have joined a domain."""
        member = self.files.members(domain) / uid
        member.parent.mkdir(parents=True, exist_ok=True)
        member.touch()

    def events(self) -> list[dict[str, Any]]:
        return self.server.objects("events")

    def regarding(self) -> list[tuple[str, str]]:
        return sorted(
            (event["regarding"]["kind"], event["regarding"]["name"]) for event in self.events()
        )


@pytest.fixture
def claim(tmp_path: Path) -> Iterator[MpsClaim]:
    with ApiServer() as server:
        made = MpsClaim(tmp_path, server)
        yield made
        made.kube.close()


def test_a_healthy_daemon_is_not_reported(claim: MpsClaim) -> None:
    claim.say(restarts=0)
    claim.driver().look()
    assert claim.server.seen() == []
    assert not (claim.files.root / FILE_NAME).exists()


def test_a_death_is_reported_on_the_claim_and_on_its_pods(claim: MpsClaim) -> None:
    claim.say(restarts=1)
    claim.driver().look()
    assert claim.regarding() == [("Pod", "pod"), ("ResourceClaim", "claim")]
    for event in claim.events():
        assert (event["reason"], event["type"]) == ("MPSDaemonDied", "Warning")
        assert event["note"] == (
            "the MPS daemon of claim default/claim died: CUDA programs in the claim's containers "
            "have lost their GPU contexts and fail. Restart the pods; a new daemon serves them then"
        )
    assert {one["regarding"]["uid"] for one in claim.events()} == {UID, "pod-uid"}


def test_events_go_to_a_pod_group_in_place_of_its_pods(claim: MpsClaim) -> None:
    found = make.claim_object("gpu-0", uid="uid-g", name="shared")
    found["status"]["reservedFor"] = [make.pod_group("gang")]
    claim.server.put(found)
    events = ClaimEvents(claim.kube, claim.outbox, node="node-1")
    ref = ClaimRef(uid=ClaimUid("uid-g"), namespace="default", name="shared")
    events.post_on_claim(ref, reason="GPUNotWell", action="TaintingDevice", note="gpu-0: XID 79")
    claim.outbox.deliver()
    assert claim.regarding() == [("PodGroup", "gang"), ("ResourceClaim", "shared")]
    (about,) = [
        event["regarding"] for event in claim.events() if event["regarding"]["name"] == "gang"
    ]
    assert (about["apiVersion"], about["uid"]) == ("scheduling.k8s.io/v1beta1", "uid-of-gang")


def test_an_event_with_a_lost_reply_exists_once(
    claim: MpsClaim, monkeypatch: pytest.MonkeyPatch
) -> None:
    create = claim.kube.create

    def no_answer(*args: Any, **facts: Any) -> None:
        monkeypatch.undo()
        create(*args, **facts)
        raise UnavailableError("no answer")

    monkeypatch.setattr(claim.kube, "create", no_answer)
    claim.say(restarts=1)
    claim.driver().look()
    claim.time += 60
    claim.outbox.deliver()
    assert [one.status for one in claim.server.seen("create", "events")] == [201, 201, 409]
    assert claim.regarding() == [("Pod", "pod"), ("ResourceClaim", "claim")]


def test_each_pod_of_the_claim_gets_an_event(claim: MpsClaim) -> None:
    found = make.claim_object("gpu-0")
    (pod,) = found["status"]["reservedFor"]
    found["status"]["reservedFor"] = [pod, pod | {"name": "second", "uid": "second-uid"}]
    claim.server.delete_all("resourceclaims")
    claim.server.put(found)
    claim.say(restarts=1)
    claim.driver().look()
    assert claim.regarding() == [("Pod", "pod"), ("Pod", "second"), ("ResourceClaim", "claim")]


def test_a_death_is_reported_once_also_by_the_next_driver(claim: MpsClaim) -> None:
    claim.say(restarts=1)
    driver = claim.driver()
    driver.look()
    driver.look()
    claim.driver().look()
    assert len(claim.events()) == 2


def test_a_death_while_no_driver_ran_is_reported_by_the_next(claim: MpsClaim) -> None:
    claim.say(restarts=1)
    claim.driver().look()
    claim.say(restarts=2)
    claim.driver().look()
    assert len(claim.events()) == 4
    assert any("died (death number 2):" in event["note"] for event in claim.events())


def test_a_daemon_that_keeps_dying_is_reported_once_in_a_while(claim: MpsClaim) -> None:
    driver = claim.driver()
    for deaths in (1, 2, 3):
        claim.say(restarts=deaths)
        driver.look()
    assert len(claim.events()) == 2
    claim.time += 60
    driver.look()
    assert len(claim.events()) == 4
    assert any("death number 3" in event["note"] for event in claim.events())


@pytest.mark.parametrize(
    ("state", "reason", "said"),
    [
        (State.RESTARTING, "it is gone", "Restart the pods; a new daemon is being started"),
        (State.FAILED, "no libcuda", "Restart the pods; no new daemon can be started: no libcuda"),
    ],
)
def test_the_event_says_whether_there_is_a_new_daemon(
    claim: MpsClaim, state: State, reason: str, said: str
) -> None:
    claim.say(restarts=1, state=state, reason=reason)
    claim.driver().look()
    assert all(event["note"].endswith(said) for event in claim.events())


def test_a_claim_prepared_again_counts_from_zero(claim: MpsClaim) -> None:
    driver = claim.driver()
    claim.say(restarts=1)
    driver.look()
    claim.files.status(DOMAIN).unlink()
    driver.look()
    claim.time += 60
    claim.say(restarts=1)
    driver.look()
    assert len(claim.events()) == 4


def test_the_death_of_a_shared_daemon_is_reported_on_all_its_claims(claim: MpsClaim) -> None:
    claim.join("one", "two")
    claim.say(restarts=1, domain=SHARED)
    driver = claim.driver()
    driver.look()
    driver.look()
    claims = sorted(kind_name for kind_name in claim.regarding() if kind_name[0] != "Pod")
    assert claims == [("ResourceClaim", "one"), ("ResourceClaim", "two")]
    assert len(claim.events()) == 4
    notes = {event["note"] for event in claim.events()}
    assert (
        "the MPS daemon of claim default/one and others died: CUDA programs in the "
        "claim's containers have lost their GPU contexts and fail. Restart the pods; a new daemon "
        "serves them then"
    ) in notes


def test_an_unreadable_status_file_hides_no_other_domain(claim: MpsClaim) -> None:
    claim.join("one")
    claim.say(restarts=1, domain=SHARED)
    claim.files.status(DOMAIN).mkdir()
    claim.driver().look()
    assert ("ResourceClaim", "one") in claim.regarding()


def test_a_faulted_server_is_reported_once_until_it_recovers(claim: MpsClaim) -> None:
    driver = claim.driver()
    for state in (State.READY, State.FAULTED, State.FAULTED):
        claim.say(restarts=0, state=state, reason="FAULT: restart the pods")
        driver.look()
    assert claim.regarding() == [("Pod", "pod"), ("ResourceClaim", "claim")]
    for event in claim.events():
        assert (event["reason"], event["note"]) == ("MPSServerFault", "FAULT: restart the pods")
    # A domain that changes all the time is told of once in a while.
    for state in (State.READY, State.FAULTED):
        claim.say(restarts=0, state=state)
        driver.look()
    assert len(claim.events()) == 2
    claim.time += 60
    for state in (State.READY, State.FAULTED):
        claim.say(restarts=0, state=state)
        driver.look()
    assert len(claim.events()) == 4


def test_a_daemon_that_is_replaced_after_a_fault_is_reported_at_once(claim: MpsClaim) -> None:
    driver = claim.driver()
    claim.say(restarts=0, state=State.FAULTED)
    driver.look()
    claim.say(restarts=1, state=State.READY)
    driver.look()
    reasons = sorted(event["reason"] for event in claim.events())
    assert reasons == ["MPSDaemonDied"] * 2 + ["MPSServerFault"] * 2


@pytest.mark.parametrize("change", ["claim gone", "claim replaced", "record gone"])
def test_a_claim_that_is_gone_gets_no_reports(claim: MpsClaim, change: str) -> None:
    match change:
        case "claim gone":
            claim.server.delete_all("resourceclaims")
        case "claim replaced":
            claim.server.delete_all("resourceclaims")
            claim.server.put(make.claim_object("gpu-0", uid="another"))
        case _:
            claim.records.delete(ClaimUid(UID))
    claim.say(restarts=1)
    claim.driver().look()
    assert claim.events() == []


def test_the_file_of_what_was_reported_can_be_damaged(claim: MpsClaim) -> None:
    (claim.files.root / FILE_NAME).write_bytes(b"\x00half a file")
    claim.say(restarts=1)
    claim.driver().look()
    assert len(claim.events()) == 2


def test_it_checks_periodically_and_rarely_without_daemons(claim: MpsClaim) -> None:
    claim.driver().look()
    claim.say(restarts=1)
    claim.time += LOOK_SECONDS
    claim.outbox.deliver()
    assert claim.events() == []
    claim.time += IDLE_SECONDS
    claim.outbox.deliver()
    assert len(claim.events()) == 2
    claim.time += BETWEEN_EVENTS
    claim.outbox.deliver()
    claim.say(restarts=2)
    claim.time += LOOK_SECONDS
    claim.outbox.deliver()
    assert len(claim.events()) == 4
