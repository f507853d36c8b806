"""What is done for a domain, step by step, and what is on disk at each when a supervisor dies."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from dra_driver.devices.device import DeviceKind
from dra_driver.errors import DeviceError, StateError
from dra_driver.mps import pipes, processes
from dra_driver.mps.daemon import mounts
from dra_driver.mps.domain import Daemon, Domain, DomainDevice, State
from dra_driver.mps.supervisor import lifecycle
from dra_driver.mps.supervisor.lifecycle import LOST_WORK
from dra_driver.mps.supervisor.record import DomainRecord, write_record
from worlds.configs import PATIENCE
from worlds.played_mps import BOOT, SHM_BYTES, UUIDS, At, Life, environment, serving, size_of

MIB = 1024**2
PROHIBITED, EXCLUSIVE = 2, 3
STARTED = [
    "cleared", "folders made", "mounted", "modes recorded", "modes set", "launched", "recorded",
    "limited",
]  # fmt: skip
MODES_PUT_BACK = ["compute mode restored"]
ENDED = ["stopping", "quit", "stopped", "unmounted", "modes restored", "removed"]


# A domain comes up


def test_a_start_is_recorded_before_what_nobody_could_see_afterwards(life: Life) -> None:
    life.modes.modes[UUIDS[1]] = PROHIBITED
    found = {UUIDS[0]: 0, UUIDS[1]: PROHIBITED}
    wanted = life.domain(0, 1, limit=1024, active_thread_percentage=30)

    served = life.lifecycle.ensure_serving(wanted, None)

    assert life.steps == [
        At("begun"),
        At("cleared"),
        At("folders made"),
        At("mounted", mounted=3),
        At("modes recorded", found=found, has_token=True, mounted=3),
        At("modes set", found=found, has_token=True, mounted=3, exclusive=2),
        At("launched", found=found, has_token=True, mounted=3, exclusive=2, running=1),
        At("recorded", found, has_token=True, has_daemon=True, mounted=3, exclusive=2, running=1),
        At("limited", found, has_token=True, has_daemon=True, mounted=3, exclusive=2, running=1),
    ]
    record = life.record
    assert record is not None
    assert (record.daemon, record.restarts) == (served.daemon, 0)
    assert len(record.token) == 32
    assert life.reports == [(State.STARTING, "")]
    assert (life.moved, life.modes.openings, life.modes.is_open) == ([served.daemon], 1, False)
    assert served.generation == wanted.generation
    assert served.limits.active_thread_percentage == 30.0
    assert served.limits.pinned_memory_mib == ((UUIDS[0], 1024), (UUIDS[1], 1024))


def test_what_tenants_can_fill_is_small_and_what_they_need_can_be_read(life: Life) -> None:
    before = os.umask(0o077)
    try:
        serving(life, life.domain(0))
    finally:
        os.umask(before)
    assert size_of(life.paths.shm) == (SHM_BYTES, 65_536, 0o1777)
    assert size_of(life.paths.log) == (64 * MIB, pipes.FILES, 0o755)
    assert size_of(life.paths.run) == (MIB, pipes.FILES, 0o755)
    assert life.paths.folder.stat().st_mode & 0o777 == 0o755
    for name in pipes.SHARED:
        assert (life.paths.pipe / name).samefile(life.paths.own / name)


def test_a_daemon_that_serves_as_wanted_is_asked_for_its_limits_and_nothing_else(
    life: Life,
) -> None:
    wanted = life.domain(0, active_thread_percentage=30)
    served = serving(life, wanted)
    assert life.lifecycle.ensure_serving(wanted, served) is served
    assert (life.names(), life.reports, life.moved) == ([], [], [])
    assert life.control.asked == ["get_default_active_thread_percentage"]


def test_limits_that_a_tenant_has_changed_are_put_back(life: Life) -> None:
    wanted = life.domain(0, active_thread_percentage=30)
    served = serving(life, wanted)
    life.control.answers["default_active_thread_percentage"] = ["80"]
    assert life.lifecycle.ensure_serving(wanted, served) == served
    assert life.control.answers["default_active_thread_percentage"] == ["30"]
    assert life.names() == ["limited"]


def test_other_limits_are_set_in_the_daemon_that_runs(life: Life) -> None:
    served = serving(life, life.domain(0, active_thread_percentage=30))
    wanted = life.domain(0, active_thread_percentage=20)
    again = life.lifecycle.ensure_serving(wanted, served)
    assert again.daemon == served.daemon
    assert (again.generation, again.limits.active_thread_percentage) == (wanted.generation, 20.0)
    assert life.names() == ["limited"]


def test_a_daemon_for_other_devices_is_ended_first_and_is_no_death(life: Life) -> None:
    served = serving(life, life.domain(0, 1))
    again = life.lifecycle.ensure_serving(life.domain(1, 2), served)
    assert life.steps[:2] == [
        At("quit", dict.fromkeys(UUIDS[:2], 0), True, True, 0, 3, 2),
        At("cleared", dict.fromkeys(UUIDS[:2], 0), True, False, 0, 3, 2),
    ]
    assert life.names() == ["quit", *STARTED]
    assert life.killed == []
    assert list(life.modes.modes.values()) == [0, EXCLUSIVE, EXCLUSIVE]
    record = life.record
    assert record is not None
    assert (record.daemon, record.restarts) == (again.daemon, 0)
    assert set(record.modes_found) == set(UUIDS[1:])
    assert (life.deaths, life.reports) == (0, [])


def test_a_daemon_for_other_users_is_ended_too(life: Life) -> None:
    served = serving(life, life.domain(0))
    again = life.lifecycle.ensure_serving(life.domain(0, multi_user=True), served)
    assert again.daemon != served.daemon


def test_modes_found_before_stay_recorded_when_modes_are_to_be_left_alone(life: Life) -> None:
    serving(life, life.domain(0, 1))
    life.compute_modes._change = False
    life.lifecycle.ensure_serving(life.domain(1, 2), None)
    record = life.record
    assert record is not None
    assert dict(record.modes_found) == {UUIDS[1]: 0}


def test_a_mig_device_has_no_mode(life: Life) -> None:
    uuid = "MIG-11111111-2222-3333-4444-555555555555"
    device = DomainDevice(uuid=uuid, kind=DeviceKind.MIG)
    serving(life, Domain(id=life.id, devices=(device,)))
    assert (life.modes.writes, life.modes.openings) == (0, 0)


# A daemon dies


def test_a_death_is_counted_told_and_its_servers_end_before_the_next_starts(life: Life) -> None:
    wanted = life.domain(0)
    served = serving(life, wanted)
    orphan = life.server(wanted)
    life.control.end(served.daemon)

    again = life.lifecycle.ensure_serving(wanted, served)

    found = {UUIDS[0]: 0}
    assert life.steps[:2] == [
        At("death recorded", found, True, False, 1, 3, 1),
        At("cleared", found, True, False, 0, 3, 1),
    ]
    assert life.names() == ["death recorded", *STARTED]
    assert life.killed == [orphan]
    assert life.reports == [(State.RESTARTING, LOST_WORK)]
    assert life.deaths == 1
    record = life.record
    assert record is not None
    assert (record.daemon, record.restarts) == (again.daemon, 1)
    assert record.modes_found == found, "not the exclusive one"


def test_a_daemon_that_was_given_up_is_killed_with_its_servers_and_counted(life: Life) -> None:
    wanted = life.domain(0)
    served = serving(life, wanted)
    hung = life.server(wanted)
    life.lifecycle.give_up("it hangs")
    assert life.steps[0] == At("given up", {UUIDS[0]: 0}, True, True, 0, 3, 1)
    assert life.names() == ["given up", "death recorded"]
    assert set(life.killed) == {served.daemon, hung}
    assert life.deaths == 1
    record = life.record
    assert record is not None
    assert (record.daemon, record.restarts) == (None, 1)


def test_nothing_is_given_up_before_there_is_a_daemon(life: Life) -> None:
    life.lifecycle.give_up("it hangs")
    life.paths.folder.mkdir()
    write_record(life.paths.record, DomainRecord(boot_id=BOOT, restarts=1))
    life.lifecycle.give_up("it hangs")
    assert (life.steps, life.deaths) == ([], 0)


def test_processes_that_cannot_be_killed_are_named_and_no_daemon_is_put_beside_them(
    life: Life, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = life.domain(0)
    both = {serving(life, wanted).daemon, life.server(wanted)}
    asked: list[tuple[list[Daemon], float]] = []

    def kill(left: list[Daemon], seconds: float) -> bool:
        asked.append((left, seconds))
        return False

    monkeypatch.setattr(lifecycle.processes, "kill", kill)
    with pytest.raises(DeviceError, match=r"cannot be killed \(PID \d+, \d+\): they"):
        life.lifecycle.give_up("it hangs")
    assert [(set(left), seconds) for left, seconds in asked] == [(both, 5.0)]
    assert life.deaths == 0


# Another supervisor comes


def die_starting(life: Life, wanted: Domain, at: str) -> None:
    """Bring a domain up as far as a step; then another supervisor comes."""

    def die(step: str) -> None:
        if step == at:
            raise KeyboardInterrupt

    life.on_step = die
    with pytest.raises(KeyboardInterrupt):
        life.lifecycle.ensure_serving(wanted, None)
    life.on_step = lambda _: None
    life.supervise()
    record = life.record
    if record is not None:
        life.compute_modes.remember(life.id, record.modes_found)


@pytest.mark.parametrize("at", ["begun", *STARTED[:-1]])
def test_killed_at_a_step_of_a_start_the_next_one_goes_on_with_the_same_daemon(
    life: Life, at: str
) -> None:
    wanted = life.domain(0, 1)
    die_starting(life, wanted, at)
    before = processes.marked(life.paths.folder)

    served = life.lifecycle.ensure_serving(wanted, None)

    assert before in ([], [served.daemon])
    record = life.record
    assert record is not None
    assert record.daemon == served.daemon
    assert dict(record.modes_found) == dict.fromkeys(UUIDS[:2], 0)
    assert (record.restarts, life.deaths) == (0, 0)


@pytest.mark.parametrize("at", ["begun", *STARTED])
def test_killed_at_a_step_of_a_start_that_is_not_wanted_any_more_nothing_is_left(
    life: Life, at: str
) -> None:
    die_starting(life, life.domain(0, 1), at)
    life.lifecycle.tear_down()
    assert life.at() == At("")
    assert not life.paths.folder.exists()


@pytest.mark.parametrize("damage", [lambda path: path.unlink(), lambda path: path.write_bytes(b"")])
def test_a_daemon_whose_record_is_lost_is_adopted_and_can_be_ended(
    life: Life, damage: Callable[[Path], object]
) -> None:
    wanted = life.domain(0, 1)
    served = serving(life, wanted)
    before = life.record
    assert before is not None
    damage(life.paths.record)
    life.supervise()

    assert life.lifecycle.ensure_serving(wanted, None).daemon == served.daemon

    assert life.record == before
    life.lifecycle.tear_down()
    assert set(life.modes.modes.values()) == {0}
    assert life.at() == At("")


@pytest.mark.parametrize("damage", [lambda path: path.unlink(), lambda path: path.write_bytes(b"")])
def test_a_domain_that_nobody_wants_and_whose_record_is_lost_leaves_nothing(
    life: Life, damage: Callable[[Path], object]
) -> None:
    serving(life, life.domain(0, 1))
    damage(life.paths.record)
    life.supervise()
    life.lifecycle.tear_down()
    assert set(life.modes.modes.values()) == {0}
    assert life.at() == At("")
    assert life.names() == ENDED


def test_servers_of_a_dead_daemon_whose_record_is_damaged_are_ended(life: Life) -> None:
    wanted = life.domain(0)
    served = serving(life, wanted)
    orphan = life.server(wanted)
    life.control.end(served.daemon)
    life.paths.record.write_bytes(b"")
    life.supervise()
    again = life.lifecycle.ensure_serving(wanted, None)
    assert life.killed == [orphan]
    assert processes.marked(life.paths.folder) == [again.daemon]


def test_a_daemon_without_a_token_whose_record_is_lost_is_adopted_and_can_be_ended(
    life: Life,
) -> None:
    wanted = life.domain(0)
    serving(life, wanted)
    facts = environment(wanted, life.paths, "")
    del facts[processes.TOKEN]
    life.control.listener = life.control.process(facts)
    life.paths.record.unlink()
    life.supervise()
    assert life.lifecycle.ensure_serving(wanted, None).daemon == life.control.listener
    record = life.record
    assert record is not None
    assert (record.token, record.daemon) == ("", life.control.listener)
    assert record.daemon is not None
    life.lifecycle.tear_down()
    assert not processes.is_alive(record.daemon)


def test_a_damaged_record_of_a_domain_without_a_daemon_leaves_nothing(life: Life) -> None:
    served = serving(life, life.domain(0))
    life.control.end(served.daemon)
    life.paths.record.write_bytes(b"")
    life.supervise()
    life.lifecycle.tear_down()
    assert life.names() == [step for step in ENDED if step != "quit"]
    assert not life.paths.folder.exists()


def test_a_daemon_that_is_about_to_end_is_no_longer_taken_for_one_that_serves(
    life: Life, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = life.domain(0)
    served = serving(life, wanted)
    read = processes.environment_of
    # Killed, it loses its memory before its PID.
    monkeypatch.setattr(
        processes, "environment_of", lambda pid: {} if pid == served.daemon.pid else read(pid)
    )
    monkeypatch.setattr(lifecycle, "_LATE_SECONDS", PATIENCE)
    life.control.end_later(served.daemon, 0.1)
    assert life.lifecycle.ensure_serving(wanted, served).daemon != served.daemon
    assert life.deaths == 1


def test_what_listens_without_the_records_token_is_not_taken_for_the_daemon(life: Life) -> None:
    wanted = life.domain(0)
    served = serving(life, wanted)
    stranger = life.control.process(environment(wanted, life.paths, "another"))
    life.control.listener = stranger
    assert life.lifecycle.ensure_serving(wanted, served).daemon == served.daemon
    life.control.end(served.daemon)
    again = life.lifecycle.ensure_serving(wanted, served)
    assert again.daemon not in (served.daemon, stranger)
    assert life.deaths == 1


# A domain goes


def test_an_end_is_undone_step_by_step_and_the_record_goes_last(life: Life) -> None:
    life.modes.modes[UUIDS[1]] = PROHIBITED
    wanted = life.domain(0, 1)
    serving(life, wanted)
    orphan = life.server(wanted)
    (life.paths.libraries / "of").mkdir(parents=True)
    (life.paths.folder / "file").touch()
    life.modes.openings = 0

    life.lifecycle.tear_down()

    found = {UUIDS[0]: 0, UUIDS[1]: PROHIBITED}
    assert life.steps == [
        At("stopping", found, True, True, 2, 3, 2),
        At("quit", found, True, True, 1, 3, 2),
        At("stopped", found, True, False, 0, 3, 2),
        At("unmounted", found, True, False, 0, 0, 2),
        At("modes restored", found, True, False, 0, 0, 0),
        At("removed"),
    ]
    assert life.reports == [(State.STOPPING, "")]
    assert list(life.modes.modes.values()) == [0, PROHIBITED, 0]
    assert (life.modes.openings, life.modes.is_open) == (1, False)
    assert not life.paths.folder.exists()
    assert life.killed == [orphan]


def test_a_domain_of_which_nothing_is_there_ends_silently(life: Life) -> None:
    life.lifecycle.tear_down()
    assert (life.names(), life.reports) == (["modes restored", "removed"], [])


@pytest.mark.parametrize("at", ENDED[:-1])
def test_killed_at_a_step_of_an_end_the_next_one_finishes(life: Life, at: str) -> None:
    serving(life, life.domain(0))

    def die(step: str) -> None:
        if step == at:
            raise KeyboardInterrupt

    life.on_step = die
    with pytest.raises(KeyboardInterrupt):
        life.lifecycle.tear_down()
    life.on_step = lambda _: None
    life.supervise()
    record = life.record
    assert record is not None
    life.compute_modes.remember(life.id, record.modes_found)
    life.lifecycle.tear_down()
    assert life.at() == At("")
    assert not life.paths.folder.exists()


@pytest.mark.parametrize("seconds", [0.0, 0.2])
def test_a_daemon_that_says_it_quits_has_the_time_to(life: Life, seconds: float) -> None:
    serving(life, life.domain(0))
    life.control.on_quit = lambda daemon: life.control.end_later(daemon, seconds)
    life.lifecycle.tear_down()
    assert life.killed == []


def test_a_daemon_that_refuses_to_quit_is_killed(life: Life) -> None:
    served = serving(life, life.domain(0))
    life.control.on_quit = refuse
    with capture_logs() as logs:
        life.lifecycle.tear_down()
    assert life.killed == [served.daemon]
    assert [log["event"] for log in logs] == ["mps daemon did not quit", *MODES_PUT_BACK]


def test_a_daemon_that_refuses_to_quit_and_ends_all_the_same_is_no_warning(
    life: Life, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lifecycle, "_LATE_SECONDS", PATIENCE)
    serving(life, life.domain(0))

    def refuse_and_end(daemon: Daemon) -> None:
        life.control.end_later(daemon, 0.1)
        refuse(daemon)

    life.control.on_quit = refuse_and_end
    with capture_logs() as logs:
        life.lifecycle.tear_down()
    assert life.killed == []
    assert [log["event"] for log in logs] == MODES_PUT_BACK


def refuse(_: Daemon) -> None:
    raise DeviceError("a server did not end")


def test_a_folder_that_is_mounted_again_is_kept_with_its_record(life: Life) -> None:
    serving(life, life.domain(0))

    def mount_again(step: str) -> None:
        if step == "unmounted":
            mounts.mount_tmpfs(life.paths.log, size_bytes=MIB, files=8)

    life.on_step = mount_again
    with pytest.raises(DeviceError, match=rf"{life.paths.log} is still mounted, so .* is kept"):
        life.lifecycle.tear_down()
    assert life.record is not None
    life.on_step = lambda _: None
    life.lifecycle.tear_down()
    assert not life.paths.folder.exists()


def test_the_record_stays_while_anything_else_cannot_be_removed(life: Life) -> None:
    serving(life, life.domain(0))
    life.paths.libraries.mkdir()
    mounts.mount_tmpfs(life.paths.libraries, size_bytes=MIB, files=8)
    with pytest.raises(StateError, match=f"cannot remove {life.paths.folder}: Device or resource"):
        life.lifecycle.tear_down()
    assert life.record is not None
    mounts.unmount_all(life.paths.libraries)
    life.lifecycle.tear_down()
    assert not life.paths.folder.exists()
