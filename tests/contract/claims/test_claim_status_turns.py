"""Claims are told of when calls leave time for it, and not for what they were in between."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

import make
from dra_driver.claims.model.claim import ClaimRef, ClaimUid
from dra_driver.claims.report.status_writer import GIVES_WAY, WITHDRAW_AFTER
from worlds.claim_status import REF, Place
from worlds.process import serving_a_node


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    with serving_a_node() as server, closing(Place(tmp_path, server)) as made:
        yield made


def test_a_claim_that_was_given_back_before_its_turn_is_not_even_asked_for(place: Place) -> None:
    place.driver.prepare(place.put("gpu-1"))

    def unprepare() -> float:
        place.driver.unprepare(REF)
        place.busy = lambda: 0.0
        return 0.001

    place.busy = unprepare
    requests = len(place.server.seen())
    place.look()
    place.look(1000)
    assert len(place.server.seen()) == requests


def test_many_claims_are_written_one_by_one_among_calls(place: Place) -> None:
    for number in range(5):
        ref = ClaimRef(uid=ClaimUid(f"uid-{number}"), namespace="default", name=f"c-{number}")
        place.server.put(make.claim_object(f"gpu-{number}", uid=ref.uid, name=ref.name))
        place.driver.prepare(ref)
    waited: list[int] = []

    def busy() -> float:
        waited.append(place.writes())
        place.clock.now += GIVES_WAY / 5
        return 0.001

    place.busy = busy
    place.look()
    assert waited == [0, 1, 2, 3, 4]
    assert place.writes() == 5


def test_what_is_the_matter_with_devices_is_told_beside_calls(place: Place) -> None:
    place.driver.prepare(place.put("gpu-1"))

    def busy() -> float:
        place.writer.ring()
        return 0.001

    place.busy = busy
    place.look()
    assert place.writes() == 1


def test_only_claims_that_changed_are_looked_at(place: Place) -> None:
    place.driver.prepare(place.put("gpu-1"))
    other = ClaimRef(uid=ClaimUid("uid-1"), namespace="default", name="other")
    place.server.put(make.claim_object("gpu-2", uid=other.uid, name=other.name))
    place.driver.prepare(other)
    place.writer.look({other.uid})
    told = {
        one["metadata"]["name"]: bool(one["status"].get("devices"))
        for one in place.server.objects("resourceclaims")
    }
    assert told == {"claim": False, "other": True}
    place.driver.unprepare(other)
    place.writer.look({other.uid})
    place.clock.now += WITHDRAW_AFTER
    place.look()
    assert all(
        bool(one["status"].get("devices")) is (one["metadata"]["name"] == "claim")
        for one in place.server.objects("resourceclaims")
    )
