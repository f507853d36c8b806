"""What the supervisor does against root containers; their attacks are end-to-end tests."""

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from functools import partial
from pathlib import Path

from msgspec.structs import replace

from dra_driver.devices.device import DeviceKind
from dra_driver.errors import DeviceError
from dra_driver.mps import pipes, processes
from dra_driver.mps.daemon import mounts
from dra_driver.mps.daemon.control import QUIT_ANSWER_SECONDS
from dra_driver.mps.domain import Domain, DomainDevice, DomainId
from dra_driver.mps.supervisor import lifecycle
from dra_driver.mps.supervisor.supervisor import Supervisor
from dra_driver.sharing.mps import GONE_SECONDS
from worlds.configs import PATIENCE
from worlds.mps import QUICK, MpsDomains, running
from worlds.process import eventually

Run = Callable[[AbstractContextManager[Supervisor]], Supervisor]

MIB = 1024**2


def test_no_process_of_a_container_is_inspected(mps: MpsDomains) -> None:
    folder = mps.files.paths(mps.domain("claim", 0).id).folder
    said = {processes.MARK: str(folder), processes.TOKEN: "known"}
    program = mps.root / "nvidia-cuda-mps-control"
    shutil.copy("/bin/sleep", program)
    with subprocess.Popen([program, "600"], env=said) as ours:
        inside = ["unshare", "--pid", "--fork", "--kill-child", program, "600"]
        with subprocess.Popen(inside, env=said) as tenants:
            children = Path(f"/proc/{tenants.pid}/task/{tenants.pid}/children")
            named = Path("/proc") / (eventually(children.read_text, "a child").split()[0]) / "comm"
            eventually(lambda: named.read_text().startswith("nvidia-cuda-mps"), "the server")
            marked, owned = processes.marked(folder), processes.owned("known")
            tenants.kill()
        ours.kill()
    assert [daemon.pid for daemon in marked] == [ours.pid]
    assert owned == marked


def test_limits_that_a_tenant_changed_are_restored(mps: MpsDomains, run: Run) -> None:
    run(mps.supervised())
    domain = mps.domain("claim", 0, limits=(10240,), active_thread_percentage=50)
    daemon = mps.ready(domain).daemon
    ask = partial(mps.control.ask, mps.files.paths(domain.id))

    def limits() -> list[str]:
        commands = ("get_default_active_thread_percentage", "get_default_device_pinned_mem_limit 0")
        with suppress(DeviceError):  # the daemon has one caller at a time
            return ask(commands)
        return []

    changed = (
        "set_default_active_thread_percentage 99",
        "set_default_device_pinned_mem_limit 0 70G",
    )
    for command in changed:
        mps.ask(domain.id, command)
    eventually(lambda: limits() == ["50.0", "10G"], "limits")
    status = mps.requests.status(domain.id)
    assert status is not None
    assert (status.daemon, status.restarts) == (daemon, 0)


def test_a_daemon_that_its_tenant_keeps_busy_is_ended_within_the_wait_for_its_end() -> None:
    longest = QUIT_ANSWER_SECONDS + lifecycle._LATE_SECONDS + lifecycle._KILL_SECONDS
    assert longest + 2 <= GONE_SECONDS


def size_of(folder: Path) -> tuple[int, int, int]:
    """The bytes and files that a file system takes, and the permissions of its top."""
    found = os.statvfs(folder)
    return found.f_blocks * found.f_frsize, found.f_files, folder.stat().st_mode & 0o7777


def test_folders_for_tenants_are_small_and_readable(mps: MpsDomains, run: Run) -> None:
    before = os.umask(0o077)
    try:
        run(mps.supervised())
        domain = mps.domain("claim", 0)
        mps.ready(domain)
    finally:
        os.umask(before)
    paths = mps.files.paths(domain.id)
    assert sorted(path.name for path in paths.pipe.iterdir()) == ["control", "log"]
    assert size_of(paths.shm) == (16 * MIB, 65_536, 0o1777)
    assert size_of(paths.log) == (64 * MIB, pipes.FILES, 0o755)
    assert size_of(paths.run) == (MIB, pipes.FILES, 0o755)
    assert paths.folder.stat().st_mode & 0o777 == 0o755
    wanted = os.ST_NODEV | os.ST_NOSUID | os.ST_NOEXEC
    assert all(os.statvfs(folder).f_flag & wanted == wanted for folder in paths.mounted)


def test_all_domains_of_a_node_share_half_of_its_memory_for_their_files(
    mps: MpsDomains, run: Run
) -> None:
    context = replace(mps.supervisor()._context, shm_bytes=None)
    run(running(Supervisor(context, QUICK, time.monotonic)))
    mig = DomainDevice(uuid="MIG-11111111-2222-3333-4444-555555555555", kind=DeviceKind.MIG)
    both, part = mps.domain("both", 0, 1), Domain(id=DomainId("part"), devices=(mig,))
    page = os.sysconf("SC_PAGE_SIZE")
    per_gpu = os.sysconf("SC_PHYS_PAGES") * page / 2 / len(mps.machine.gpus)
    for domain, wanted in ((both, 2 * per_gpu), (part, per_gpu / 7)):
        mps.ready(domain)
        size, *_ = size_of(mps.files.paths(domain.id).shm)
        assert abs(size - wanted) < 4 * page
        mps.gone(domain)


def test_a_full_log_folder_is_bounded_and_stops_nothing(mps: MpsDomains, run: Run) -> None:
    run(mps.supervised())
    domain = mps.domain("claim", 0)
    daemon = mps.ready(domain).daemon
    assert daemon is not None
    log = mps.files.paths(domain.id).log
    assert mounts.layers(log) == 1
    with suppress(OSError), (log / "control.log").open("ab", buffering=0) as file:
        while True:  # as its clients can make the daemon do
            file.write(b"\1" * MIB)
            if file.tell() > 200 * MIB:
                break
    assert (log / "control.log").stat().st_size < 100 * MIB
    os.kill(daemon.pid, signal.SIGKILL)
    mps.until(domain, lambda now: now.restarts == 1 and now.state == "ready")
    end = time.monotonic() + PATIENCE
    while (log / "control.log").stat().st_size > MIB:
        assert time.monotonic() < end
        time.sleep(0.02)
    mps.gone(domain)
    assert mps.left(domain) == []
