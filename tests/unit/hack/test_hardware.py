"""`make hardware`: its CUDA client on a libcuda of the tests, its report, journal and lists."""

import os
from pathlib import Path

import pytest

import libcuda
from dra_driver.errors import StateError
from hardware import questions, report
from hardware.card import Settings
from hardware.client import Client, built
from hardware.every_step import STEPS
from hardware.journal import Entry, Journal
from hardware.steps import Change

SETTINGS = Settings(
    compute_mode=0, time_slice=None, power_limit=700000, mig_mode="enabled", mig=((9, 4),)
)
PAGE = Path(__file__).parents[3] / "docs" / "hardware.md"


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    folder = tmp_path / "libcuda"
    folder.mkdir()
    path = {"LD_LIBRARY_PATH": str(libcuda.build(folder)), "TEST_CUDA_MEMORY_MIB": "64"}
    return {**os.environ, **path}


def test_a_client_computes_and_takes_memory(tmp_path: Path, environment: dict[str, str]) -> None:
    with Client(built(tmp_path), environment, 32) as client:
        client.said.check(is_simulated=False)
        assert client.said.facts == {
            "context": "made",
            "multiprocessors": "132",
            "memory_mib": "64",
            "kernel": "ran",
            "memory": "taken",
        }


def test_a_kernel_that_computes_nothing_is_found_out(
    tmp_path: Path, environment: dict[str, str]
) -> None:
    with Client(built(tmp_path), environment | {"TEST_CUDA_WRONG": "mark"}) as client:
        assert client.said.failed == "kernel 0"


def entry(folder: Path) -> Entry:
    return Entry(
        run="abcd", root=Path("/"), gpu="GPU-1", folder=folder, group=None, before=SETTINGS
    )


def test_the_journal_has_what_was_written_and_what_was_touched(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    with journal.locked():
        assert journal.read() is None
        journal.write(entry(tmp_path))
        assert journal.read() == entry(tmp_path)
        both = frozenset({Change.MIG_MODE, Change.COMPUTE_MODE})
        touched = journal.touch(entry(tmp_path), both)
        assert journal.touch(touched, both) is touched
        assert journal.read() == touched
        assert set(touched.touched) == both
        journal.forget()
        assert journal.read() is None


@pytest.mark.parametrize("text", ["", "{}", '{"version": 1}', '{"version": 99}', "[]"])
def test_a_damaged_journal_is_an_error_and_stays(tmp_path: Path, text: str) -> None:
    journal = Journal(tmp_path)
    journal.file.write_text(text)
    with pytest.raises(StateError):
        journal.read()
    assert journal.file.exists()


def test_a_report_has_no_names_of_the_card() -> None:
    uuid = "GPU-d7431763-6c98-41ab-b6f0-5556fa0cf18f"
    told = {"a": [f"{uuid} and MIG-{uuid[4:]}", 5, None], "serial 0123": "serial 0123"}
    assert report._without_names(told, "0123") == {
        "a": ["GPU-… and MIG-…", 5, None],
        "serial 0123": "serial left out",
    }


def test_each_question_is_asked_by_one_step_and_each_step_has_a_name() -> None:
    asked = [question for step in STEPS for question in step.asks]
    assert sorted(asked) == sorted(one.id for one in questions.QUESTIONS)
    assert len({step.name for step in STEPS}) == len(STEPS)


def test_what_only_reads_comes_before_what_changes_something() -> None:
    changing = [bool(step.changes) for step in STEPS]
    assert changing == sorted(changing)


def test_the_page_has_the_table_of_the_questions() -> None:
    assert questions.table() in PAGE.read_text(), (
        f"docs/hardware.md should have this table:\n{questions.table()}"
    )
