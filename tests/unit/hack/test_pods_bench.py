"""The benchmark of pods: what they ask for, what is seen of them, and what is made of it."""

import json

import pytest
from bench.pods.answers import Answered, Span, answers
from bench.pods.report import Life, durations, summarised, table
from bench.pods.variants import BASELINE, CLAIMS, template
from bench.pods.watching import Mark, Seen, Sightings

from dra_driver.admin.validate.findings import check_manifest
from dra_driver.kube.watch import Changed, Listed

POD = "whole-1-1-0"


class TestVariants:
    @pytest.mark.parametrize("variant", CLAIMS)
    def test_the_driver_takes_the_configs(self, variant: str) -> None:
        found = check_manifest(json.dumps(template(variant)))
        assert all(finding.severity == "warning" for finding in found.findings)
        assert found.configs == (variant in {"time-slicing", "mps"})


class Clock:
    """Seconds that pass by one each time they are asked for."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += 1
        return self.now


def seen_pod(*, node: str = "", running: bool = False, name: str = POD) -> dict[str, object]:
    state = {"running": {"startedAt": "2026-01-01T00:00:00Z"}} if running else {"waiting": {}}
    return {
        "metadata": {"name": name},
        "spec": {"nodeName": node} if node else {},
        "status": {"containerStatuses": [{"name": "ctr", "state": state}]},
    }


def seen_claim(*, allocated: bool, owner: str = "Pod") -> dict[str, object]:
    return {
        "metadata": {"uid": "uid-1", "ownerReferences": [{"kind": owner, "name": POD}]},
        "status": {"allocation": {"devices": {}}} if allocated else {},
    }


class TestSightings:
    def test_each_mark_of_a_pod_has_the_time_when_it_was_first_seen(self) -> None:
        sightings = Sightings(Clock())
        for told in (
            Changed(type="ADDED", object=seen_pod()),
            Changed(type="MODIFIED", object=seen_pod(node="n")),
            Changed(type="MODIFIED", object=seen_pod(node="n")),
            Changed(type="MODIFIED", object=seen_pod(node="n", running=True)),
            Changed(type="DELETED", object=seen_pod(node="n", running=True)),
        ):
            sightings.tell_pods(told)
        marks = list(sightings.of(POD).at)
        assert marks == [Mark.SCHEDULED, Mark.RUNNING, Mark.GONE]
        assert sorted(sightings.of(POD).at.values()) == list(sightings.of(POD).at.values())

    def test_a_claim_is_its_owners(self) -> None:
        sightings = Sightings(Clock())
        sightings.tell_claims(Changed(type="ADDED", object=seen_claim(allocated=False)))
        assert sightings.of(POD) == Seen(at={Mark.CLAIMED: 1.0}, claim="uid-1")
        sightings.tell_claims(Changed(type="MODIFIED", object=seen_claim(allocated=True)))
        assert set(sightings.of(POD).at) == {Mark.CLAIMED, Mark.ALLOCATED}

    def test_a_claim_without_a_pod_is_nobodys(self) -> None:
        sightings = Sightings(Clock())
        claim = seen_claim(allocated=True, owner="Job")
        sightings.tell_claims(Listed(items=(claim,)))
        assert sightings.of(POD) == Seen()

    def test_what_a_gap_in_the_watch_hid_is_seen_after_it(self) -> None:
        sightings = Sightings(Clock())
        sightings.tell_pods(Changed(type="MODIFIED", object=seen_pod(node="n")))
        other = seen_pod(node="n", running=True, name="other")
        sightings.tell_pods(Listed(items=(other,)))
        assert Mark.GONE in sightings.of(POD).at
        assert Mark.RUNNING in sightings.of("other").at
        assert Mark.GONE not in sightings.of("other").at


def line(event: str, second: str, **facts: object) -> dict[str, object]:
    return {"event": event, "timestamp": f"2026-01-01T00:00:{second}Z", "claim_uid": "u"} | facts


def test_a_claims_first_answer_counts_and_refusals_are_counted() -> None:
    found = answers(
        [
            line("claim prepared", "09.900000"),
            line("claim not prepared", "01.000000", seconds=0.5),
            line("claim answered", "10.000000", operation="prepare", seconds=0.25),
            line("claim answered", "20.000000", operation="prepare", seconds=0.001),
            line("claim answered", "30.500000", operation="unprepare", seconds=0.5),
        ]
    )
    began = found["u"].spans["prepare"].began
    assert found == {
        "u": Answered(
            spans={
                "prepare": Span(began=began, ended=began + 0.25),
                "unprepare": Span(began=began + 20.25, ended=began + 20.75),
            },
            failures=1,
        )
    }


AT = {
    Mark.CREATED: 100.0,
    Mark.CLAIMED: 100.01,
    Mark.ALLOCATED: 100.03,
    Mark.SCHEDULED: 100.04,
    Mark.RUNNING: 101.0,
    Mark.DELETED: 110.0,
    Mark.GONE: 112.0,
}


def life(variant: str, *, at_once: int = 1, slower: float = 0, failures: int = 0) -> Life:
    spans = {
        "prepare": Span(began=100.34, ended=100.35),
        "unprepare": Span(began=111.0, ended=111.5),
    }
    claimed = variant != BASELINE
    left_out = set() if claimed else {Mark.CLAIMED, Mark.ALLOCATED}
    at = {mark: when for mark, when in AT.items() if mark not in left_out}
    at[Mark.RUNNING] += slower
    return Life(
        variant=variant,
        at_once=at_once,
        seen=Seen(at=at, claim="u" if claimed else ""),
        program=100.9 + slower,
        answered=Answered(spans=spans if claimed else {}, failures=failures),
    )


class TestReport:
    def test_a_pods_time_is_divided_among_those_who_took_it(self) -> None:
        assert durations(life("whole")) == {
            "created → running": 1000,
            "created → claim made": 10,
            "claim made → allocated": 20,
            "created → scheduled": 40,
            "scheduled → prepare": 300,
            "prepare": 10,
            "prepare → program": 550,
            "scheduled → program": 860,
            "program → running": 100,
            "deleted → gone": 2000,
            "deleted → unprepare": 1000,
            "unprepare": 500,
            "unprepare → gone": 500,
        }

    def test_ratios_are_to_the_pods_without_a_claim_of_as_many_at_once(self) -> None:
        lives = [life("whole", slower=0.5), life(BASELINE), life("whole", slower=0.5)]
        lives += [life(BASELINE, at_once=8, slower=1), life("whole", at_once=8)]
        one, eight = summarised(lives)
        assert (one["at_once"], eight["at_once"]) == (1, 8)
        assert list(one["variants"]) == [BASELINE, "whole"]
        assert one["variants"]["whole"]["durations"]["created → running"]["samples"] == 2
        assert one["ratios"]["whole"]["created → running, p50"] == 1.5
        assert eight["ratios"]["whole"]["created → running, p99"] == 0.5
        assert "prepare, p50" not in one["ratios"]["whole"]

    def test_a_table_has_the_parts_in_their_order_and_says_what_was_refused(self) -> None:
        (case,) = summarised([life(BASELINE), life("mps", slower=0.5, failures=2)])
        title, header, *rows = table(case)
        assert title == "one pod, milliseconds; in parentheses ÷ none"
        assert header.split() == ["none", "mps"]
        cells = {row.split("  ")[0]: row.split() for row in rows}
        assert cells["created → running, p99"][-3:] == ["1000", "1500", "(1.5)"]
        assert cells["prepare, p50"][-2:] == ["-", "10"]
        names = list(cells)
        assert names.index("scheduled → prepare, p50") < names.index("scheduled → program, p50")
        assert rows[-1] == "mps: the driver refused 2 calls"
