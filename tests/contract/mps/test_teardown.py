"""The end of a domain: what ends with it, and what can stand in its way."""

import os
import signal
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from threading import Event

import pytest
from structlog.testing import capture_logs

from dra_driver.errors import DeviceError
from dra_driver.mps import processes
from dra_driver.mps.daemon import mounts
from dra_driver.mps.domain import Domain, State
from dra_driver.mps.supervisor import lifecycle
from dra_driver.mps.supervisor.supervisor import Supervisor
from worlds.configs import PATIENCE
from worlds.mps import MpsDomains
from worlds.process import eventually

Run = Callable[[AbstractContextManager[Supervisor]], Supervisor]

NOT_QUIT = "mps daemon did not quit"


def check_gone(mps: MpsDomains, domain: Domain) -> None:
    mps.requests.wait_gone(domain.id, time.monotonic() + PATIENCE)
    assert mps.left(domain) == []


def test_a_daemon_that_does_not_quit_is_killed(mps: MpsDomains, run: Run) -> None:
    with capture_logs() as logs:
        run(mps.supervised())
        domain = mps.domain("claim", 0)
        mps.ready(domain)
        mps.wrap_control("exit 1")
        mps.gone(domain)
    assert mps.left(domain) == []
    assert NOT_QUIT in [line["event"] for line in logs]


@pytest.mark.parametrize("status", [0, 1])
def test_a_daemon_that_quits_a_moment_later_is_not_killed(
    mps: MpsDomains, run: Run, monkeypatch: pytest.MonkeyPatch, status: int
) -> None:
    """Status 1 is that of a daemon with a server that did not end properly."""
    for name in ("_LATE_SECONDS", "_KILL_SECONDS"):
        monkeypatch.setattr(lifecycle, name, PATIENCE)
    quit_status = mps.root / "quit-status"
    with capture_logs() as logs:
        run(mps.supervised())
        domain = mps.domain("claim", 0)
        mps.ready(domain)
        mps.wrap_control(
            f"""
[ "$#" = 0 ] || exec $REAL "$@"
read -r command
case "$command" in
quit*) {{ /bin/sleep 0.2; echo "$command" | $REAL; echo $? >{quit_status}; }} >/dev/null 2>&1 &
  exit {status} ;;
*) {{ printf '%s\\n' "$command"; /bin/cat; }} | $REAL ;;
esac
"""
        )
        mps.gone(domain)
    assert mps.left(domain) == []
    eventually(lambda: quit_status.exists() and quit_status.read_text() == "0\n", "its end")
    assert NOT_QUIT not in [line["event"] for line in logs]


def test_processes_that_cannot_be_killed_are_named_until_they_end(
    mps: MpsDomains, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(mps.supervised())
    domain = mps.domain("claim", 0)
    daemon = mps.ready(domain).daemon
    assert daemon is not None
    mps.wrap_control("exit 1")
    with monkeypatch.context() as patch:
        patch.setattr(processes, "kill", lambda *_: False)
        mps.requests.remove(domain.id)
        status = mps.until(domain, lambda now: "cannot be killed" in now.reason)
    assert f"(PID {daemon.pid}): they hang in the GPU driver" in status.reason
    check_gone(mps, domain)


@pytest.mark.parametrize(
    ("folder", "words"), [("log", "is still mounted, so"), ("lib", "Device or resource busy")]
)
def test_an_unremovable_folder_is_kept_with_its_record(
    mps: MpsDomains, run: Run, folder: str, words: str
) -> None:
    domain = mps.domain("claim", 0)
    paths, may_go = mps.files.paths(domain.id), Event()

    def step(name: str) -> None:
        if name == "unmounted" and not may_go.is_set():
            mounts.mount_tmpfs(paths.folder / folder, size_bytes=1024**2, files=8)
        elif name == "unmounted":
            mounts.unmount_all(paths.folder / folder)

    run(mps.supervised(step))
    mps.ready(domain)
    mps.requests.remove(domain.id)
    status = mps.until(domain, lambda now: words in now.reason)
    assert status.state is State.STOPPING
    assert paths.record.exists()
    may_go.set()
    check_gone(mps, domain)


def test_servers_of_a_dead_daemon_whose_record_is_damaged_end(mps: MpsDomains, run: Run) -> None:
    domain = mps.domain("claim", 0)
    with mps.supervised():
        daemon = mps.ready(domain).daemon
        server = mps.server(domain)
    assert daemon is not None
    os.kill(daemon.pid, signal.SIGKILL)
    mps.files.paths(domain.id).record.write_bytes(b"")
    run(mps.supervised())
    again = mps.until(
        domain, lambda now: now.state is State.READY and now.daemon not in (None, daemon)
    )
    server.wait(PATIENCE)
    assert processes.marked(mps.files.paths(domain.id).folder) == [again.daemon]
    mps.gone(domain)
    assert mps.left(domain) == []


def test_a_file_in_the_place_of_a_folder_is_named(mps: MpsDomains, run: Run) -> None:
    domain = mps.domain("claim", 0)
    paths = mps.files.paths(domain.id)
    mps.requests.write_desired(domain)
    paths.folder.mkdir(parents=True)
    paths.log.write_text("in the way")
    run(mps.supervised())
    with pytest.raises(DeviceError, match=f"cannot make {paths.folder}: File exists"):
        mps.ready(domain)
    mps.gone(domain)
    assert mps.left(domain) == []
