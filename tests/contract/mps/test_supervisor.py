"""The supervisor with NVIDIA's real nvidia-cuda-mps-control over simulated GPUs."""

import os
import signal
import stat
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
from msgspec.structs import replace
from structlog.testing import capture_logs

from dra_driver.devices.device import DeviceKind
from dra_driver.errors import DeviceError, TransientError
from dra_driver.mps import processes
from dra_driver.mps.daemon import mounts
from dra_driver.mps.daemon.health import WorkerTiming
from dra_driver.mps.domain import Domain, DomainDevice, DomainId, State, decode_status
from dra_driver.mps.supervisor.cgroup import GROUP, DaemonGroup
from dra_driver.mps.supervisor.lifecycle import DomainRecord, write_record
from dra_driver.mps.supervisor.supervisor import Supervisor
from dra_driver.simulator.layout import Fact
from worlds.configs import PATIENCE
from worlds.mps import QUICK, MpsDomains, running
from worlds.process import eventually

Run = Callable[[AbstractContextManager[Supervisor]], Supervisor]

EXCLUSIVE, DEFAULT = 3, 0
NO_PERMISSION = 4


def test_a_domain_is_ready_when_its_daemon_has_read_the_limits_back(
    mps: MpsDomains, run: Run
) -> None:
    run(mps.supervised())
    domain = mps.domain("claim", 2, 0, limits=(10240, 953), active_thread_percentage=30)

    status = mps.ready(domain)

    assert status.active_thread_percentage == 30.0
    assert dict(status.pinned_memory_mib) == {mps.uuid(2): 10240, mps.uuid(0): 953}
    assert mps.ask(domain.id, "get_default_active_thread_percentage") == ["30.0"]
    assert mps.ask(domain.id, "get_default_device_pinned_mem_limit 0") == ["10G"]
    assert mps.ask(domain.id, "get_default_device_pinned_mem_limit 1") == ["953M"]
    assert mps.compute_modes() == {0: EXCLUSIVE, 2: EXCLUSIVE}


def test_a_daemon_sees_its_devices_and_its_own_shared_folders_alone(
    mps: MpsDomains, run: Run
) -> None:
    run(mps.supervised())
    neighbour, domain = mps.domain("neighbour", 3), mps.domain("claim", 1)
    mps.ready(neighbour)
    status = mps.ready(domain)
    assert status.daemon is not None

    environment = processes.environment_of(status.daemon.pid)
    assert environment["CUDA_VISIBLE_DEVICES"] == mps.uuid(1)
    assert environment["CUDA_MPS_PIPE_DIRECTORY"] == "/tmp/nvidia-mps"
    assert not environment.keys() & {"HOME", "USER", "PYTEST_CURRENT_TEST"}
    paths = mps.files.paths(domain.id)
    (paths.shm / "from-a-client").touch()
    process = Path("/proc") / str(status.daemon.pid)
    shared = (process / "root/dev/shm").iterdir()
    assert [path.name for path in shared] == ["from-a-client"]
    assert (process / "root/tmp/nvidia-mps/control").is_socket()
    libraries = process / "root" / environment["LD_LIBRARY_PATH"].lstrip("/")
    assert (libraries / "libcuda.so.1").is_file()
    assert not [path.name for path in libraries.iterdir() if path.name.startswith("libc.so")]
    assert stat.S_IMODE(libraries.stat().st_mode) == 0o755
    mounted = [line.split()[4] for line in (process / "mountinfo").read_text().splitlines()]
    assert not [point for point in mounted if point.startswith(str(mps.files.domains_folder))]


def test_a_removed_domain_leaves_no_trace(mps: MpsDomains, run: Run) -> None:
    run(mps.supervised())
    domain = mps.domain("claim", 0, 1)
    mps.ready(domain)
    server = mps.server(domain)
    assert mps.left(domain)
    mps.gone(domain)
    server.wait(PATIENCE)
    assert mps.left(domain) == []
    assert mps.requests.list() == frozenset()


