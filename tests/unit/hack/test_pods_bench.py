"""The benchmark of pods: what they ask for, what is seen of them, and what is made of it."""

import json

import pytest
from bench.pods.report import END, START, Life, summarised, table
from bench.pods.rounds import answers
from bench.pods.variants import BASELINE, CLAIMS, EXTENDED, PLUGIN, pod, template

from dra_driver.admin.validate.findings import check_manifest


class TestVariants:
    @pytest.mark.parametrize("variant", CLAIMS)
    def test_the_driver_takes_the_configs(self, variant: str) -> None:
        found = check_manifest(json.dumps(template(variant)))
        assert all(finding.severity == "warning" for finding in found.findings)
        assert found.configs == (variant in {"time-slicing", "mps"})

    def test_pods_of_the_device_plugin_are_those_of_the_resource_name(self) -> None:
        by_plugin, by_driver = (pod(variant, "one", "true") for variant in (PLUGIN, EXTENDED))
        assert by_plugin == by_driver
        (ctr,) = by_plugin["spec"]["containers"]
        assert ctr["resources"]["limits"] == {"nvidia.com/gpu": "1"}
        assert ctr["command"][-1] == "true"


def line(event: str, **facts: object) -> dict[str, object]:
    return {"event": event, "claim_uid": "u"} | facts


def test_a_claims_first_answer_counts_and_refusals_are_counted() -> None:
    took, refused = answers(
        [
            line("claim prepared"),
            line("claim not prepared", seconds=0.5),
            line("claim answered", operation="prepare", seconds=0.25),
            line("claim answered", operation="prepare", seconds=0.001),
            line("claim answered", operation="unprepare", seconds=0.5),
        ]
    )
    assert took == {"u": {"prepare": 250, "unprepare": 500}}
    assert refused == {"u": 1}


def life(variant: str, *, at_once: int = 1, slower: float = 0, refused: int = 0) -> Life:
    own = {} if variant == BASELINE else {"prepare": 10.0, "unprepare": 500.0}
    took = {START: 1000.0 + slower, END: 2000.0, **own}
    return Life(variant=variant, at_once=at_once, took=took, refused=refused)


class TestReport:
    def test_ratios_are_to_the_pods_without_a_claim_of_as_many_at_once(self) -> None:
        lives = [life("whole", slower=500), life(BASELINE), life("whole", slower=500)]
        lives += [life(BASELINE, at_once=8, slower=1000), life("whole", at_once=8)]
        one, eight = summarised(lives)
        assert (one["at_once"], eight["at_once"]) == (1, 8)
        assert list(one["variants"]) == [BASELINE, "whole"]
        assert one["variants"]["whole"]["durations"]["created → running"]["samples"] == 2
        assert one["ratios"]["whole"]["created → running, p50"] == 1.5
        assert eight["ratios"]["whole"]["created → running, p99"] == 0.5
        assert "prepare, p50" not in one["ratios"]["whole"]

    def test_a_table_has_a_column_for_each_variant_and_says_what_was_refused(self) -> None:
        (case,) = summarised([life(BASELINE), life("mps", slower=500, refused=2)])
        title, header, *rows = table(case)
        assert title == "one pod, milliseconds; in parentheses ÷ none"
        assert header.split() == ["none", "mps"]
        cells = {row.split("  ")[0]: row.split() for row in rows}
        assert cells["created → running, p99"][-3:] == ["1000", "1500", "(1.5)"]
        assert cells["prepare, p50"][-2:] == ["-", "10"]
        assert rows[-1] == "mps: the driver refused 2 calls"
