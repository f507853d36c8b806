"""A probe's process: how it ended, and that nothing waits for it."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest

from clock import Clock
from dra_driver.mps.daemon.probe import Outcome, Probe
from worlds.process import eventually

SECONDS = 30.0
HANGS = "import time; time.sleep(600)"


Start = Callable[[str], tuple[Probe, Clock]]


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts a probe whose program is played."""
    made: list[Probe] = []

    def begin(program: str) -> tuple[Probe, Clock]:
        clock = Clock()
        process = subprocess.Popen(
            [sys.executable, "-c", program], stdout=subprocess.PIPE, start_new_session=True
        )
        made.append(Probe(process, SECONDS, clock))
        return made[-1], clock

    yield begin
    for probe in made:
        probe.give_up(SECONDS)
        assert probe.is_gone()


def outcome(probe: Probe) -> Outcome:
    found: Outcome = eventually(probe.look, "the probe's outcome")
    return found


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ("asking\\ncuCtxDestroy_v2 0", Outcome.WELL),
        ("asking\\ncuCtxDestroy_v2 999", Outcome.REFUSED),
        ("asking\\ncuInit 805", Outcome.REFUSED),
        ("asking\\ncuInit -1", Outcome.REFUSED),
        ("asking", Outcome.REFUSED),
        ("", Outcome.REFUSED),
        ("nonsense" * 4096, Outcome.REFUSED),
    ],
)
def test_what_a_probe_says_before_it_ends_is_an_answer(
    start: Start, said: str, expected: Outcome
) -> None:
    probe, _ = start(f"print('{said}', flush=True)")
    assert outcome(probe) is expected
    eventually(probe.is_gone, "its end")
    assert probe.descriptor == -1


def test_an_answer_counts_also_if_the_process_lingers_and_ends_it(start: Start) -> None:
    probe, _ = start(f"print('asking\\ncuCtxDestroy_v2 0', flush=True); {HANGS}")
    assert outcome(probe) is Outcome.WELL
    eventually(probe.is_gone, "its end")


def test_a_probe_that_was_killed_by_others_says_nothing(start: Start) -> None:
    probe, _ = start(f"print('asking', flush=True); {HANGS}")
    eventually(lambda: probe.look() is None and probe.said == "asking", "the question")
    os.kill(probe.pid, signal.SIGKILL)
    assert outcome(probe) is Outcome.REFUSED


def test_the_limit_counts_from_the_question_on(start: Start) -> None:
    probe, clock = start(f"print('asking', flush=True); {HANGS}")
    assert probe.seconds_left == 1.0  # until it asks it is looked at soon
    clock.now += SECONDS - 1
    eventually(lambda: probe.look() is None and probe.said == "asking", "the question")
    assert probe.seconds_left == SECONDS
    clock.now += SECONDS - 1
    assert probe.look() is None
    clock.now += 1
    assert probe.look() is Outcome.SILENCE
    eventually(probe.is_gone, "its end")


def test_a_probe_that_never_gets_to_ask_says_nothing_of_the_server(start: Start) -> None:
    probe, clock = start(HANGS)
    assert probe.look() is None
    clock.now += SECONDS
    assert probe.look() is Outcome.REFUSED
    eventually(probe.is_gone, "its end")


def test_children_of_a_probe_end_with_it(start: Start) -> None:
    child = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', '{HANGS}']); "
    probe, clock = start(f"{child} print('asking', flush=True); {HANGS}")
    eventually(lambda: probe.look() is None and probe.said == "asking", "the question")
    clock.now += SECONDS
    assert probe.look() is Outcome.SILENCE

    def group_is_gone() -> bool:
        probe.is_gone()
        try:
            os.killpg(probe.pid, 0)
        except ProcessLookupError:
            return True
        return False

    eventually(group_is_gone, "the end of all of it")