def test_an_admins_compute_mode_is_restored(mps: MpsDomains, run: Run) -> None:
    run(mps.supervised())
    domain = mps.domain("claim", 0)
    prohibited = 2
    mps.machine.set_fact(mps.uuid(0), Fact.COMPUTE_MODE, prohibited)
    mps.ready(domain)
    assert mps.compute_modes() == {0: EXCLUSIVE}
    mps.gone(domain)
    assert mps.compute_modes() == {0: prohibited}


def test_compute_modes_can_be_left_alone(mps: MpsDomains, run: Run) -> None:
    run(mps.supervised(modes=False))
    domain = mps.domain("claim", 0)
    mps.ready(domain)
    assert mps.compute_modes() == {}
    mps.gone(domain)


def test_a_daemon_is_moved_to_a_control_group_of_its_own(mps: MpsDomains, run: Run) -> None:
    groups = mps.root / "cgroups"  # plain files, which keep the last PID that was written
    groups.mkdir()
    (groups / "cgroup.procs").touch()
    context = replace(mps.supervisor()._context, group=DaemonGroup(groups))
    run(running(Supervisor(context, QUICK, time.monotonic)))
    daemon = mps.ready(mps.domain("claim", 0)).daemon
    assert daemon is not None
    assert (groups / GROUP / "cgroup.procs").read_text() == f"{daemon.pid}\n"


def test_earlier_modes_are_restored_even_if_disabled_now(mps: MpsDomains, run: Run) -> None:
    with mps.supervised():
        domain = mps.domain("claim", 0)
        daemon = mps.ready(domain).daemon
        assert daemon is not None
    os.kill(daemon.pid, signal.SIGKILL)
    run(mps.supervised(modes=False))
    mps.ready(domain)
    mps.gone(domain)
    assert mps.left(domain) == []


def test_a_mig_device_has_a_daemon_and_no_compute_mode(mps: MpsDomains, run: Run) -> None:
    run(mps.supervised())
    uuid = "MIG-11111111-2222-3333-4444-555555555555"
    device = DomainDevice(uuid=uuid, kind=DeviceKind.MIG, pinned_memory_mib=512)
    domain = Domain(id=DomainId("claim"), devices=(device,))
    assert mps.ready(domain).pinned_memory_mib == {uuid: 512}
    assert mps.compute_modes() == {}
    mps.requests.remove(domain.id)
    mps.requests.wait_gone(domain.id, time.monotonic() + PATIENCE)


def test_a_daemon_that_dies_is_replaced_and_reported(mps: MpsDomains, run: Run) -> None:
    seen: list[str] = []
    beside: list[processes.Daemon] = []
    domain = mps.domain("claim", 0, active_thread_percentage=50)

    def step(name: str) -> None:
        if name == "death recorded":
            status = mps.requests.status(domain.id)
            seen.append(f"{status.state}: {status.reason}" if status else "")
        if name == "cleared":
            beside.extend(processes.marked(mps.files.paths(domain.id).folder))

    run(mps.supervised(step))
    first = mps.ready(domain).daemon
    assert first is not None
    server = mps.server(domain)
    os.kill(first.pid, signal.SIGKILL)

    again = mps.until(domain, lambda status: bool(status.restarts) and status.state == "ready")

    assert again.daemon not in (first, None)
    assert again.restarts == 1
    assert seen[0].startswith("restarting: the MPS control daemon died")
    assert "must be restarted" in seen[0]
    assert beside == []
    server.wait(PATIENCE)
    assert mps.ask(domain.id, "get_default_active_thread_percentage") == ["50.0"]
    assert mounts.layers(mps.files.paths(domain.id).shm) == 1
    mps.gone(domain)
    assert mps.left(domain) == []


def test_a_daemon_that_dies_while_it_starts_is_retried_until_it_does_not(
    mps: MpsDomains, run: Run
) -> None:
    mps.wrap_control('[ "$1" = -d ] && { $REAL -f & /bin/sleep 0.05; kill -9 $!; }; exit 1')
    run(mps.supervised())
    domain = mps.domain("claim", 0)
    with pytest.raises(DeviceError, match="MPS does not start: nvidia-cuda-mps-control does not"):
        mps.ready(domain)
    mps.unwrap_control()
    status = mps.until(domain, lambda status: status.state is State.READY)
    assert status.daemon is not None
    mps.gone(domain)


