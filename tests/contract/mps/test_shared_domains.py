"""Claims that join and leave one domain, whose daemon NVIDIA's own program is."""

import os
import random
import signal
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, suppress
from pathlib import Path

import pytest
from testbed.disk import SmallDisk

from dra_driver.claims.state.locks import NodeLocks
from dra_driver.errors import ConflictError, DeviceError, StateError
from dra_driver.mps import processes
from dra_driver.mps.daemon import mounts
from dra_driver.mps.domain import Domain, Status
from dra_driver.mps.pipes import CONTROL_SOCKET
from dra_driver.mps.requests import DomainRequests
from dra_driver.mps.supervisor.supervisor import Supervisor
from worlds.configs import PATIENCE
from worlds.mps import MpsDomains
from worlds.process import eventually

Run = Callable[[AbstractContextManager[Supervisor]], Supervisor]
EXCLUSIVE = 3


@pytest.fixture
def node(mps: MpsDomains) -> Domain:
    return mps.domain("shared_node", 0, 1, limits=(1024, 2048), active_thread_percentage=50)


def ready(mps: MpsDomains, domain: Domain) -> Status:
    return mps.requests.wait_ready(domain, time.monotonic() + PATIENCE)


def gone(mps: MpsDomains, domain: Domain) -> None:
    mps.requests.wait_gone(domain.id, time.monotonic() + PATIENCE)


def check_serves(mps: MpsDomains, domain: Domain) -> None:
    """A client that starts now finds a daemon with these limits, and its sockets."""
    eventually(lambda: _percentage(mps, domain) == ["50.0"], "an answer, as one is given at a time")
    paths = mps.files.paths(domain.id)
    assert all(mounts.layers(path) == 1 for path in paths.mounted)
    assert (paths.pipe / "control").is_socket()


def _percentage(mps: MpsDomains, domain: Domain) -> list[str]:
    with suppress(DeviceError):
        return mps.ask(domain.id, "get_default_active_thread_percentage")
    return []


def test_one_daemon_serves_all_members_and_ends_with_the_last(
    mps: MpsDomains, run: Run, node: Domain
) -> None:
    run(mps.supervised())
    mps.requests.join(node, "one")
    first = ready(mps, node)
    mps.requests.join(node, "two")
    assert ready(mps, node).daemon == first.daemon
    assert mps.compute_modes() == {0: EXCLUSIVE, 1: EXCLUSIVE}
    assert not mps.requests.leave(node.id, "one")
    assert ready(mps, node).daemon == first.daemon
    assert mps.requests.leave(node.id, "two")
    gone(mps, node)
    assert mps.left(node) == []


def test_joining_an_ending_domain_gets_a_new_one(mps: MpsDomains, run: Run, node: Domain) -> None:
    stopping, joined = threading.Event(), threading.Event()

    def step(name: str) -> None:
        if name == "stopping":
            stopping.set()
            assert joined.wait(PATIENCE)

    run(mps.supervised(step))
    mps.requests.join(node, "one")
    first = ready(mps, node)
    assert mps.requests.leave(node.id, "one")
    assert stopping.wait(PATIENCE)
    mps.requests.join(node, "two")
    joined.set()
    # It is the other claim's now, so the one that left does not wait for its end.
    gone(mps, node)
    again = ready(mps, node)
    assert again.daemon != first.daemon
    assert again.restarts == 0
    check_serves(mps, node)


def test_an_old_status_of_a_left_domain_is_ignored(mps: MpsDomains, run: Run, node: Domain) -> None:
    reported, joined = threading.Event(), threading.Event()

    def step(name: str) -> None:
        if name == "reported":
            reported.set()
            assert joined.wait(PATIENCE)

    run(mps.supervised(step))
    mps.requests.join(node, "one")
    ready(mps, node)
    assert reported.wait(PATIENCE)
    mps.requests.leave(node.id, "one")
    mps.requests.join(node, "two")
    # The status still says that it is ready; the supervisor may be about to end it.
    with pytest.raises(DeviceError, match="is not ready yet"):
        mps.requests.wait_ready(node, time.monotonic())
    joined.set()
    ready(mps, node)
    check_serves(mps, node)


def test_a_domain_left_and_joined_at_once_is_ready_again(
    mps: MpsDomains, run: Run, node: Domain
) -> None:
    run(mps.supervised())
    mps.requests.join(node, "one")
    first = ready(mps, node)
    for _ in range(30):
        mps.requests.leave(node.id, "one")
        mps.requests.join(node, "one")
    again = ready(mps, node)
    assert again.generation != first.generation
    assert again.restarts == 0
    check_serves(mps, node)


