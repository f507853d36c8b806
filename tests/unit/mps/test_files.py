"""Files, the lock and the wait between driver and supervisor."""

import gc
import time
from contextlib import suppress
from pathlib import Path

import pytest

from dra_driver.errors import StateError
from dra_driver.mps.cgroup import GROUP, DaemonGroup
from dra_driver.mps.domain import Daemon, Domain, DomainDevice, DomainId
from dra_driver.mps.files import MpsFiles, delete_file, ids_in, read_file, write_file
from dra_driver.mps.inotify import FolderWatch, WatchPool
from dra_driver.mps.lock import SupervisorLock, running_supervisor
from dra_driver.mps.record import DomainRecord, read_record, write_record
from dra_driver.mps.requests import DomainRequests

DOMAIN = Domain(id=DomainId("claim"), devices=(DomainDevice(uuid="GPU-1"),))


@pytest.mark.parametrize("durable", [True, False])
def test_a_file_is_written_whole_replaced_and_deleted(tmp_path: Path, durable: bool) -> None:
    path = tmp_path / "a.json"
    assert read_file(path) is None
    write_file(path, b"one", durable=durable)
    write_file(path, b"two", durable=durable)
    assert read_file(path) == b"two"
    assert ids_in(tmp_path) == {"a"}
    (tmp_path / ".a.json.tmp").touch()
    delete_file(path)
    delete_file(path)
    assert list(tmp_path.iterdir()) == []


def test_half_written_files_are_nobodys_desired(tmp_path: Path) -> None:
    (tmp_path / ".a.json.tmp").touch()
    (tmp_path / ".b.json").touch()
    assert ids_in(tmp_path) == set()
    assert ids_in(tmp_path / "absent") == set()


def test_a_folder_in_the_way_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.json").mkdir()
    with pytest.raises(StateError, match=r"cannot write .*a\.json"):
        write_file(tmp_path / "a.json", b"", durable=False)


def test_no_id_leads_out_of_the_mps_directory(tmp_path: Path) -> None:
    files = MpsFiles(root=tmp_path)
    for path in (files.desired, files.status, files.paths):
        with pytest.raises(StateError, match="not a valid domain id"):
            path(DomainId("../../etc/cron.d/x"))


