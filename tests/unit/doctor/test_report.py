"""Findings as people and programs get them."""

import json

import pytest
from msgspec.structs import replace

from dra_driver.admin.doctor.checks.finding import ADMIN, Finding, Severity, Skipped
from dra_driver.admin.doctor.report import as_json, as_text, status_of


def finding(severity: Severity, seen: str = "it is so", advice: str = "mend it") -> Finding:
    return Finding(
        id="thing", title="a thing", severity=severity, seen=seen, why="because", advice=advice
    )


SKIPPED = Skipped(id="other", title="another", reason="no cluster is known")


@pytest.mark.parametrize("severity", Severity)
def test_the_exit_status_is_1_with_an_error_alone(severity: Severity) -> None:
    found = [finding(Severity.OK), finding(severity), SKIPPED]
    assert status_of(found) == (1 if severity is Severity.ERROR else 0)


def test_the_exit_status_is_2_where_nothing_was_learnt() -> None:
    unlearnt = replace(finding(Severity.UNKNOWN), is_answer=False)
    assert status_of([]) == 2
    assert status_of([unlearnt, SKIPPED]) == 2
    assert status_of([unlearnt, finding(Severity.UNKNOWN)]) == 0


def test_people_get_reason_and_advice_of_what_is_wrong() -> None:
    text = as_text([finding(Severity.ERROR), finding(Severity.OK, advice=""), SKIPPED])
    assert text.splitlines() == [
        "not checked:",
        "  no cluster is known: other",
        "",
        "ok       thing  it is so",
        "error    thing  it is so",
        "                why: because",
        "                do:  mend it",
        "",
        "1 error, 0 warnings, 0 unknown, 0 info, 1 ok",
    ]


def test_what_only_an_admin_may_see_is_told_once() -> None:
    forbidden = [
        replace(finding(Severity.UNKNOWN, seen=f"cannot list {one}", advice=ADMIN), id=one)
        for one in ("nodes", "nodes", "classes")
    ]
    text = as_text([finding(Severity.OK, advice=""), *forbidden])
    assert "cannot list" not in text
    assert f"not checked, because permissions are missing: nodes, classes: {ADMIN}" in " ".join(
        text.split()
    )
    refused = finding(Severity.ERROR, seen="cannot list nodes", advice=ADMIN)
    assert "cannot list nodes" in as_text([refused])
    assert "cannot list nodes" in as_json(forbidden, "1")


def test_no_text_of_others_acts_on_a_terminal() -> None:
    text = as_text([finding(Severity.ERROR, seen="a\x1b[2Jb\nerror\tc\x07", advice="\x9b31m")])
    assert text.isascii()
    assert "a\\u001b[2Jb error c\\u0007" in text
    assert "\\u009b31m" in text


def test_programs_get_all_of_it() -> None:
    document = json.loads(as_json([finding(Severity.WARNING), SKIPPED], "0.1.0"))
    assert document == {
        "version": "0.1.0",
        "summary": {"error": 0, "warning": 1, "unknown": 0, "info": 0, "ok": 0},
        "findings": [
            {
                "id": "thing",
                "title": "a thing",
                "severity": "warning",
                "seen": "it is so",
                "why": "because",
                "advice": "mend it",
            }
        ],
        "skipped": [{"id": "other", "title": "another", "reason": "no cluster is known"}],
    }
