"""What is looked after while a daemon serves: its servers and its logs."""

import os

import pytest
from structlog.testing import capture_logs

from dra_driver.errors import StateError
from dra_driver.mps import processes
from dra_driver.mps.daemon.health import ServerState
from worlds.played_mps import Life, environment, serving

MIB = 1024**2


def test_a_tenants_process_that_listens_is_not_taken_for_a_daemon_whose_record_is_lost(
    life: Life, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = life.domain(0)
    serving(life, wanted)
    life.control.listener = theirs = life.control.process(environment(wanted, life.paths, "theirs"))
    life.paths.record.unlink()
    life.supervise()
    outside = processes.is_outside_containers
    monkeypatch.setattr(
        processes, "is_outside_containers", lambda one: one != theirs and outside(one)
    )
    assert life.lifecycle.ensure_serving(wanted, None).daemon != theirs
    assert processes.is_alive(theirs), "nothing of a tenant's is ended"


def test_limits_of_servers_that_take_clients_are_put_back_and_said(life: Life) -> None:
    life.control.answers |= {
        "active_thread_percentage 41": ["90"],
        "active_thread_percentage 42": ["90"],
    }
    states = [ServerState(pid=41, status="ACTIVE"), ServerState(pid=42, status="FAULT")]
    with capture_logs() as logs:
        life.lifecycle.keep_limits(life.domain(0, active_thread_percentage=30), states)
    assert life.control.answers["active_thread_percentage 41"] == ["30"]
    assert life.control.answers["active_thread_percentage 42"] == ["90"]
    assert [line["cause"].partition(" had ")[0] for line in logs] == ["server 41"]


def test_a_log_of_more_than_8_mib_is_copied_and_cut_and_others_are_left_alone(life: Life) -> None:
    wanted = life.domain(0)
    served = serving(life, wanted)
    long, short, other = (life.paths.log / name for name in ("long.log", "short.log", "file"))
    for path, size in ((long, 8 * MIB + 1), (short, 8 * MIB), (other, 9 * MIB)):
        path.touch()
        os.truncate(path, size)
    life.lifecycle.ensure_serving(wanted, None)
    assert long.stat().st_size > 0, "it is not looked at while the domain comes up"
    life.lifecycle.ensure_serving(wanted, served)
    assert [path.stat().st_size for path in (long, short, other)] == [0, 8 * MIB, 9 * MIB]
    assert (life.paths.log / "long.log.1").stat().st_size == 8 * MIB + 1


def test_a_log_is_cut_although_there_is_no_space_for_a_copy(life: Life) -> None:
    wanted = life.domain(0)
    served = serving(life, wanted)
    paths = [life.paths.log / f"{name}.log" for name in range(2)]
    for path in paths:
        path.write_bytes(bytes(9 * MIB))
    filler = life.paths.log / "filler"
    with filler.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, os.statvfs(life.paths.log).f_bavail * 4096)
    life.lifecycle.ensure_serving(wanted, served)
    assert [path.stat().st_size for path in paths] == [0, 0]


def test_a_folder_in_whose_place_a_file_lies_is_named(life: Life) -> None:
    life.paths.folder.mkdir()
    life.paths.log.write_text("in the way")
    with pytest.raises(StateError, match=f"cannot make {life.paths.folder}: File exists"):
        life.lifecycle.ensure_serving(life.domain(0), None)
