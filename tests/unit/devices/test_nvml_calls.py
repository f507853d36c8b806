"""Calls that are waited for only so long; with real GPUs in tests/contract/devices."""

import itertools
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from structlog.testing import capture_logs

from clock import Clock
from dra_driver.devices.nvml import calls as calls_module
from dra_driver.devices.nvml.calls import NVML, NvmlCalls
from dra_driver.errors import DeviceError, SilenceError

PATIENCE = 30.0


class Hang:
    """A call that hangs until the test ends or lets it go."""

    def __init__(self) -> None:
        self.entered, self.over = threading.Event(), threading.Event()

    def __call__(self) -> str:
        self.entered.set()
        assert self.over.wait(PATIENCE)
        return "late"


@pytest.fixture
def hang() -> Iterator[Hang]:
    hang = Hang()
    yield hang
    hang.over.set()
    while any(thread.name.startswith("nvml-") for thread in threading.enumerate()):
        time.sleep(0.001)  # what they log is not for the next test


@pytest.fixture
def calls() -> NvmlCalls:
    return NvmlCalls(clock=time.monotonic, answer_seconds=0.05)


def refuse() -> None:
    raise DeviceError("lost")


def be_late() -> None:
    raise TimeoutError


def test_answers_and_errors_are_those_of_the_call(calls: NvmlCalls) -> None:
    assert calls.about("0", lambda: "yes", PATIENCE) == "yes"
    with pytest.raises(DeviceError, match="lost"):
        calls.about("0", refuse, PATIENCE)
    with pytest.raises(TimeoutError):  # the call's own, and no silence
        calls.about("0", be_late, PATIENCE)
    assert not calls.silent


def test_calls_on_one_subject_take_turns_and_may_take_longer(calls: NvmlCalls, hang: Hang) -> None:
    with ThreadPoolExecutor(2) as pool:
        longer = pool.submit(calls.about, "0", hang, PATIENCE)
        assert hang.entered.wait(PATIENCE)
        after = pool.submit(calls.about, "0", lambda: "yes", 1.0)
        with pytest.raises(TimeoutError):
            after.result(1.5)
        assert not calls.silent
        hang.over.set()
        assert (longer.result(PATIENCE), after.result(PATIENCE)) == ("late", "yes")


def test_only_what_hangs_is_refused_and_only_until_it_answers(calls: NvmlCalls, hang: Hang) -> None:
    with capture_logs() as logs:
        for _ in range(3):
            with pytest.raises(SilenceError, match="GPU 3 has not answered since"):
                calls.about("3", hang)
        assert calls.about("4", lambda: "yes", PATIENCE) == "yes"
        assert {subject: seconds > 0 for subject, seconds in calls.silences().items()} == {
            "3": True,
            "4": False,
        }
        hang.over.set()
        while calls.silent:
            time.sleep(0.01)
        assert calls.about("3", lambda: "yes", PATIENCE) == "yes"
    assert [line["event"] for line in logs] == ["nvml does not answer", "nvml answers again"]


class Leaping(Clock):
    """A clock by which each wait is over before it has begun."""

    def __call__(self) -> float:
        self.now += 100
        return self.now


def test_only_the_first_hanging_gpu_takes_its_full_time(hang: Hang) -> None:
    calls = NvmlCalls(clock=Leaping(), answer_seconds=10.0)
    with capture_logs() as logs:
        for gpu in range(8):
            with pytest.raises(SilenceError, match=r"was given 10 s" if not gpu else "given 2 s"):
                calls.about(str(gpu), hang)
    assert [line["seconds"] for line in logs] == [10.0] + [2.0] * 7


def test_a_thread_is_kept_from_call_to_call_but_not_one_that_hangs(
    calls: NvmlCalls, hang: Hang
) -> None:
    used = [calls.about(str(gpu), threading.current_thread, PATIENCE) for gpu in range(50)]
    assert len(set(used)) < 10, "they are not started for one call each"
    with pytest.raises(SilenceError):
        calls.about("0", hang)
    (lost,) = [thread for thread in threading.enumerate() if thread.name == "nvml-0"]
    for gpu in range(1, 50):
        assert calls.about(str(gpu), threading.current_thread, PATIENCE) is not lost
    hang.over.set()
    while calls.silent:
        time.sleep(0.01)
    assert calls.about("0", lambda: "yes", PATIENCE) == "yes"


def test_threads_that_nobody_needs_end_and_no_call_is_lost_with_them(
    calls: NvmlCalls, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calls_module, "IDLE_SECONDS", 0.0002)
    with ThreadPoolExecutor(4) as pool:
        asked = [
            pool.submit(calls.about, str(number % 4), lambda answer=number: answer, PATIENCE)
            for number in range(2000)
        ]
        assert [one.result(PATIENCE) for one in asked] == list(range(2000))
    last = calls.about("0", threading.current_thread, PATIENCE)
    last.join(PATIENCE)
    assert not last.is_alive()


def test_nobody_calls_about_a_gpu_while_the_library_is_closed(calls: NvmlCalls, hang: Hang) -> None:
    calls.about("3", lambda: None, 2.0)  # for so long the one that is too early waits, too
    with calls.none_under_way(PATIENCE) as is_quiet:
        assert is_quiet
        assert calls.about(NVML, lambda: "closed", PATIENCE) == "closed"
        with pytest.raises(SilenceError):
            calls.about("3", lambda: "too early", 0.05)
    with pytest.raises(SilenceError):
        calls.about("3", hang)
    with calls.none_under_way(PATIENCE) as is_quiet:
        assert not is_quiet, "at once, not after that time"


def test_all_running_calls_share_one_time_limit(hang: Hang) -> None:
    times, asks = itertools.count(0.0, PATIENCE), threading.current_thread()
    calls = NvmlCalls(
        clock=lambda: next(times) if threading.current_thread() is asks else 0.0,
        answer_seconds=PATIENCE,
    )
    with ThreadPoolExecutor(1) as pool:
        under_way = pool.submit(calls.about, "0", hang)
        assert hang.entered.wait(PATIENCE)
        later = threading.Timer(0.5, hang.over.set)
        later.start()
        with calls.none_under_way(PATIENCE) as is_quiet:
            assert not is_quiet
        assert under_way.result(PATIENCE) == "late"
        later.join()
