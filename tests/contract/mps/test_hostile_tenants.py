"""What a root container can do in the folders that it shares with its daemon, and to whom.

A tenant is played by this process: it has the domain's `pipe` and `shm`, and can write its own
environment, its own name and whatever it likes into these folders.
"""

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, suppress
from functools import partial
from pathlib import Path

import pytest
from msgspec.structs import replace

from dra_driver.devices.device import DeviceKind
from dra_driver.errors import DeviceError
from dra_driver.mps import pipes, processes
from dra_driver.mps.daemon import mounts
from dra_driver.mps.daemon.control import QUIT_ANSWER_SECONDS
from dra_driver.mps.domain import Daemon, Domain, DomainDevice, DomainId, Status
from dra_driver.mps.supervisor import lifecycle
from dra_driver.mps.supervisor.cgroup import GROUP, DaemonGroup
from dra_driver.mps.supervisor.supervisor import Supervisor
from dra_driver.sharing.mps import GONE_SECONDS
from worlds.configs import PATIENCE
from worlds.mps import QUICK, MpsDomains, running
from worlds.process import eventually

Run = Callable[[AbstractContextManager[Supervisor]], Supervisor]

MIB = 1024**2
FORGED = """
import os, socket, sys, time
os.chdir(sys.argv[1])
for name in ("control", "control_privileged"):
    if os.path.lexists(name):
        os.unlink(name)
    end = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    end.bind(name)
    end.listen(8)
    globals()[name] = end
print("listening", flush=True)
time.sleep(600)
"""


@pytest.fixture
def forged() -> Iterator[Callable[[MpsDomains, Domain], Daemon]]:
    """Start what looks like the domain's daemon as far as a tenant can make it so."""
    children: list[subprocess.Popen[str]] = []

    def start(mps: MpsDomains, domain: Domain) -> Daemon:
        paths = mps.files.paths(domain.id)
        environment = {
            processes.MARK: str(paths.folder),
            processes.GENERATION: domain.daemon_generation,
            "CUDA_VISIBLE_DEVICES": domain.visible_devices,
        }
        child = subprocess.Popen(
            [sys.executable, "-c", FORGED, str(paths.pipe)],
            env=environment,
            stdout=subprocess.PIPE,
            text=True,
        )
        children.append(child)
        assert child.stdout is not None
        assert child.stdout.readline() == "listening\n"
        daemon = processes.daemon_at(child.pid)
        assert daemon is not None
        return daemon

    yield start
    for child in children:
        child.kill()
        child.communicate(timeout=PATIENCE)


def daemon_of(status: Status) -> Daemon:
    assert status.daemon is not None
    return status.daemon


def supervisor_with_group(mps: MpsDomains, root: Path) -> Supervisor:
    """A supervisor whose control groups are plain files, which keep the last PID written."""
    root.mkdir(exist_ok=True)
    (root / "cgroup.procs").touch()
    context = replace(mps.supervisor()._context, group=DaemonGroup(root))
    return Supervisor(context, QUICK, time.monotonic)


def test_a_forged_daemon_is_neither_adopted_nor_moved_to_another_control_group(
    mps: MpsDomains, run: Run, forged: Callable[[MpsDomains, Domain], Daemon]
) -> None:
    run(running(supervisor_with_group(mps, mps.root / "cgroups")))
    domain = mps.domain("claim", 0)
    first = daemon_of(mps.ready(domain))
    forger = forged(mps, domain)
    os.kill(first.pid, signal.SIGKILL)

    status = mps.until(domain, lambda now: now.restarts == 1 and now.state == "ready")

    moved = (mps.root / "cgroups" / GROUP / "cgroup.procs").read_text().split()
    assert status.daemon not in (first, forger)
    assert str(forger.pid) not in moved
    mps.gone(domain)
    assert processes.is_alive(forger)


def test_a_supervisor_that_takes_over_does_not_adopt_a_forged_daemon(
    mps: MpsDomains, run: Run, forged: Callable[[MpsDomains, Domain], Daemon]
) -> None:
    domain = mps.domain("claim", 0)
    mps.requests.write_desired(domain)
    mps.files.make_folders()
    paths = mps.files.paths(domain.id)
    paths.pipe.mkdir(parents=True)
    forger = forged(mps, domain)

    run(running(supervisor_with_group(mps, mps.root / "cgroups")))

    assert mps.ready(domain).daemon != forger
    assert (mps.root / "cgroups" / GROUP / "cgroup.procs").read_text() != f"{forger.pid}\n"
    mps.gone(domain)
    assert mps.left(domain) == []
    assert processes.is_alive(forger)


def test_no_process_of_a_container_is_looked_at_whatever_it_says_to_be(mps: MpsDomains) -> None:
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


def test_a_link_to_another_claims_daemon_does_not_end_it(mps: MpsDomains, run: Run) -> None:
    looks: list[str] = []
    run(mps.supervised(lambda domain, name: looks.append(f"{domain} {name}")))
    victim, hostile = mps.domain("victim", 0), mps.domain("hostile", 1)
    kept = mps.ready(victim)
    mps.ready(hostile)
    (target,) = mps.files.paths(victim.id).folder.rglob("control_privileged")
    link = mps.files.paths(hostile.id).pipe / "control_privileged"
    link.unlink(missing_ok=True)
    link.symlink_to(target)

    mps.gone(hostile)

    before = looks.count("victim reported")
    eventually(lambda: looks.count("victim reported") > before + 1, "a look that begins after it")
    status = mps.requests.status(victim.id)
    assert status is not None
    assert (status.daemon, status.restarts) == (kept.daemon, 0)
    assert processes.is_alive(daemon_of(status))


