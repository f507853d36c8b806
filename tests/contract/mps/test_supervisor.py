"""The supervisor with NVIDIA's real nvidia-cuda-mps-control over simulated GPUs."""

import os
import signal
import stat
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from dra_driver.devices.kinds import DeviceKind
from dra_driver.errors import DeviceError, TransientError
from dra_driver.mps import mounts, processes
from dra_driver.mps.domain import Domain, DomainDevice, DomainId, State, decode_status
from dra_driver.mps.domain_worker import WorkerTiming
from dra_driver.mps.record import DomainRecord, write_record
from dra_driver.mps.supervisor import Supervisor
from dra_driver.simulator.layout import Fact
from mps_world import PATIENCE, World

Run = Callable[[Supervisor], Supervisor]
Stop = Callable[[Supervisor], None]

EXCLUSIVE, DEFAULT = 3, 0
NO_PERMISSION = 4


def test_a_domain_is_ready_when_its_daemon_has_read_the_limits_back(world: World, run: Run) -> None:
    run(world.supervisor())
    domain = world.domain("claim", 2, 0, limits=(10240, 953), active_thread_percentage=30)

    status = world.ready(domain)

    assert status.active_thread_percentage == 30.0
    assert dict(status.pinned_memory_mib) == {world.uuid(2): 10240, world.uuid(0): 953}
    assert world.ask(domain, "get_default_active_thread_percentage") == ["30.0"]
    assert world.ask(domain, "get_default_device_pinned_mem_limit 0") == ["10G"]
    assert world.ask(domain, "get_default_device_pinned_mem_limit 1") == ["953M"]
    assert world.modes() == [EXCLUSIVE, 0, EXCLUSIVE, 0, 0, 0, 0, 0]


def test_a_daemon_sees_its_devices_and_its_own_shared_folders_alone(world: World, run: Run) -> None:
    run(world.supervisor())
    neighbour, domain = world.domain("neighbour", 3), world.domain("claim", 1)
    world.ready(neighbour)
    status = world.ready(domain)
    assert status.daemon is not None

    environment = processes.environment_of(status.daemon.pid)
    assert environment["CUDA_VISIBLE_DEVICES"] == world.uuid(1)
    assert environment["CUDA_MPS_PIPE_DIRECTORY"] == "/tmp/nvidia-mps"
    assert not environment.keys() & {"HOME", "USER", "PYTEST_CURRENT_TEST"}
    paths = world.files.paths(domain.id)
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
    assert not [point for point in mounted if point.startswith(str(world.files.domains_folder))]


def test_when_it_is_no_longer_wanted_all_is_as_before(world: World, run: Run) -> None:
    run(world.supervisor())
    domain = world.domain("claim", 0, 1)
    world.ready(domain)
    assert world.left(domain)
    world.gone(domain)
    assert world.left(domain) == []
    assert world.requests.list() == frozenset()


def test_a_compute_mode_of_the_administrators_is_put_back(world: World, run: Run) -> None:
    run(world.supervisor())
    domain = world.domain("claim", 0)
    prohibited = 2
    world.machine.set_fact(world.uuid(0), Fact.COMPUTE_MODE, prohibited)
    world.ready(domain)
    assert world.modes()[0] == EXCLUSIVE
    world.gone(domain)
    assert world.modes()[0] == prohibited


def test_compute_modes_can_be_left_alone(world: World, run: Run) -> None:
    run(world.supervisor(modes=False))
    domain = world.domain("claim", 0)
    world.ready(domain)
    assert world.modes()[0] == DEFAULT
    world.gone(domain)


def test_modes_set_before_are_restored_even_if_they_are_to_be_left_alone_now(
    world: World, run: Run, stop: Stop
) -> None:
    first = run(world.supervisor())
    domain = world.domain("claim", 0)
    daemon = world.ready(domain).daemon
    assert daemon is not None
    stop(first)
    os.kill(daemon.pid, signal.SIGKILL)
    run(world.supervisor(modes=False))
    world.ready(domain)
    world.gone(domain)
    assert world.left(domain) == []


def test_a_mig_device_has_a_daemon_and_no_compute_mode(world: World, run: Run) -> None:
    run(world.supervisor())
    uuid = "MIG-11111111-2222-3333-4444-555555555555"
    device = DomainDevice(uuid=uuid, kind=DeviceKind.MIG, pinned_memory_mib=512)
    domain = Domain(id=DomainId("claim"), devices=(device,))
    assert world.ready(domain).pinned_memory_mib == ((uuid, 512),)
    assert set(world.modes()) == {DEFAULT}
    world.requests.remove(domain.id)
    world.requests.wait_gone(domain.id, time.monotonic() + PATIENCE)