def test_a_domain_that_failed_is_retried_at_once_when_it_is_asked_for_again(
    mps: MpsDomains, run: Run
) -> None:
    mps.wrap_control("exit 1")
    run(mps.supervised(timing=WorkerTiming(first_retry=0.01, longest_retry=0.05)))
    domain = mps.domain("claim", 0)
    with pytest.raises(DeviceError, match="MPS does not start"):
        mps.ready(domain)
    mps.unwrap_control()
    mps.ready(domain)


def test_a_daemon_that_dies_soon_after_its_start_is_given_a_pause(
    mps: MpsDomains, run: Run
) -> None:
    run(mps.supervised(timing=WorkerTiming(first_retry=0.02, settled=3600.0)))
    domain = mps.domain("claim", 0)
    for restarts in (1, 2):
        daemon = mps.ready(domain).daemon
        assert daemon is not None
        os.kill(daemon.pid, signal.SIGKILL)
        mps.until(domain, lambda now: "soon after its start" in now.reason)
        again = mps.until(domain, lambda now: now.state is State.READY)
        assert again.restarts == restarts
    mps.gone(domain)


def test_a_supervisor_that_stops_leaves_its_daemons_to_the_next(mps: MpsDomains, run: Run) -> None:
    first = run(mps.supervised())
    domain = mps.domain("claim", 0, limits=(1024,))
    before = mps.ready(domain)
    first.stop(0)
    second = run(mps.supervised())
    after = mps.until(domain, lambda status: status.supervisor != before.supervisor)
    assert (after.daemon, after.restarts) == (before.daemon, 0)
    assert second.domains() == {domain.id}
    mps.gone(domain)
    assert mps.left(domain) == []


def test_only_one_of_two_supervisors_works(mps: MpsDomains, run: Run) -> None:
    first = run(mps.supervised())
    assert mps.ready(mps.domain("one", 0)).supervisor
    second = run(mps.supervised())
    mps.ready(mps.domain("two", 1))
    assert first.domains() == {"one", "two"}
    assert second.domains() == set()
    first.stop(0)
    mps.ready(mps.domain("three", 2))
    assert second.domains() == {"one", "two", "three"}


def test_a_slow_domain_does_not_delay_another(mps: MpsDomains, run: Run) -> None:
    go = mps.root / "go"
    mps.wrap_control(
        f'[ "$1 $CUDA_VISIBLE_DEVICES" = "-d {mps.uuid(0)}" ] && '
        f"while [ ! -e {go} ]; do /bin/sleep 0.01; done; exec $REAL $@"
    )
    run(mps.supervised())
    slow, quick = mps.domain("slow", 0), mps.domain("quick", 1)
    mps.requests.write_desired(slow)
    mps.until(slow, lambda status: status.state is State.STARTING)
    mps.ready(quick)
    mps.gone(quick)
    status = mps.requests.status(slow.id)
    assert status is not None
    assert status.state is State.STARTING
    go.touch()
    mps.ready(slow)


def test_remains_of_an_earlier_supervisor_are_removed(mps: MpsDomains, run: Run) -> None:
    domain = mps.domain("claim", 0)
    paths = mps.files.paths(domain.id)
    mps.files.make_folders()
    for folder in (paths.folder, paths.pipe, paths.shm):
        folder.mkdir(parents=True)
    for name in ("control", "control_privileged", "control_lock", "nvidia-cuda-mps-control.pid"):
        (paths.pipe / name).write_text("1")
    os.mkfifo(paths.pipe / "log")
    mounts.mount_tmpfs(paths.shm, size_bytes=1024**2, files=64)
    write_record(
        paths.record, DomainRecord(boot_id="of another boot", modes_found={mps.uuid(0): 2})
    )
    run(mps.supervised())
    mps.ready(domain)
    assert mounts.layers(paths.shm) == 1
    mps.gone(domain)
    assert mps.left(domain) == []


