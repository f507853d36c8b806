"""The file of locks: whose it is, a disk that refuses it, and what stays in memory."""

import errno
import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest

from dra_driver.claims.state.locks import NodeLocks
from dra_driver.errors import ConflictError, StateError
from dra_driver.host import ofd_lock
from worlds.configs import PATIENCE
from worlds.process import eventually


def made(file: Path, clock: Callable[[], float] = time.monotonic) -> NodeLocks:
    return NodeLocks(file, clock, on_other=lambda: None)


def test_nobody_but_the_driver_may_open_the_file_of_locks(tmp_path: Path) -> None:
    made(tmp_path / "locks").close()
    assert (tmp_path / "locks").stat().st_mode & 0o777 == 0o600


def test_the_file_is_closed_in_the_end(tmp_path: Path) -> None:
    locks = made(tmp_path / "locks")
    file = locks._file
    assert file is not None
    locks.close()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(file)


def test_a_file_that_cannot_be_made_is_an_error_until_it_can(tmp_path: Path) -> None:
    file = tmp_path / "driver" / "locks"
    locks = made(file)
    with (
        pytest.raises(StateError, match=f"cannot open the lock file {file}: No such file or"),
        locks.claim("uid", 0.0),
    ):
        pass
    file.parent.mkdir()
    with locks.claim("uid", 0.0):
        pass
    locks.close()


def test_a_file_system_without_locks_is_named_as_such(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(file: int, start: int, length: int) -> bool:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(ofd_lock, "lock", refuse)
    locks = made(tmp_path / "locks")
    with (
        pytest.raises(StateError, match="cannot lock on the driver's directory: No locks avail"),
        locks.gpus(["GPU-1"], 0.0),
    ):
        pass
    locks.close()


def test_unused_locks_take_no_memory(tmp_path: Path) -> None:
    locks = made(tmp_path / "locks")
    with locks.claim("uid", 0.0), locks.gpus(["GPU-1"], 0.0):
        with pytest.raises(ConflictError, match="another call for claim UID uid is still running"):
            locks.claim("uid", 0.0).__enter__()
        assert len(locks._threads) == 2
    assert locks._threads == {}
    with locks.claim("uid", 0.0):
        pass
    locks.close()


def test_a_thousand_claims_of_each_process_keep_no_lock_from_the_other(tmp_path: Path) -> None:
    mine, theirs = (made(tmp_path / "locks") for _ in range(2))
    with ExitStack() as held:
        for number in range(1000):
            held.enter_context(mine.claim(f"mine-{number}", 0.0))
            held.enter_context(theirs.claim(f"theirs-{number}", 0.0))
    mine.close()
    theirs.close()


def test_a_lock_of_another_process_is_waited_for_until_the_deadline(tmp_path: Path) -> None:
    now = 0.0

    def clock() -> float:
        nonlocal now
        now += 0.02
        return now

    mine, theirs = (made(tmp_path / "locks", each) for each in (clock, time.monotonic))
    with theirs.claim("uid", 0.0):
        with pytest.raises(ConflictError, match="in another process of this driver is still"):
            mine.claim("uid", 0.1).__enter__()
        assert 0.1 <= now < 0.15
    with mine.claim("uid", 0.0):
        pass
    mine.close()
    theirs.close()


def test_a_call_that_timed_out_does_not_block_others(tmp_path: Path) -> None:
    now = 0.0
    mine, theirs = (made(tmp_path / "locks", clock) for clock in (lambda: now, time.monotonic))

    def hold(deadline: float) -> None:
        with mine.claim("uid", deadline):
            pass

    def queued() -> int:
        return mine._threads.get("claim/uid", (None, 0))[1]

    with ThreadPoolExecutor(2) as pool:
        with theirs.claim("uid", 0.0):
            first = pool.submit(hold, 1.0)
            eventually(lambda: queued() == 1, "the first call to wait")
            second = pool.submit(hold, PATIENCE)
            eventually(lambda: queued() == 2, "the second call to wait")
            now = 2.0
            with pytest.raises(ConflictError, match="in another process of this driver is still"):
                first.result(PATIENCE)
        second.result(2 * PATIENCE)
    mine.close()
    theirs.close()


def test_locking_a_gpu_tells_if_another_process_had_it(tmp_path: Path) -> None:
    heard: list[str] = []

    def process(name: str) -> NodeLocks:
        return NodeLocks(tmp_path / "locks", time.monotonic, on_other=lambda: heard.append(name))

    def take(locks: NodeLocks, *gpus: str) -> list[str]:
        heard.clear()
        with locks.gpus(gpus, time.monotonic() + PATIENCE):
            return list(heard)

    one, two = process("one"), process("two")
    assert take(one, "GPU-1") == ["one"], "nobody knows who had it before"
    assert take(one, "GPU-1") == []
    assert take(two, "GPU-1") == ["two"]
    assert take(one, "GPU-2") == ["one"]
    assert take(one, "GPU-1", "GPU-2") == ["one"]
    many = [f"GPU-{number}" for number in range(200)]
    assert "one" in take(one, *many)
    assert take(two, *many).count("two") == len(many), "no two GPUs are taken for each other"
    assert len(take(two, *many)) <= 2, "and hardly any two have one slot"
    one.close()
    two.close()
