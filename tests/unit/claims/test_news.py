"""What calls have done is told late, for many claims at once, and not lost."""

from collections.abc import Collection

from dra_driver.claims.model.claim import ClaimRef, ClaimUid
from dra_driver.claims.report.news import ClaimNews

A, B = (ClaimRef(uid=ClaimUid(uid), namespace="ns", name=uid) for uid in "ab")


class Told:
    """News, and all that was told."""

    def __init__(self, look: float = 0.5) -> None:
        self.busy = 0.0
        self.claims: list[tuple[list[str], list[str]]] = []
        self.released = 0
        self.news = ClaimNews(lambda: self.busy, look_seconds=look, longest=3.0)
        self.news.changed.add(self._changed)
        self.news.released.add(self._released)

    def _changed(self, prepared: Collection[ClaimRef], unprepared: Collection[ClaimRef]) -> None:
        self.claims.append(([one.uid for one in prepared], [one.uid for one in unprepared]))

    def _released(self) -> None:
        self.released += 1


def test_what_a_claim_was_in_between_is_not_told() -> None:
    told = Told()
    for ref in (A, B):
        told.news.prepared(ref)
        told.news.unprepared(ref)
        told.news.given_back()
    told.news.prepared(B)
    told.news.look()
    assert told.claims == [(["b"], ["a", "b"])]
    assert told.released == 1
    told.news.look()
    assert len(told.claims) == told.released == 1


def test_a_burst_of_calls_is_left_alone_until_it_ends() -> None:
    told = Told()
    told.news.prepared(A)
    told.busy = 0.25
    told.news.look()
    assert told.claims == []
    told.news.prepared(B)
    told.busy = 0.0
    told.news.look()
    assert told.claims == [(["a", "b"], [])]


def test_calls_that_never_end_are_told_of_all_the_same() -> None:
    told = Told()
    told.news.prepared(A)
    told.busy = 0.25
    for _ in range(5):
        told.news.look()
    assert told.claims == []
    told.news.look()
    assert told.claims == [(["a"], [])]


def test_what_is_noted_when_the_driver_stops_is_told_before() -> None:
    told = Told(look=1000.0)
    told.busy = 0.25
    told.news.start()
    told.news.prepared(A)
    told.news.given_back()
    assert told.news.stop(30)
    assert (told.claims, told.released) == ([(["a"], [])], 1)