def command(mps: MpsDomains, domain: Domain, *commands: str) -> str:
    """Give a daemon commands as its clients can; return what it says."""
    # The socket for clients, under the name by which NVIDIA's program looks for the other too.
    mine = mps.root / "mine"
    mine.mkdir(exist_ok=True)
    for name in ("control", "control_privileged"):
        with suppress(FileExistsError):
            (mine / name).symlink_to(mps.files.paths(domain.id).pipe / "control")
    done = subprocess.run(
        [mps.machine.driver_root / "usr/bin/nvidia-cuda-mps-control"],
        input="".join(f"{one}\n" for one in commands),
        cwd=mine,
        env={"CUDA_MPS_PIPE_DIRECTORY": "."},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    return done.stdout + done.stderr


def test_a_tenant_cannot_tell_its_daemon_to_quit(mps: MpsDomains, run: Run) -> None:
    run(mps.supervised())
    domain = mps.domain("claim", 0)
    daemon = daemon_of(mps.ready(domain))
    pipe = mps.files.paths(domain.id).pipe
    assert sorted(path.name for path in pipe.iterdir()) == ["control", "log"]

    assert "Not enough privilege" in command(mps, domain, "quit")
    assert processes.is_alive(daemon)


def test_limits_that_a_tenant_has_changed_are_put_back(mps: MpsDomains, run: Run) -> None:
    run(mps.supervised())
    domain = mps.domain("claim", 0, limits=(10240,), active_thread_percentage=50)
    daemon = daemon_of(mps.ready(domain))
    ask = partial(mps.supervisor()._context.control.ask, mps.files.paths(domain.id))

    def limits() -> list[str]:
        commands = ("get_default_active_thread_percentage", "get_default_device_pinned_mem_limit 0")
        with suppress(DeviceError):  # the daemon has one caller at a time
            return ask(commands)
        return []

    changed = (
        "set_default_active_thread_percentage 99",
        "set_default_device_pinned_mem_limit 0 70G",
    )
    assert "99.0" in command(mps, domain, *changed)

    eventually(lambda: limits() == ["50.0", "10G"], "limits")
    status = mps.requests.status(domain.id)
    assert status is not None
    assert (status.daemon, status.restarts) == (daemon, 0)


def test_a_daemon_that_its_tenant_keeps_busy_is_ended_within_the_wait_for_its_end() -> None:
    longest = QUIT_ANSWER_SECONDS + lifecycle._LATE_SECONDS + lifecycle._KILL_SECONDS
    assert longest + 2 <= GONE_SECONDS


def _fifo(path: Path) -> None:
    os.mkfifo(path)


def _folder(path: Path) -> None:
    (path / "deep" / "er").mkdir(parents=True)


def _device(path: Path) -> None:
    os.mknod(path, 0o600 | 0o020000, os.makedev(1, 5))  # /dev/zero: it never ends


def _silent_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as end:
        here = Path.cwd()
        os.chdir(path.parent)
        try:
            end.bind(path.name)
        finally:
            os.chdir(here)


@pytest.mark.parametrize("put", [_fifo, _folder, _device, _silent_socket])
def test_whatever_lies_in_a_sockets_place_the_domain_restarts_and_ends(
    mps: MpsDomains, run: Run, put: Callable[[Path], None]
) -> None:
    run(mps.supervised())
    domain = mps.domain("claim", 0)
    daemon = daemon_of(mps.ready(domain))
    pipe = mps.files.paths(domain.id).pipe
    for name in ("control", "control_privileged", "log", "nvidia-cuda-mps-control.pid"):
        (pipe / name).unlink(missing_ok=True)
        put(pipe / name)
    os.kill(daemon.pid, signal.SIGKILL)
    mps.until(domain, lambda now: now.restarts == 1 and now.state == "ready")
    assert (pipe / "control").is_socket()
    mps.gone(domain)
    assert mps.left(domain) == []


def size_of(folder: Path) -> tuple[int, int, int]:
    """The bytes and files that a file system takes, and the permissions of its top."""
    found = os.statvfs(folder)
    return found.f_blocks * found.f_frsize, found.f_files, folder.stat().st_mode & 0o7777


def test_what_tenants_can_fill_is_small_and_what_they_need_can_be_read(
    mps: MpsDomains, run: Run
) -> None:
    before = os.umask(0o077)
    try:
        run(mps.supervised())
        domain = mps.domain("claim", 0)
        mps.ready(domain)
    finally:
        os.umask(before)
    paths = mps.files.paths(domain.id)
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


def fill(folder: Path) -> int:
    """Write until nothing more is taken, at most 200 MiB and 5000 files; return the MiB."""
    written = 0
    with suppress(OSError), (folder / "big").open("wb", buffering=0) as file:
        while written < 200:
            file.write(b"\1" * MIB)
            written += 1
    with suppress(OSError):
        for number in range(5000):
            (folder / f"small-{number}").touch()
    return written


def test_a_full_pipe_folder_is_small_and_stops_nothing(mps: MpsDomains, run: Run) -> None:
    run(mps.supervised())
    domain = mps.domain("claim", 0)
    daemon = daemon_of(mps.ready(domain))
    pipe = mps.files.paths(domain.id).pipe
    assert fill(pipe) <= 4
    assert len(list(pipe.iterdir())) < 1000
    os.kill(daemon.pid, signal.SIGKILL)
    mps.until(domain, lambda now: now.restarts == 1 and now.state == "ready")
    mps.gone(domain)
    assert mps.left(domain) == []


def test_a_full_log_folder_is_bounded_and_stops_nothing(mps: MpsDomains, run: Run) -> None:
    run(mps.supervised())
    domain = mps.domain("claim", 0)
    daemon = daemon_of(mps.ready(domain))
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