def test_unwanted_domains_are_removed_at_the_start(mps: MpsDomains, run: Run) -> None:
    with mps.supervised():
        domain = mps.domain("claim", 0)
        mps.ready(domain)
    mps.requests.remove(domain.id)
    with pytest.raises(TransientError, match="the MPS supervisor is not running on this node"):
        mps.impatient.wait_gone(domain.id, time.monotonic() + PATIENCE)
    run(mps.supervised())
    eventually(mps.supervisor_runs, "the supervisor to run")
    mps.requests.wait_gone(domain.id, time.monotonic() + PATIENCE)
    assert mps.left(domain) == []


def test_after_a_reboot_a_domain_that_is_still_wanted_comes_back(mps: MpsDomains, run: Run) -> None:
    with mps.supervised():
        domain = mps.domain("claim", 0)
        status = mps.ready(domain)
    mps.clean()
    mps.machine.reboot()
    run(mps.supervised())
    again = mps.until(
        domain, lambda now: now.supervisor != status.supervisor and now.state == "ready"
    )
    assert again.restarts == 0
    assert mps.compute_modes() == {0: EXCLUSIVE}
    mps.gone(domain)
    assert mps.left(domain) == []


def newer(path: Path) -> bytes:
    """Make a file that of a newer version, and return it."""
    found = path.read_bytes().replace(b'"version":3', b'"version":4')
    path.with_suffix(".new").write_bytes(found)
    path.with_suffix(".new").replace(path)
    return found


def test_a_domain_that_a_newer_driver_asks_for_is_left_as_it_is(mps: MpsDomains, run: Run) -> None:
    domain, other = mps.domain("claim", 0), mps.domain("other", 1)
    desired, status = mps.files.desired(domain.id), mps.files.status(domain.id)
    with capture_logs() as first, mps.supervised():
        daemon = mps.ready(domain).daemon
        said, asked = status.read_bytes(), newer(desired)
        mps.ready(other)  # written later, so the first was seen
    with capture_logs() as second:
        run(mps.supervised())
        mps.gone(other)

    assert (desired.read_bytes(), status.read_bytes()) == (asked, said)
    assert daemon is not None
    assert processes.is_alive(daemon)
    assert mps.ask(domain.id, "get_default_active_thread_percentage") == ["100.0"]
    assert mps.compute_modes() == {0: EXCLUSIVE}
    for logs in (first, second):
        assert [line["file"] for line in logs if "newer" in line["event"]] == [str(desired)]
        assert not [line for line in logs if line["log_level"] == "error"]
    mps.gone(domain)
    assert mps.left(domain) == []


def test_a_desired_state_that_cannot_be_read_stops_no_other(mps: MpsDomains, run: Run) -> None:
    run(mps.supervised())
    kept = mps.domain("kept", 0)
    daemon = mps.ready(kept).daemon
    good = mps.files.desired(kept.id).read_bytes()
    mps.files.desired(DomainId("damaged")).write_bytes(b"{")
    mps.files.desired(kept.id).write_bytes(good[:-20])

    mps.ready(mps.domain("other", 1))

    broken = mps.until(kept, lambda status: status.state is State.FAILED)
    assert "it is cut off" in broken.reason
    assert broken.daemon == daemon
    assert mps.ask(kept.id, "get_default_active_thread_percentage") == ["100.0"]
    damaged = mps.files.status(DomainId("damaged"))
    assert decode_status(damaged.read_bytes()).state is State.FAILED
    assert mps.ready(kept).daemon == daemon
    mps.gone(kept)
    assert mps.left(kept) == []
    mps.requests.remove(DomainId("damaged"))
    mps.requests.wait_gone(DomainId("damaged"), time.monotonic() + PATIENCE)


def test_limits_the_daemon_did_not_take_are_an_error(mps: MpsDomains, run: Run) -> None:
    mps.wrap_control(
        '[ -n "$1" ] && exec $REAL $@; /bin/sed "s/percentage 30/percentage 40/" | $REAL'
    )
    run(mps.supervised())
    with pytest.raises(DeviceError, match=r"percentage of 40\.0 where 30 was set"):
        mps.ready(mps.domain("claim", 0, active_thread_percentage=30))


