"""A container's processes are ended, and nobody else's: also where PIDs are given again."""

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from dra_driver.sharing.pod_groups import PodGroups
from dra_driver.usage.ending import Ending, EndingError
from dra_driver.usage.over_limit import Tenant
from dra_driver.usage.processes import Processes, SeenProcess, now_ticks

UID = "0b9c4c6e-0d2a-4c55-8f3c-7f2b0a1d9e11"
ID, OTHER = "ab" * 32, "cd" * 32
PROCESSES = Processes(Path("/proc"))


@pytest.fixture
def running() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(("sleep", "60"))
    yield process
    process.kill()
    process.wait()


def seen(pid: int) -> SeenProcess:
    process = PROCESSES.see(pid, before=now_ticks() + 100)
    assert process is not None
    return process


def victim(*processes: SeenProcess) -> Tenant:
    return Tenant(pod_uid=UID, container_id=ID, processes=processes, used_bytes=1)


def without_groups() -> Ending:
    return Ending(PodGroups(None), PROCESSES)


@pytest.mark.parametrize("has_pidfd", [True, False])
def test_without_control_groups_the_processes_that_were_seen_are_ended(
    running: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch, has_pidfd: bool
) -> None:
    if not has_pidfd:

        def missing(pid: int) -> int:
            raise OSError(38, "Function not implemented")

        monkeypatch.setattr(os, "pidfd_open", missing)
    without_groups()(victim(seen(running.pid)))
    assert running.wait(10) == -signal.SIGKILL
    without_groups()(victim(replace(seen(os.getpid()), pid=running.pid)))  # it has ended by now


def test_a_pid_that_was_given_again_is_left_alone(
    running: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[object] = []
    monkeypatch.setattr(signal, "pidfd_send_signal", lambda *words: sent.append(words))
    monkeypatch.setattr(os, "kill", lambda *words: sent.append(words))
    now = seen(running.pid)
    for ticks in (now.start_ticks - 1, now.start_ticks + 1):
        without_groups()(victim(replace(now, start_ticks=ticks)))
    assert sent == []
    without_groups()(victim(now))
    assert len(sent) == 1


def test_that_it_is_not_allowed_is_an_error(
    running: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(descriptor: int, number: int) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(signal, "pidfd_send_signal", refuse)
    with pytest.raises(EndingError, match=f"{running.pid} cannot be ended.* cluster's admin"):
        without_groups()(victim(seen(running.pid)))


@pytest.mark.parametrize("name", ["{}", "crio-{}", "cri-containerd-{}.scope", "crio-{}.scope"])
def test_with_control_groups_all_of_the_container_is_ended_at_once(
    tmp_path: Path, running: subprocess.Popen[bytes], name: str
) -> None:
    pod = tmp_path / f"kubepods/burstable/pod{UID}"
    mine, other = pod / name.format(ID), pod / name.format(OTHER)
    for folder in (mine, other):
        folder.mkdir(parents=True)
        (folder / "cgroup.kill").touch()
    Ending(PodGroups(tmp_path), PROCESSES)(victim(seen(running.pid)))
    assert (mine / "cgroup.kill").read_bytes() == b"1"
    assert (other / "cgroup.kill").read_bytes() == b""
    assert running.poll() is None  # the kernel does it


def test_where_a_group_cannot_be_ended_its_processes_are(
    tmp_path: Path, running: subprocess.Popen[bytes]
) -> None:
    pod = tmp_path / f"kubepods/pod{UID}"
    (pod / ID / "cgroup.kill").mkdir(parents=True)  # it cannot be written
    Ending(PodGroups(tmp_path), PROCESSES)(victim(seen(running.pid)))
    assert running.wait(10) == -signal.SIGKILL
