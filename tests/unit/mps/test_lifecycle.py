"""Which process counts as a domain's daemon, and whose limits are put back."""

import subprocess
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from structlog.testing import capture_logs

from dra_driver.errors import StateError
from dra_driver.mps import processes
from dra_driver.mps.daemon.health import ServerState
from dra_driver.mps.domain import Daemon, Domain, DomainDevice, DomainId, State
from dra_driver.mps.files import MpsFiles
from dra_driver.mps.requests import DomainRequests
from dra_driver.mps.supervisor import lifecycle
from dra_driver.mps.supervisor.lifecycle import DomainRecord, Lifecycle, SupervisorContext
from worlds.configs import PATIENCE
from worlds.process import eventually

DOMAIN = Domain(
    id=DomainId("claim"), devices=(DomainDevice(uuid="GPU-1"),), active_thread_percentage=30
)
Start = Callable[[str], "subprocess.Popen[bytes]"]


def life(
    root: Path, report: Callable[[State, str], None] = lambda *_: None, **control: Any
) -> Lifecycle:
    """The life of a domain whose control program is played by functions."""
    unused: Any = None
    played: Any = SimpleNamespace(**({"ask": lambda *_: [], "listening": lambda _: None} | control))
    context = SupervisorContext(
        supervisor="one",
        boot_id="boot",
        files=MpsFiles(root=root),
        control=played,
        modes=unused,
        group=unused,
        gpus=root,
    )
    return Lifecycle(DOMAIN.id, context, report)


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts a process with a token in its environment."""
    children: list[subprocess.Popen[bytes]] = []

    def begin(token: str) -> "subprocess.Popen[bytes]":
        children.append(subprocess.Popen(["/bin/sleep", "600"], env={processes.TOKEN: token}))
        # A program's start is told to its parent a moment before its environment can be read.
        eventually(lambda: processes.environment_of(children[-1].pid), "its environment")
        return children[-1]

    yield begin
    for child in children:
        child.kill()
        child.wait(PATIENCE)


def known(child: "subprocess.Popen[bytes]") -> Daemon:
    daemon = processes.daemon_at(child.pid)
    assert daemon is not None
    return daemon


def test_nothing_is_done_for_a_domain_removed_before_its_first_status(tmp_path: Path) -> None:
    requests = DomainRequests(tmp_path, lambda: 0.0)
    requests.write_desired(DOMAIN)

    def report(*_: object) -> None:
        requests.remove(DOMAIN.id)
        requests.wait_gone(DOMAIN.id, 0.0)

    with pytest.raises(StateError, match="does not request it any more"):
        life(tmp_path, report).ensure_serving(DOMAIN, None)
    assert not requests.paths(DOMAIN.id).folder.exists()


def test_a_listener_counts_only_with_the_records_token(tmp_path: Path, start: Start) -> None:
    listener = known(start("ours"))
    one = life(tmp_path, listening=lambda _: listener)
    for token, found in (("ours", listener), ("another", None), ("", None)):
        assert one._running_daemon(DomainRecord(boot_id="boot", token=token)) == found


def test_without_a_record_a_listener_in_a_container_does_not_count(
    tmp_path: Path, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    listener = known(start("theirs"))
    one = life(tmp_path, listening=lambda _: listener)
    assert one._unrecorded_daemon() == listener
    monkeypatch.setattr(processes, "is_outside_containers", lambda _: False)
    assert one._unrecorded_daemon() is None


def test_a_killed_daemon_does_not_serve_although_it_keeps_its_pid_longer_than_its_memory(
    tmp_path: Path, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    child = start("ours")
    record = DomainRecord(boot_id="boot", daemon=known(child), token="ours")  # noqa: S106
    monkeypatch.setattr(processes, "environment_of", lambda _: {})
    monkeypatch.setattr(lifecycle, "_LATE_SECONDS", PATIENCE)
    threading.Timer(0.1, child.kill).start()
    assert life(tmp_path)._running_daemon(record) is None


def test_limits_of_active_servers_are_restored_and_logged(tmp_path: Path) -> None:
    asked: list[str] = []

    def ask(_: object, commands: Sequence[str]) -> list[str]:
        asked.extend(commands)
        return ["90"] * len(commands)

    states = [ServerState(pid=41, status="ACTIVE"), ServerState(pid=42, status="FAULT")]
    with capture_logs() as logs:
        life(tmp_path, ask=ask).keep_limits(DOMAIN, states)
    assert asked == ["get_active_thread_percentage 41", "set_active_thread_percentage 41 30"]
    assert [line["cause"].partition(" had ")[0] for line in logs] == ["server 41"]