def test_members_that_come_and_go_always_have_a_daemon(
    mps: MpsDomains, run: Run, node: Domain
) -> None:
    run(mps.supervised())
    troubles: list[BaseException] = []

    def come_and_go(claim: str) -> None:
        # A driver of its own: two processes in a rolling update have nothing but files in common.
        locks = NodeLocks(mps.root / "domain-locks", time.monotonic, on_other=lambda: None)
        mine = DomainRequests(mps.files.root, time.monotonic, lock=locks.domain)
        chance = random.Random(claim)  # noqa: S311 (as above)
        try:
            for _ in range(8):
                mine.join(node, claim)
                status = ready(mps, node)
                time.sleep(chance.choice([0.0, 0.005]))
                check_serves(mps, node)
                now = mps.requests.status(node.id)
                assert now is not None
                assert now.daemon == status.daemon
                while mine.leave(node.id, claim):
                    gone(mps, node)
        except BaseException as error:  # noqa: BLE001 (the test's own thread raises it)
            troubles.append(error)
        finally:
            mine.stop()
            locks.close()

    threads = [threading.Thread(target=come_and_go, args=(name,)) for name in ("one", "two")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(2 * PATIENCE)
    assert troubles == []
    mps.requests.tidy()
    gone(mps, node)
    assert mps.left(node) == []


def test_domains_that_a_killed_driver_left_are_ended(
    mps: MpsDomains, run: Run, node: Domain
) -> None:
    run(mps.supervised())
    mps.requests.join(node, "one")
    ready(mps, node)
    (mps.files.members(node.id) / "one").unlink()
    mps.requests.tidy()
    gone(mps, node)
    assert mps.left(node) == []


def test_a_changed_config_takes_hold_when_the_others_have_gone(
    mps: MpsDomains, run: Run, node: Domain
) -> None:
    run(mps.supervised())
    changed = mps.domain("shared_node", 0, 1, limits=(512, 512), active_thread_percentage=50)
    mps.requests.join(node, "one")
    ready(mps, node)
    with pytest.raises(ConflictError, match="1024 MiB, wanted 512 MiB"):
        mps.requests.join(changed, "two")
    mps.requests.leave(node.id, "one")
    mps.requests.join(changed, "two")
    status = ready(mps, changed)
    assert set(status.pinned_memory_mib.values()) == {512}


@pytest.fixture
def disk(mps: MpsDomains, small_disk: Callable[[Path], SmallDisk]) -> SmallDisk:
    """The disk on which driver and supervisor meet."""
    return small_disk(mps.files.root)


def test_on_a_full_disk_joins_fail_whole_and_leaves_succeed(
    mps: MpsDomains, disk: SmallDisk, node: Domain
) -> None:
    other = mps.domain("shared_other", 2)
    mps.requests.join(node, "one")
    before = _files(mps.files.root)
    disk.fill()
    with pytest.raises(StateError, match="No space left on device"):
        mps.requests.join(other, "two")
    assert [path for path in _files(mps.files.root) if "ballast" not in path.name] == before
    assert not mps.requests.leave(node.id, "one")
    assert mps.requests.desired(node.id) is None
    disk.empty()


def _files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def test_a_claim_joins_a_domain_that_is_up_while_there_is_no_supervisor(
    mps: MpsDomains, node: Domain
) -> None:
    with mps.supervised():
        mps.requests.join(node, "first")
        before = ready(mps, node)
    mps.requests.join(node, "second")
    assert mps.impatient.wait_ready(node, time.monotonic() + PATIENCE) == before
    check_serves(mps, node)
    with mps.supervised():
        after = ready(mps, node)
        assert (after.daemon, after.restarts) == (before.daemon, 0)
        for claim in ("first", "second"):
            mps.requests.leave(node.id, claim)
        gone(mps, node)
    assert mps.left(node) == []


def leave_without_daemon(mps: MpsDomains, node: Domain) -> None:
    """Have a domain that one claim has joined, and neither its daemon nor a supervisor."""
    with mps.supervised():
        mps.requests.join(node, "first")
        daemon = ready(mps, node).daemon
    assert daemon is not None
    os.kill(daemon.pid, signal.SIGKILL)
    # Its other threads may have the socket for a moment longer than its first.
    own = mps.files.paths(node.id).own
    eventually(lambda: not processes.listens(own, CONTROL_SOCKET), "the daemon's end")


def test_a_returning_supervisor_is_waited_for_until_the_deadline(
    mps: MpsDomains, node: Domain
) -> None:
    leave_without_daemon(mps, node)
    mps.requests.join(node, "second")
    waiting = threading.Event()

    def come_back() -> None:
        waiting.wait(PATIENCE)
        time.sleep(0.3)  # well beyond the grace of `impatient`, where none has ever been
        stack.enter_context(mps.supervised())

    with ExitStack() as stack:
        thread = threading.Thread(target=come_back)
        thread.start()
        waiting.set()
        assert mps.impatient.wait_ready(node, time.monotonic() + PATIENCE).restarts == 1
        thread.join(PATIENCE)