def test_a_daemon_that_dies_is_replaced_and_reported(world: World, run: Run) -> None:
    seen: list[str] = []

    def step(_domain: str, name: str) -> None:
        if name == "death recorded":
            status = world.requests.status(DomainId("claim"))
            seen.append(f"{status.state}: {status.reason}" if status else "")

    run(world.supervisor(step))
    domain = world.domain("claim", 0, active_thread_percentage=50)
    first = world.ready(domain).daemon
    assert first is not None
    os.kill(first.pid, signal.SIGKILL)

    again = world.until(domain, lambda status: bool(status.restarts) and status.state == "ready")

    assert again.daemon not in (first, None)
    assert again.restarts == 1
    assert seen[0].startswith("restarting: the MPS control daemon died")
    assert "must be restarted" in seen[0]
    assert world.ask(domain, "get_default_active_thread_percentage") == ["50.0"]
    assert mounts.layers(world.files.paths(domain.id).shm) == 1
    world.gone(domain)
    assert world.left(domain) == []


def test_a_daemon_that_dies_while_it_starts_is_retried_until_it_does_not(
    world: World, run: Run
) -> None:
    world.wrap_control('[ "$1" = -d ] && { $REAL -f & /bin/sleep 0.05; kill -9 $!; }; exit 1')
    run(world.supervisor())
    domain = world.domain("claim", 0)
    with pytest.raises(DeviceError, match="MPS does not start: nvidia-cuda-mps-control does not"):
        world.ready(domain)
    world.unwrap_control()
    status = world.until(domain, lambda status: status.state is State.READY)
    assert status.daemon is not None
    world.gone(domain)


def test_a_domain_that_failed_is_retried_at_once_when_it_is_asked_for_again(
    world: World, run: Run
) -> None:
    world.wrap_control("exit 1")
    run(world.supervisor(timing=WorkerTiming(first_retry=0.01, longest_retry=0.05)))
    domain = world.domain("claim", 0)
    with pytest.raises(DeviceError, match="MPS does not start"):
        world.ready(domain)
    world.unwrap_control()
    world.ready(domain)


def test_a_daemon_that_dies_soon_after_its_start_is_given_a_pause(world: World, run: Run) -> None:
    run(world.supervisor(timing=WorkerTiming(first_retry=0.02, settled=3600.0)))
    domain = world.domain("claim", 0)
    for restarts in (1, 2):
        daemon = world.ready(domain).daemon
        assert daemon is not None
        os.kill(daemon.pid, signal.SIGKILL)
        world.until(domain, lambda now: "soon after its start" in now.reason)
        again = world.until(domain, lambda now: now.state is State.READY)
        assert again.restarts == restarts
    world.gone(domain)


def test_a_supervisor_that_stops_leaves_its_daemons_to_the_next(world: World, run: Run) -> None:
    first = run(world.supervisor())
    domain = world.domain("claim", 0, limits=(1024,))
    before = world.ready(domain)
    first.stop()
    second = run(world.supervisor())
    after = world.until(domain, lambda status: status.supervisor != before.supervisor)
    assert (after.daemon, after.restarts) == (before.daemon, 0)
    assert second.domains() == {domain.id}
    world.gone(domain)
    assert world.left(domain) == []


def test_of_two_supervisors_one_works_and_the_other_waits(world: World, run: Run) -> None:
    first = run(world.supervisor())
    assert world.ready(world.domain("one", 0)).supervisor
    second = run(world.supervisor())
    world.ready(world.domain("two", 1))
    assert first.domains() == {"one", "two"}
    assert second.domains() == set()
    first.stop()
    world.ready(world.domain("three", 2))
    assert second.domains() == {"one", "two", "three"}


def test_a_slow_start_of_one_does_not_delay_another(world: World, run: Run) -> None:
    go = world.root / "go"
    world.wrap_control(
        f'[ "$1 $CUDA_VISIBLE_DEVICES" = "-d {world.uuid(0)}" ] && '
        f"while [ ! -e {go} ]; do /bin/sleep 0.01; done; exec $REAL $@"
    )
    run(world.supervisor())
    slow, quick = world.domain("slow", 0), world.domain("quick", 1)
    world.requests.write_desired(slow)
    world.until(slow, lambda status: status.state is State.STARTING)
    world.ready(quick)
    world.gone(quick)
    status = world.requests.status(slow.id)
    assert status is not None
    assert status.state is State.STARTING
    go.touch()
    world.ready(slow)


