"""Waits on a folder, and watches that are lent."""

import gc
import os
import resource
import threading
from contextlib import closing, suppress
from pathlib import Path

import pytest

from dra_driver.host.inotify import FolderWatch, WatchPool
from dra_driver.mps.files import delete_file, write_file


def test_a_wait_on_a_folder_ends_with_a_change_or_a_wake(tmp_path: Path) -> None:
    hours = 3600.0
    with closing(FolderWatch(tmp_path)) as watch:
        write_file(tmp_path / "a.json", b"", durable=False)
        watch.wait(hours)
        delete_file(tmp_path / "a.json")
        watch.wait(hours)
        watch.wake()
        watch.wait(hours)
        watch.wait(0)


def test_a_wake_beside_a_close_never_writes_to_what_is_opened_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    watch = FolderWatch(tmp_path)
    closer = threading.Thread(target=watch.close)
    write = os.eventfd_write
    written: list[str] = []

    def slowly(descriptor: int, value: int) -> None:
        closer.start()
        closer.join(0.1)
        written.append(str(Path(f"/proc/self/fd/{descriptor}").readlink()))
        write(descriptor, value)

    monkeypatch.setattr(os, "eventfd_write", slowly)
    watch.wake()
    closer.join()
    watch.wake()
    assert written == ["anon_inode:[eventfd]"]


def test_a_watch_that_is_returned_is_lent_again(tmp_path: Path) -> None:
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
    """How many inotify instances this process has; what nobody refers to does not count."""
    gc.collect()
    found = 0
    for descriptor in Path("/proc/self/fd").iterdir():
        with suppress(OSError):  # the descriptor of this very listing
            found += str(descriptor.readlink()) == "anon_inode:inotify"
    return found


def test_watches_end_when_nobody_refers_to_them(tmp_path: Path) -> None:
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
    with closing(FolderWatch(tmp_path / "absent")) as watch:
        watch.wait(3600.0)


def test_an_unavailable_watch_is_retried_until_it_works(tmp_path: Path) -> None:
    least, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    free = os.dup(0)
    os.close(free)
    with closing(FolderWatch(tmp_path / "absent")) as watch:
        # As when tenants, who are root as well, have all instances of inotify that root may have.
        resource.setrlimit(resource.RLIMIT_NOFILE, (free + 1, most))
        try:
            (tmp_path / "absent").mkdir()
            watch.wait(3600.0)
            assert not watch.still_watches()
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (least, most))
        watch.wait(3600.0)
        assert watch.still_watches()
        write_file(tmp_path / "absent" / "a.json", b"", durable=False)
        watch.wait(3600.0)
