"""Calls side by side: threads of one driver, and two driver processes in a rolling update."""

import subprocess
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path

import pytest
from msgspec.structs import replace

import make
from dra_driver.claims.prepare.preparer import PrepareTiming
from dra_driver.claims.state.locks import NodeLocks
from dra_driver.errors import ConflictError, DeviceError, TransientError, UnavailableError
from dra_driver.sharing.steps import SharingStep
from worlds import child
from worlds.configs import MPS, PATIENCE
from worlds.driver import FAST, Driver

SOON = 0.3


def soon(seconds: float = PATIENCE) -> float:
    return time.monotonic() + seconds


def test_claims_on_different_gpus_are_prepared_in_parallel(driver: Driver) -> None:
    both_inside = threading.Barrier(2)
    driver.gpus.on_edits = lambda _: both_inside.wait(PATIENCE) and None
    refs = [driver.api.add(f"gpu-{n}", uid=f"uid-{n}", name=f"claim-{n}") for n in range(2)]
    with ThreadPoolExecutor(2) as pool:
        answers = list(pool.map(driver.prepare, refs))
    assert [answer[0].name for answer in answers] == ["gpu-0", "gpu-1"]


def test_a_second_call_for_a_claim_waits_and_gets_the_same_answer(tmp_path: Path) -> None:
    inside, go_on = threading.Event(), threading.Event()
    steps: list[str] = []

    def step(name: str) -> None:
        steps.append(name)
        inside.set()
        go_on.wait(PATIENCE)

    driver = Driver(tmp_path, step=step)
    ref = driver.api.add("gpu-1")
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(driver.prepare, ref, PATIENCE)
        assert inside.wait(PATIENCE)
        second = pool.submit(driver.prepare, ref, PATIENCE)
        go_on.set()
        assert first.result(PATIENCE) == second.result(PATIENCE)
    assert steps.count("recorded") == 1
    driver.close()


def test_unprepare_during_prepare_waits_and_leaves_nothing(tmp_path: Path) -> None:
    inside, go_on = threading.Event(), threading.Event()

    def step(name: str) -> None:
        inside.set()
        go_on.wait(PATIENCE)

    driver = Driver(tmp_path, step=step)
    ref = driver.api.add("gpu-1")
    with ThreadPoolExecutor(2) as pool:
        prepare = pool.submit(driver.prepare, ref, PATIENCE)
        assert inside.wait(PATIENCE)
        unprepare = pool.submit(driver.unprepare, ref, PATIENCE)
        go_on.set()
        prepare.result(PATIENCE)
        unprepare.result(PATIENCE)
    assert driver.left() == []
    driver.close()


def test_unprepare_ends_a_prepare_that_waits(driver: Driver) -> None:
    patient = Driver(
        driver.root, api=driver.api, timing=PrepareTiming(margin=0.0, first_pause=PATIENCE)
    )
    ref = driver.api.add("gpu-1")
    asked = threading.Event()

    def away(_: str) -> None:
        asked.set()
        raise UnavailableError("the API server is away")

    driver.api.trouble = away
    with ThreadPoolExecutor(1) as pool:
        prepare = pool.submit(patient.prepare, ref, PATIENCE)
        assert asked.wait(PATIENCE)
        patient.unprepare(ref, PATIENCE)
        with pytest.raises(TransientError, match="the API server is away"):
            prepare.result(PATIENCE)
    patient.close()


