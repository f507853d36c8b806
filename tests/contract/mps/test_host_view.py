"""A daemon lives on the host's files: none of its supervisor's container has to stay for it."""

import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest
from msgspec.structs import replace

from dra_driver.mps import processes
from dra_driver.mps.daemon import mounts
from dra_driver.mps.daemon.control import Control, View, host_view
from dra_driver.mps.supervisor.supervisor import Supervisor
from worlds.configs import PATIENCE
from worlds.mps import MpsDomains, running
from worlds.node import Node

Run = Callable[[AbstractContextManager[Supervisor]], Supervisor]


@pytest.fixture
def mps(needs_root: None, real_userspace: None) -> Iterator[MpsDomains]:
    """Not in /tmp, which a daemon on the host has for itself."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
        node = Node.create(Path(folder), userspace="real")
        yield node.mps
        node.close()


@contextmanager
def hosted(mps: MpsDomains, mounting: str) -> Iterator[Path]:
    """A mount namespace with mounts of its own; it sees what is mounted here later."""
    subprocess.run(["mount", "--bind", mps.root, mps.root], check=True)
    subprocess.run(["mount", "--make-shared", mps.root], check=True)
    script = f"{mounting} && echo ready && exec sleep 600"
    process = subprocess.Popen(
        ["unshare", "--mount", "--propagation", "slave", "sh", "-c", script],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == "ready\n"
        yield Path(f"/proc/{process.pid}/ns/mnt")
    finally:
        process.kill()
        process.communicate(timeout=PATIENCE)
        mps.clean()
        subprocess.run(["umount", "--lazy", mps.root], check=True)


@pytest.fixture
def host(mps: MpsDomains) -> Iterator[View]:
    """A host that has the driver elsewhere."""
    root = mps.root / "on-the-host"
    root.mkdir()
    with hosted(mps, f"mount --bind {mps.machine.driver_root} {root}") as namespace:
        yield View(driver_root=root, namespace=namespace)


@pytest.fixture
def usual_host(mps: MpsDomains) -> Iterator[View]:
    """A host that has the driver among its own files, as distributions install it."""
    usr = mps.machine.driver_root / "usr"
    with hosted(mps, f"mount -t overlay overlay -o lowerdir={usr}:/usr /usr") as namespace:
        yield View(driver_root=Path("/"), namespace=namespace)


def supervisor(mps: MpsDomains, host: View) -> Supervisor:
    made = mps.supervisor()
    control = Control(mps.machine.driver_root, mps.machine.proc_root, host)
    return Supervisor(replace(made._context, control=control), made._timing, made._clock)


def test_a_daemon_lives_in_the_mounts_of_the_host(mps: MpsDomains, host: View, run: Run) -> None:
    run(running(supervisor(mps, host)))
    domain = mps.domain("claim", 0, active_thread_percentage=40)

    daemon = mps.ready(domain).daemon

    assert daemon is not None
    process = Path("/proc") / str(daemon.pid)
    assert not any(host.driver_root.iterdir())
    assert (process / "root" / str(host.driver_root).lstrip("/") / "usr").is_dir()
    assert (process / "exe").readlink().is_relative_to(host.driver_root)
    # Its folder for sockets is in its own view alone.
    assert (process / "root/tmp/nvidia-mps/control").is_socket()
    assert mps.ask(domain.id, "get_default_active_thread_percentage") == ["40.0"]
    libraries = mps.files.paths(domain.id).libraries
    assert (libraries / "libcuda.so.1").readlink().is_relative_to(host.driver_root)
    mps.gone(domain)
    assert mps.left(domain) == []
    assert all(not mounts.layers(path) for path in mps.files.paths(domain.id).mounted)


def test_where_the_host_cannot_run_it_the_container_does(
    mps: MpsDomains, host: View, run: Run
) -> None:
    # A host without the loader that the program names, such as one with another C library.
    run(running(supervisor(mps, replace(host, driver_root=mps.root / "nowhere"))))
    domain = mps.domain("claim", 0)
    daemon = mps.ready(domain).daemon
    assert daemon is not None
    exe = Path(f"/proc/{daemon.pid}/exe").readlink()
    assert exe.is_relative_to(mps.machine.driver_root)


def test_where_the_hosts_mounts_cannot_be_entered_the_container_does(
    mps: MpsDomains, host: View, run: Run
) -> None:
    run(running(supervisor(mps, replace(host, namespace=Path("/proc/self/ns/uts")))))
    assert mps.ready(mps.domain("claim", 0)).daemon is not None


def test_daemons_among_the_hosts_files_load_the_driver_that_runs(
    mps: MpsDomains, usual_host: View, run: Run
) -> None:
    run(running(supervisor(mps, usual_host)))
    domain = mps.domain("claim", 0)
    daemon = mps.ready(domain).daemon
    assert daemon is not None

    assert not Path(f"/proc/{daemon.pid}/exe").readlink().is_relative_to(mps.root)
    folder = processes.environment_of(daemon.pid)["LD_LIBRARY_PATH"]
    root = mps.machine.driver_root
    inside = {f"/{path.relative_to(root)}" for path in root.glob("usr/**/libcuda.so.*.*")}
    links = Path(f"/proc/{daemon.pid}/root") / folder.lstrip("/")
    assert str((links / "libcuda.so.1").readlink()) in inside
    mps.gone(domain)
    assert mps.left(domain) == []


def test_a_process_that_is_on_the_host_has_no_other_view(tmp_path: Path) -> None:
    for process in ("self", "1"):
        (tmp_path / process / "ns").mkdir(parents=True)
        for name in ("pid", "mnt"):
            (tmp_path / process / "ns" / name).symlink_to(f"/proc/self/ns/{name}")
    assert host_view(Path("/"), tmp_path) is None
    assert host_view(Path("/"), tmp_path / "absent") is None