def test_changed_limits_keep_the_daemon_and_changed_devices_do_not(
    mps: MpsDomains, run: Run
) -> None:
    run(mps.supervised())
    first = mps.ready(mps.domain("claim", 0, active_thread_percentage=30)).daemon
    limited = mps.domain("claim", 0, active_thread_percentage=20)
    assert mps.ready(limited).daemon == first
    assert mps.ask(limited.id, "get_default_active_thread_percentage") == ["20.0"]
    moved = mps.domain("claim", 1, 2)
    status = mps.ready(moved)
    assert status.daemon != first
    assert status.restarts == 0
    assert mps.compute_modes() == {1: EXCLUSIVE, 2: EXCLUSIVE}
    mps.gone(moved)
    assert mps.left(moved) == []


def test_a_driver_too_old_for_several_users_says_so(mps: MpsDomains, run: Run) -> None:
    run(mps.supervised())
    with pytest.raises(DeviceError, match="may be too old for multiUser"):
        mps.ready(mps.domain("claim", 0, multi_user=True))


def test_a_refused_compute_mode_is_retried(mps: MpsDomains, run: Run) -> None:
    run(mps.supervised())
    domain = mps.domain("claim", 0)
    mps.machine.fail_call("nvmlDeviceSetComputeMode", NO_PERMISSION)
    with pytest.raises(DeviceError, match="may not use the GPU driver"):
        mps.ready(domain)
    mps.machine.clear_faults()
    mps.until(domain, lambda status: status.state is State.READY)
    mps.machine.fail_call("nvmlDeviceSetComputeMode", NO_PERMISSION)
    mps.requests.remove(domain.id)
    mps.until(domain, lambda status: status.state is State.STOPPING and bool(status.reason))
    with pytest.raises(TransientError, match="not removed yet: this process may not use"):
        mps.requests.wait_gone(domain.id, time.monotonic())
    mps.machine.clear_faults()
    mps.requests.wait_gone(domain.id, time.monotonic() + PATIENCE)
    assert mps.left(domain) == []


def test_a_log_that_has_grown_long_is_cut_under_the_daemon(mps: MpsDomains, run: Run) -> None:
    run(mps.supervised())
    domain = mps.domain("claim", 0)
    mps.ready(domain)
    control_log = mps.files.paths(domain.id).log / "control.log"
    with control_log.open("ab") as file:
        file.truncate(17 * 1024**2)
    old = control_log.with_suffix(".log.1")
    while not old.exists() or control_log.stat().st_size > 1024**2:
        time.sleep(0.01)
    mps.ask(domain.id, "get_default_active_thread_percentage")
    assert b"Cmd:get_default_active_thread_percentage" in control_log.read_bytes()
    assert old.stat().st_size >= 17 * 1024**2


def test_a_driver_without_mps_is_named(mps: MpsDomains, run: Run) -> None:
    (mps.machine.driver_root / "usr/bin/nvidia-cuda-mps-control").unlink()
    run(mps.supervised())
    with pytest.raises(DeviceError, match="nvidia-cuda-mps-control not found under"):
        mps.ready(mps.domain("claim", 0))


def test_a_wait_ends_when_the_driver_stops(mps: MpsDomains) -> None:
    mps.requests.stop()
    with pytest.raises(TransientError):
        mps.ready(mps.domain("claim", 0))


def test_two_domains_on_one_gpu_put_its_mode_back_once_both_are_gone(
    mps: MpsDomains, run: Run
) -> None:
    run(mps.supervised())
    one, two = mps.domain("one", 0), mps.domain("two", 0)
    mps.ready(one)
    mps.ready(two)
    mps.gone(one)
    assert mps.compute_modes() == {0: EXCLUSIVE}
    mps.gone(two)
    assert mps.left(one) + mps.left(two) == []


def test_many_domains_come_and_go_together(mps: MpsDomains, run: Run) -> None:
    run(mps.supervised())
    domains = [mps.domain(f"claim-{slot}", slot) for slot in range(8)]
    threads = [threading.Thread(target=mps.ready, args=(domain,)) for domain in domains]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    assert mps.compute_modes() == dict.fromkeys(range(8), EXCLUSIVE)
    for domain in domains:
        mps.requests.remove(domain.id)
    for domain in domains:
        mps.requests.wait_gone(domain.id, time.monotonic() + PATIENCE)
        assert mps.left(domain) == []