def test_unprepare_ends_a_prepare_that_waits_for_a_daemon(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = Driver(tmp_path, survives_reboot=True)
    waits = threading.Event()

    def wait(step: SharingStep, deadline: float, given_up: Callable[[], bool]) -> None:
        waits.set()
        while not given_up():
            if time.monotonic() > deadline:
                raise DeviceError("the daemon is not ready")
            time.sleep(0.001)
        raise TransientError("given up")

    monkeypatch.setattr(driver.sharing, "wait", wait)
    ref = driver.api.add("gpu-1", configs=[MPS])
    with ThreadPoolExecutor(1) as pool:
        prepare = pool.submit(driver.prepare, ref, 5.0)
        assert waits.wait(PATIENCE)
        driver.unprepare(ref)
        with pytest.raises(TransientError, match="given up"):
            prepare.result(PATIENCE)
    assert driver.left() == []
    driver.close()


def test_stopping_ends_all_waiting(driver: Driver) -> None:
    ref = driver.api.add("gpu-1")
    asked = threading.Event()

    def away(_: str) -> None:
        asked.set()
        raise UnavailableError("the API server is away", retry_after=SOON / 5)

    driver.api.trouble = away
    with ThreadPoolExecutor(1) as pool:
        prepare = pool.submit(driver.prepare, ref, PATIENCE)
        assert asked.wait(PATIENCE)
        driver.preparer.stop()
        with pytest.raises(TransientError):
            prepare.result(PATIENCE)
    driver.api.asked.clear()
    with pytest.raises(TransientError):
        driver.prepare(ref, SOON)
    assert len(driver.api.asked) == 1, "and later calls do not wait"


def test_a_busy_api_server_is_left_alone_for_as_long_as_it_asks(driver: Driver) -> None:
    def busy(_: str) -> None:
        raise UnavailableError("the API server is busy", retry_after=PATIENCE)

    driver.api.trouble = busy
    with pytest.raises(TransientError):
        driver.prepare(driver.api.add("gpu-1"), SOON)
    assert len(driver.api.asked) == 2, "now, and when there is no time left"


def test_a_claim_that_waits_for_a_gpu_gets_it_when_it_is_unprepared(driver: Driver) -> None:
    timing = PrepareTiming(longest=PATIENCE, margin=0.0, first_pause=PATIENCE)
    patient = Driver(driver.root, api=driver.api, timing=timing)
    holder = driver.api.add("gpu-1", uid="holder", name="holder")
    patient.prepare(holder)
    del driver.api.claims["default", "holder"]
    ref = driver.api.add("gpu-1")
    looked = threading.Event()
    driver.api.trouble = lambda name: looked.set() if name == "holder" else None
    with ThreadPoolExecutor(1) as pool:
        prepare = pool.submit(patient.prepare, ref, PATIENCE)
        assert looked.wait(PATIENCE)
        patient.unprepare(holder)
        assert prepare.result(PATIENCE)[0].name == "gpu-1"
    patient.close()


@pytest.mark.parametrize("has", [None, "gpu-2"])
def test_a_prepare_that_waits_for_another_claim_unlocks_its_gpus(
    driver: Driver, has: str | None
) -> None:
    timing = replace(FAST, longest=3 * PATIENCE)
    patient = Driver(driver.root, api=driver.api, timing=timing)
    former = driver.api.add("gpu-1", uid="former", name="former", configs=[MPS])
    driver.prepare(former)
    driver.sharing.refuse_undo = DeviceError("the GPU does not answer")
    driver.unprepare(former)
    if has:
        driver.prepare(driver.api.add(has, uid="former", name="former"))
    driver.sharing.refuse_undo = None
    assert driver.cleanups(former)
    ref = driver.api.add("gpu-1")
    attempts = count(1)
    again = threading.Event()
    driver.api.trouble = lambda _: again.set() if next(attempts) > 1 else None
    with ThreadPoolExecutor(1) as pool:
        with driver.locks.claim(former.uid, soon()):  # as while it is unprepared
            prepare = pool.submit(patient.prepare, ref, 3 * PATIENCE)
            assert again.wait(PATIENCE), "it tries again instead of waiting with the GPU's lock"
            with driver.locks.gpus([make.gpu(1).uuid], soon()):
                assert not prepare.done()
        assert prepare.result(PATIENCE)[0].name == "gpu-1"
    patient.close()


def test_a_gpu_is_unlocked_while_its_holder_is_looked_up(driver: Driver) -> None:
    driver.prepare(driver.api.add("gpu-1", uid="holder", name="holder"))
    ref = driver.api.add("gpu-1")
    asked: list[str] = []

    def trouble(name: str) -> None:
        with driver.locks.gpus([make.gpu(1).uuid], soon(0)):
            asked.append(name)

    driver.api.trouble = trouble
    with pytest.raises(ConflictError, match="is already allocated to different claim"):
        driver.prepare(ref)
    assert asked == ["claim", "holder"]


def test_ten_pods_at_once_each_get_their_gpus(tmp_path: Path) -> None:
    driver = Driver(tmp_path, *(make.gpu(minor) for minor in range(20)), timing=FAST)
    refs = [
        driver.api.add(f"gpu-{2 * n}", f"gpu-{2 * n + 1}", uid=f"uid-{n}", name=f"claim-{n}")
        for n in range(10)
    ]
    with ThreadPoolExecutor(10) as pool:
        for _ in range(5):
            answers = list(pool.map(driver.prepare, refs))
            assert len({device.name for answer in answers for device in answer}) == 20
            list(pool.map(driver.unprepare, refs))
            assert driver.left() == []
    driver.close()


def test_claims_that_overlap_crosswise_do_not_wait_for_each_other(driver: Driver) -> None:
    one = driver.api.add("gpu-1", "gpu-2", uid="one", name="one")
    two = driver.api.add("gpu-2", "gpu-1", uid="two", name="two")

    def outcome(name: str) -> str:
        try:
            driver.prepare(one if name == "one" else two)
        except ConflictError:
            return "refused"
        return "prepared"

    with ThreadPoolExecutor(2) as pool:
        for _ in range(20):
            assert sorted(pool.map(outcome, ["one", "two"])) == ["prepared", "refused"]
            driver.unprepare(one)
            driver.unprepare(two)


def test_locks_hold_between_instances_and_time_out(tmp_path: Path) -> None:
    mine = NodeLocks(tmp_path / "locks", time.monotonic, on_other=lambda: None)
    theirs = NodeLocks(tmp_path / "locks", time.monotonic, on_other=lambda: None)
    with mine.claim("a", soon()):
        with pytest.raises(ConflictError, match="UID a in another process of this driver is"):
            theirs.claim("a", soon(0.02)).__enter__()
        with theirs.claim("b", soon()), theirs.gpus(["a"], soon()):
            pass
    with theirs.claim("a", soon()):
        pass
    mine.close()
    theirs.close()


def test_gpus_are_locked_in_one_order_and_once(tmp_path: Path) -> None:
    locks = NodeLocks(tmp_path / "locks", time.monotonic, on_other=lambda: None)
    names = sorted(f"GPU-{n}" for n in range(20))
    with locks.gpus(names[10:], soon()):
        # A call for all of them stops at the tenth, in whatever order it names them.
        with pytest.raises(ConflictError, match=f"another claim's call for {names[10]} is still"):
            locks.gpus([*reversed(names), *names], soon(0)).__enter__()
        with locks.gpus(names[:10], soon(0)):
            pass
    locks.close()


def test_a_killed_process_releases_its_locks(tmp_path: Path) -> None:
    locks = NodeLocks(tmp_path / "locks", time.monotonic, on_other=lambda: None)
    with child.start("hold", tmp_path / "locks", "a", stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(ConflictError), locks.claim("a", soon(0.02)):
            pass
        holder.kill()
        holder.wait(PATIENCE)
    with locks.claim("a", soon()):
        pass
    locks.close()


def test_two_processes_never_both_get_a_gpu(tmp_path: Path) -> None:
    children = [
        child.start("contend", tmp_path, name, "gpu-1", "25", stdout=subprocess.PIPE, text=True)
        for name in ("one", "two")
    ]
    for process in children:
        out, _ = process.communicate(timeout=60)
        assert process.returncode == 0, out
    assert (tmp_path / "wins").read_text().split() == ["won"] * 50