def test_what_an_earlier_supervisor_left_is_removed(world: World, run: Run) -> None:
    domain = world.domain("claim", 0)
    paths = world.files.paths(domain.id)
    world.files.make_folders()
    for folder in (paths.folder, paths.pipe, paths.shm):
        folder.mkdir()
    for name in ("control", "control_privileged", "control_lock", "nvidia-cuda-mps-control.pid"):
        (paths.pipe / name).write_text("1")
    os.mkfifo(paths.pipe / "log")
    mounts.mount_tmpfs(paths.shm, size_bytes=1024**2)
    write_record(
        paths.record, DomainRecord(boot_id="of another boot", modes_found={world.uuid(0): 2})
    )
    run(world.supervisor())
    world.ready(domain)
    assert mounts.layers(paths.shm) == 1
    world.gone(domain)
    assert world.left(domain) == []


def test_what_is_no_longer_wanted_is_undone_at_the_start(
    world: World, run: Run, stop: Stop
) -> None:
    first = run(world.supervisor())
    domain = world.domain("claim", 0)
    world.ready(domain)
    stop(first)
    world.requests.remove(domain.id)
    with pytest.raises(TransientError, match="the MPS supervisor is not running on this node"):
        world.impatient.wait_gone(domain.id, time.monotonic() + PATIENCE)
    run(world.supervisor())
    world.requests.wait_gone(domain.id, time.monotonic() + PATIENCE)
    assert world.left(domain) == []


def test_after_a_reboot_a_domain_that_is_still_wanted_comes_back(
    world: World, run: Run, stop: Stop
) -> None:
    first = run(world.supervisor())
    domain = world.domain("claim", 0)
    status = world.ready(domain)
    stop(first)
    world.clean()
    world.machine.reboot()
    run(world.supervisor())
    again = world.until(
        domain, lambda now: now.supervisor != status.supervisor and now.state == "ready"
    )
    assert again.restarts == 0
    assert world.modes()[0] == EXCLUSIVE
    world.gone(domain)
    assert world.left(domain) == []


def test_a_desired_state_that_cannot_be_read_stops_no_other(world: World, run: Run) -> None:
    run(world.supervisor())
    kept = world.domain("kept", 0)
    daemon = world.ready(kept).daemon
    good = world.files.desired(kept.id).read_bytes()
    world.files.desired(DomainId("damaged")).write_bytes(b"{")
    world.files.desired(kept.id).write_bytes(good[:-20])

    world.ready(world.domain("other", 1))

    broken = world.until(kept, lambda status: status.state is State.FAILED)
    assert "it is cut off" in broken.reason
    assert broken.daemon == daemon
    assert world.ask(kept, "get_default_active_thread_percentage") == ["100.0"]
    damaged = world.files.status(DomainId("damaged"))
    assert decode_status(damaged.read_bytes()).state is State.FAILED
    assert world.ready(kept).daemon == daemon
    world.gone(kept)
    assert world.left(kept) == []
    world.requests.remove(DomainId("damaged"))
    world.requests.wait_gone(DomainId("damaged"), time.monotonic() + PATIENCE)


def test_a_damaged_record_does_not_leave_the_gpu_exclusive(
    world: World, run: Run, stop: Stop
) -> None:
    first = run(world.supervisor())
    domain, unwanted = world.domain("claim", 0), world.domain("unwanted", 1)
    daemon = world.ready(domain).daemon
    world.ready(unwanted)
    stop(first)
    for one in (domain, unwanted):
        world.files.paths(one.id).record.write_bytes(b"")
    world.requests.remove(unwanted.id)
    run(world.supervisor())
    assert world.ready(domain).daemon == daemon
    world.gone(domain)
    world.requests.wait_gone(unwanted.id, time.monotonic() + PATIENCE)
    assert world.left(domain) + world.left(unwanted) == []


def test_limits_the_daemon_did_not_take_are_an_error(world: World, run: Run) -> None:
    world.wrap_control(
        '[ -n "$1" ] && exec $REAL $@; /bin/sed "s/percentage 30/percentage 40/" | $REAL'
    )
    run(world.supervisor())
    with pytest.raises(DeviceError, match=r"percentage of 40\.0 where 30 was set"):
        world.ready(world.domain("claim", 0, active_thread_percentage=30))