def test_who_holds_the_lock_is_seen_without_taking_it(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    first, second = SupervisorLock(path), SupervisorLock(path)
    assert running_supervisor(path) is None
    assert first.take("first")
    assert running_supervisor(path) == "first"
    assert not second.take("second")
    first.release()
    assert running_supervisor(path) is None
    assert second.take("second")
    assert running_supervisor(path) == "second"
    second.release()


def test_a_wait_on_a_folder_ends_with_a_change_or_a_wake(tmp_path: Path) -> None:
    hours = 3600.0
    with FolderWatch(tmp_path) as watch:
        write_file(tmp_path / "a.json", b"", durable=False)
        watch.wait(hours)
        delete_file(tmp_path / "a.json")
        watch.wait(hours)
        watch.wake()
        watch.wait(hours)
        watch.wait(0)


def test_a_watch_that_comes_back_is_lent_again(tmp_path: Path) -> None:
    pool = WatchPool(tmp_path, most_kept=1)
    with pool.lend() as first, pool.lend() as second:
        assert first is not second
    with pool.lend() as again:
        assert again is second
        write_file(tmp_path / "a.json", b"", durable=False)
        again.wait(3600.0)
    pool.close()
    with pool.lend() as late:
        assert late is not again


def watched_folders() -> int:
    """How many inotify instances this process has; what nobody has any more does not count."""
    gc.collect()
    found = 0
    for descriptor in Path("/proc/self/fd").iterdir():
        with suppress(OSError):  # the descriptor of this very listing
            found += str(descriptor.readlink()) == "anon_inode:inotify"
    return found


def test_watches_end_with_who_has_them(tmp_path: Path) -> None:
    before = watched_folders()
    pool = WatchPool(tmp_path, most_kept=1)
    with pool.lend():
        pass
    assert watched_folders() == before + 1
    del pool
    assert watched_folders() == before


def test_a_watch_on_a_folder_that_was_replaced_is_not_lent(tmp_path: Path) -> None:
    folder = tmp_path / "status"
    pool = WatchPool(folder, most_kept=1)
    with pool.lend() as polling:  # there is no folder yet
        pass
    folder.mkdir()
    with pool.lend() as former:
        assert former is not polling
    folder.rename(tmp_path / "former")
    folder.mkdir()
    with pool.lend() as watch:
        assert watch is not former
        write_file(folder / "a.json", b"", durable=False)
        watch.wait(3600.0)
    pool.close()


def test_a_folder_that_cannot_be_watched_is_polled(tmp_path: Path) -> None:
    with FolderWatch(tmp_path / "absent") as watch:
        watch.wait(3600.0)


def test_asking_for_the_same_again_touches_nothing(tmp_path: Path) -> None:
    requests = DomainRequests(tmp_path / "mps", time.monotonic)
    requests.write_desired(DOMAIN)
    path = tmp_path / "mps/desired/claim.json"
    before = path.stat()
    requests.write_desired(DOMAIN)
    assert path.stat() == before
    assert requests.desired(DOMAIN.id) == DOMAIN
    assert requests.list() == {"claim"}
    requests.remove(DOMAIN.id)
    requests.remove(DOMAIN.id)
    assert requests.desired(DOMAIN.id) is None


def test_a_domain_that_never_was_is_gone_also_without_a_supervisor(tmp_path: Path) -> None:
    requests = DomainRequests(tmp_path / "mps", time.monotonic)
    requests.wait_gone(DOMAIN.id, time.monotonic())
    assert not requests.supervisor_runs()


def test_damaged_files_say_nothing(tmp_path: Path) -> None:
    requests = DomainRequests(tmp_path, time.monotonic)
    requests.write_desired(DOMAIN)
    (tmp_path / "desired/claim.json").write_bytes(b"{")
    (tmp_path / "status/claim.json").write_bytes(b"{")
    assert requests.desired(DOMAIN.id) is None
    assert requests.status(DOMAIN.id) is None


def test_a_record_holds_until_the_next_boot(tmp_path: Path) -> None:
    path = tmp_path / "record.json"
    record = DomainRecord(
        boot_id="one", modes_found={"GPU-1": 2}, daemon=Daemon(pid=7, start_ticks=8), restarts=3
    )
    assert read_record(path, "one") is None
    write_record(path, record)
    assert read_record(path, "one") == record
    assert read_record(path, "two") == DomainRecord(boot_id="two", restarts=3)


@pytest.mark.parametrize("damage", [b"", b"\0" * 100, b'{"version":1}\n'])
def test_a_damaged_record_is_known_for_one(tmp_path: Path, damage: bytes) -> None:
    path = tmp_path / "record.json"
    path.write_bytes(damage)
    record = read_record(path, "one")
    assert record is not None
    assert record.is_damaged


def test_a_daemon_is_moved_in_every_hierarchy_of_cgroup_v1(tmp_path: Path) -> None:
    for name in ("devices", "cpuset"):
        (tmp_path / name / GROUP).mkdir(parents=True)
        (tmp_path / name / "cgroup.procs").touch()
    (tmp_path / "link").symlink_to("devices")
    (tmp_path / "cpuset/cpuset.cpus").write_text("0-1\n")
    (tmp_path / "cpuset" / GROUP / "cpuset.cpus").write_text("\n")
    DaemonGroup(tmp_path).take(Daemon(pid=7, start_ticks=8))
    assert (tmp_path / "devices" / GROUP / "cgroup.procs").read_text() == "7\n"
    assert (tmp_path / "cpuset" / GROUP / "cgroup.procs").read_text() == "7\n"
    assert (tmp_path / "cpuset" / GROUP / "cpuset.cpus").read_text() == "0-1\n"


def test_a_daemon_is_moved_once_in_cgroup_v2(tmp_path: Path) -> None:
    (tmp_path / "cgroup.procs").touch()
    DaemonGroup(tmp_path).take(Daemon(pid=7, start_ticks=8))
    assert (tmp_path / GROUP / "cgroup.procs").read_text() == "7\n"


def test_without_a_cgroup_file_system_nothing_is_moved() -> None:
    DaemonGroup(None).take(Daemon(pid=7, start_ticks=8))
