"""Findings as people and programs get them."""

import json

import pytest
from msgspec.structs import replace

from dra_driver.admin.doctor.checks.finding import ADMIN, Finding, Severity, Skipped
from dra_driver.admin.doctor.report import as_json, as_text, status_of
from dra_driver.admin.doctor.runner import Outcome


def finding(severity: Severity, seen: str = "it is so", advice: str = "mend it") -> Finding:
    return Finding(
        id="thing", title="a thing", severity=severity, seen=seen, why="because", advice=advice
    )


SKIPPED = Skipped(id="other", title="another", reason="no cluster is known")


@pytest.mark.parametrize("severity", Severity)
def test_the_exit_status_is_1_only_after_an_error(severity: Severity) -> None:
    found = [finding(Severity.OK), finding(severity), SKIPPED]
    assert status_of(found) == (1 if severity is Severity.ERROR else 0)


def test_the_exit_status_is_2_where_nothing_was_learnt() -> None:
    unlearnt = replace(finding(Severity.UNKNOWN), is_answer=False)
    assert status_of([]) == 2
    assert status_of([unlearnt, SKIPPED]) == 2
    assert status_of([unlearnt, finding(Severity.UNKNOWN)]) == 0


FINE = replace(finding(Severity.OK, seen="it is well", advice=""), id="fine")
MIXED: list[Outcome] = [
    finding(Severity.ERROR),
    finding(Severity.OK, advice=""),
    FINE,
    SKIPPED,
    finding(Severity.INFO, advice=""),
]


def test_people_get_reason_and_advice_of_what_is_wrong_at_the_end_and_what_is_fine_counted() -> (
    None
):
    assert as_text(MIXED).splitlines() == [
        "1 check skipped: no cluster is known",
        "",
        "info     thing: it is so",
        "",
        "error    thing: it is so",
        "         why: because",
        "         do:  mend it",
        "",
        "1 error, 0 warnings, 1 info, 1 check found nothing wrong (-v shows them)",
    ]


def test_the_full_report_has_passed_and_skipped_checks() -> None:
    assert as_text(MIXED, verbose=True).splitlines() == [
        "1 check skipped (other): no cluster is known",
        "",
        "ok       thing: it is so",
        "ok       fine: it is well",
        "info     thing: it is so",
        "",
        "error    thing: it is so",
        "         why: because",
        "         do:  mend it",
        "",
        "1 error, 0 warnings, 1 info, 1 check found nothing wrong",
    ]


def test_repeated_problems_are_explained_once() -> None:
    both = [finding(Severity.ERROR, seen=seen) for seen in ("no A", "no B")]
    assert as_text(both).splitlines()[:4] == [
        "error    thing: no A",
        "error    thing: no B",
        "         why: because",
        "         do:  mend it",
    ]


def test_a_page_on_which_nothing_is_wrong_is_one_line() -> None:
    assert as_text([FINE]) == "0 errors, 0 warnings, 1 check found nothing wrong (-v shows them)\n"


def test_lines_are_no_longer_than_the_terminal_is_wide() -> None:
    words = " ".join(["word"] * 50)
    text = as_text([finding(Severity.ERROR, seen=words, advice=words), SKIPPED], width=40)
    assert max(map(len, text.splitlines()[:-1])) <= 40


def test_admin_only_findings_are_mentioned_once() -> None:
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


def test_untrusted_text_cannot_control_the_terminal() -> None:
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