def test_changed_limits_keep_the_daemon_and_changed_devices_do_not(world: World, run: Run) -> None:
    run(world.supervisor())
    first = world.ready(world.domain("claim", 0, active_thread_percentage=30)).daemon
    limited = world.domain("claim", 0, active_thread_percentage=20)
    assert world.ready(limited).daemon == first
    assert world.ask(limited, "get_default_active_thread_percentage") == ["20.0"]
    moved = world.domain("claim", 1, 2)
    assert world.ready(moved).daemon != first
    assert world.modes()[:3] == [DEFAULT, EXCLUSIVE, EXCLUSIVE]
    world.gone(moved)
    assert world.left(moved) == []


def test_a_driver_too_old_for_several_users_says_so(world: World, run: Run) -> None:
    run(world.supervisor())
    with pytest.raises(DeviceError, match="may be too old for multiUser"):
        world.ready(world.domain("claim", 0, multi_user=True))


def test_a_refused_compute_mode_is_retried(world: World, run: Run) -> None:
    run(world.supervisor())
    domain = world.domain("claim", 0)
    world.machine.fail_call("nvmlDeviceSetComputeMode", NO_PERMISSION)
    with pytest.raises(DeviceError, match="may not use the NVIDIA driver"):
        world.ready(domain)
    world.machine.clear_faults()
    world.until(domain, lambda status: status.state is State.READY)
    world.machine.fail_call("nvmlDeviceSetComputeMode", NO_PERMISSION)
    world.requests.remove(domain.id)
    world.until(domain, lambda status: status.state is State.STOPPING and bool(status.reason))
    with pytest.raises(TransientError, match="not removed yet: this process may not use"):
        world.requests.wait_gone(domain.id, time.monotonic())
    world.machine.clear_faults()
    world.requests.wait_gone(domain.id, time.monotonic() + PATIENCE)
    assert world.left(domain) == []


def test_a_daemon_that_does_not_quit_is_killed(world: World, run: Run) -> None:
    run(world.supervisor())
    domain = world.domain("claim", 0)
    world.ready(domain)
    world.wrap_control("exit 1")
    world.gone(domain)
    assert world.left(domain) == []


def test_a_log_that_has_grown_long_is_cut_under_the_daemon(world: World, run: Run) -> None:
    run(world.supervisor())
    domain = world.domain("claim", 0)
    world.ready(domain)
    control_log = world.files.paths(domain.id).log / "control.log"
    with control_log.open("ab") as file:
        file.truncate(17 * 1024**2)
    old = control_log.with_suffix(".log.1")
    while not old.exists() or control_log.stat().st_size > 1024**2:
        time.sleep(0.01)
    world.ask(domain, "get_default_active_thread_percentage")
    assert b"Cmd:get_default_active_thread_percentage" in control_log.read_bytes()
    assert old.stat().st_size >= 17 * 1024**2


def test_a_driver_without_mps_is_named(world: World, run: Run) -> None:
    (world.machine.driver_root / "usr/bin/nvidia-cuda-mps-control").unlink()
    run(world.supervisor())
    with pytest.raises(DeviceError, match="nvidia-cuda-mps-control not found under"):
        world.ready(world.domain("claim", 0))


def test_without_a_supervisor_the_driver_is_told_so(world: World) -> None:
    domain = world.domain("claim", 0)
    world.requests.write_desired(domain)
    with pytest.raises(DeviceError, match="the MPS supervisor is not running on this node"):
        world.impatient.wait_ready(domain, time.monotonic() + PATIENCE)


def test_a_wait_ends_when_the_driver_stops(world: World) -> None:
    world.requests.stop()
    with pytest.raises(TransientError):
        world.ready(world.domain("claim", 0))


def test_two_domains_on_one_gpu_put_its_mode_back_once_both_are_gone(
    world: World, run: Run
) -> None:
    run(world.supervisor())
    one, two = world.domain("one", 0), world.domain("two", 0)
    world.ready(one)
    world.ready(two)
    world.gone(one)
    assert world.modes()[0] == EXCLUSIVE
    world.gone(two)
    assert world.left(one) + world.left(two) == []


def test_many_domains_come_and_go_together(world: World, run: Run) -> None:
    run(world.supervisor())
    domains = [world.domain(f"claim-{slot}", slot) for slot in range(8)]
    threads = [threading.Thread(target=world.ready, args=(domain,)) for domain in domains]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    assert set(world.modes()) == {EXCLUSIVE}
    for domain in domains:
        world.requests.remove(domain.id)
    for domain in domains:
        world.requests.wait_gone(domain.id, time.monotonic() + PATIENCE)
        assert world.left(domain) == []
