"""Deaths of MPS daemons become events on the claim and its pods, each reported once."""

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

import make
from apiserver.server import ApiServer
from dra_driver.claims.checkpoint import RecordStore
from dra_driver.claims.model import ClaimUid
from dra_driver.claims.mps_events import FILE_NAME, ClaimEvents, EventTiming, MpsEvents
from dra_driver.errors import UnavailableError
from dra_driver.kube.kubeconfig import from_kubeconfig
from dra_driver.mps.domain import DomainId, State, Status, encode_status
from dra_driver.mps.files import MpsFiles
from dra_driver.mps.requests import DomainRequests

UID = "11111111-0000-4000-8000-000000000000"
DOMAIN = DomainId(UID)


class World:
    """One claim under MPS, its domain's status file, and an API server."""

    def __init__(self, folder: Path, server: ApiServer) -> None:
        self.folder, self.server = folder, server
        self.time = 0.0
        self.records = RecordStore(folder)
        self.records.write(make.record())
        server.put(make.claim_object("gpu-0"))
        self.files = MpsFiles(root=folder / "mps")
        self.files.make_folders()
        self.kube = from_kubeconfig(server.write_kubeconfig(folder / "kubeconfig"))

    def driver(self) -> MpsEvents:
        """What a driver that has just been started has."""
        return MpsEvents(
            DomainRequests(self.files.root, lambda: self.time),
            self.records,
            ClaimEvents(self.kube, node="node-1", now=lambda: datetime.now(UTC)),
            folder=self.files.root,
            clock=lambda: self.time,
            timing=EventTiming(look=0.01, retry=0.01),
        )

    def say(self, restarts: int, state: State = State.READY, reason: str = "") -> None:
        """Let the supervisor say how the domain is."""
        status = Status(id=DOMAIN, state=state, supervisor="s", restarts=restarts, reason=reason)
        self.files.status(DOMAIN).write_bytes(encode_status(status))

    def events(self) -> list[dict[str, Any]]:
        return self.server.objects("events")

    def regarding(self) -> list[tuple[str, str]]:
        return sorted((one["regarding"]["kind"], one["regarding"]["name"]) for one in self.events())


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with ApiServer() as server:
        made = World(tmp_path, server)
        yield made
        made.kube.close()


def test_a_healthy_daemon_is_not_reported(world: World) -> None:
    world.say(restarts=0)
    world.driver().look()
    assert world.server.seen() == []
    assert not (world.files.root / FILE_NAME).exists()


def test_a_death_is_reported_on_the_claim_and_on_its_pods(world: World) -> None:
    world.say(restarts=1)
    world.driver().look()
    assert world.regarding() == [("Pod", "pod"), ("ResourceClaim", "claim")]
    for event in world.events():
        assert (event["reason"], event["type"]) == ("MPSDaemonDied", "Warning")
        assert event["note"] == (
            "the MPS daemon of claim default/claim died: CUDA programs in the claim's containers "
            "have lost their GPU contexts and fail. Restart the pods; a new daemon serves them then"
        )
    assert {one["regarding"]["uid"] for one in world.events()} == {UID, "pod-uid"}


def test_a_death_is_reported_once_also_by_the_next_driver(world: World) -> None:
    world.say(restarts=1)
    driver = world.driver()
    driver.look()
    driver.look()
    world.driver().look()
    assert len(world.events()) == 2


def test_a_death_while_no_driver_ran_is_reported_by_the_next(world: World) -> None:
    world.say(restarts=1)
    world.driver().look()
    world.say(restarts=2)
    world.driver().look()
    assert len(world.events()) == 4
    assert any("died (death number 2):" in one["note"] for one in world.events())


def test_a_daemon_that_keeps_dying_is_reported_once_in_a_while(world: World) -> None:
    driver = world.driver()
    for deaths in (1, 2, 3):
        world.say(restarts=deaths)
        driver.look()
    assert len(world.events()) == 2
    world.time += 60
    driver.look()
    assert len(world.events()) == 4
    assert any("death number 3" in one["note"] for one in world.events())


@pytest.mark.parametrize(
    ("state", "reason", "said"),
    [
        (State.RESTARTING, "it is gone", "Restart the pods; a new daemon is being started"),
        (State.FAILED, "no libcuda", "Restart the pods; no new daemon can be started: no libcuda"),
    ],
)
def test_the_event_says_whether_there_is_a_new_daemon(
    world: World, state: State, reason: str, said: str
) -> None:
    world.say(restarts=1, state=state, reason=reason)
    world.driver().look()
    assert all(one["note"].endswith(said) for one in world.events())


def test_a_claim_that_was_prepared_anew_begins_at_none(world: World) -> None:
    driver = world.driver()
    world.say(restarts=1)
    driver.look()
    world.files.status(DOMAIN).unlink()
    driver.look()
    world.time += 60
    world.say(restarts=1)
    driver.look()
    assert len(world.events()) == 4


def test_an_api_server_that_is_away_gets_the_events_later(world: World) -> None:
    fault = world.server.fail("create", status=503, times=1000)
    world.say(restarts=1)
    driver = world.driver()
    with pytest.raises(UnavailableError):
        driver.look()
    fault.times = 0
    driver.look()
    assert len(world.events()) == 2


def test_a_driver_that_may_not_write_events_goes_on(world: World) -> None:
    world.server.fail("create", status=403, times=1000)
    world.say(restarts=1)
    driver = world.driver()
    driver.look()
    asked = len(world.server.seen())
    driver.look()
    assert len(world.server.seen()) == asked


@pytest.mark.parametrize("change", ["claim gone", "claim replaced", "record gone"])
def test_nothing_is_reported_of_a_claim_that_is_gone(world: World, change: str) -> None:
    match change:
        case "claim gone":
            world.server.delete_all("resourceclaims")
        case "claim replaced":
            world.server.delete_all("resourceclaims")
            world.server.put(make.claim_object("gpu-0", uid="another"))
        case _:
            world.records.delete(ClaimUid(UID))
    world.say(restarts=1)
    world.driver().look()
    assert world.events() == []


def test_the_file_of_what_was_reported_can_be_damaged(world: World) -> None:
    (world.files.root / FILE_NAME).write_bytes(b"\x00half a file")
    world.say(restarts=1)
    world.driver().look()
    assert len(world.events()) == 2


def test_its_thread_looks_until_it_is_stopped(world: World) -> None:
    world.server.fail("get", status=503, times=2)
    world.say(restarts=1)
    driver = world.driver()
    driver.start()
    assert world.server.wait_for(lambda: len(world.events()) == 2)
    driver.stop(10)
