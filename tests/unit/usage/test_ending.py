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
from dra_driver.usage.model import Process, User
from dra_driver.usage.processes import Processes, now_ticks

UID = "0b9c4c6e-0d2a-4c55-8f3c-7f2b0a1d9e11"
ID, OTHER = "ab" * 32, "cd" * 32
NAMES = ["{}", "crio-{}", "cri-containerd-{}.scope", "crio-{}.scope", "docker-{}.scope"]
PROCESSES = Processes(Path("/proc"))


@pytest.fixture
def running() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(("sleep", "60"))
    yield process
    process.kill()
    process.wait()


def seen(pid: int) -> Process:
    process = PROCESSES.see(pid, before=now_ticks() + 100)
    assert process is not None
    ticks = process.start_ticks
    return Process(pid=pid, start_ticks=ticks, name="", kind="compute", memory_bytes=1, sm=None)


def victim(*processes: Process, container: str = ID) -> User:
    return User(pod_uid=UID, container_id=container, processes=processes)


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
    with subprocess.Popen(("sleep", "60")) as child:
        without_groups()(victim(seen(running.pid), seen(child.pid)))
        assert [each.wait(10) for each in (running, child)] == [-signal.SIGKILL] * 2
    without_groups()(victim(replace(seen(os.getpid()), pid=running.pid)))  # it has ended by now


def test_a_reused_pid_is_left_alone(
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


def test_a_missing_right_to_end_processes_is_an_error(
    running: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(descriptor: int, number: int) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(signal, "pidfd_send_signal", refuse)
    with pytest.raises(EndingError, match=f"{running.pid} cannot be ended.* cluster's admin"):
        without_groups()(victim(seen(running.pid)))
    with pytest.raises(EndingError, match=r"and 4 more cannot be ended"):
        without_groups()(victim(*[seen(running.pid)] * 9))


@pytest.mark.parametrize("first", "0abcdef")
@pytest.mark.parametrize("name", NAMES)
def test_with_control_groups_only_the_container_is_ended_at_once(
    tmp_path: Path, running: subprocess.Popen[bytes], name: str, first: str
) -> None:
    pod = tmp_path / f"kubepods/burstable/pod{UID}"
    mine = first + ID[1:]
    beside = [name.format(OTHER), name.format(f"conmon-{mine}"), f"crio-conmon-{mine}.scope"]
    beside += [f"a-{mine}", f"{mine}.scope", f"a-{mine}.scope", mine[:63], f"crio-{mine}-x"]
    for group in (name.format(mine), *beside):
        (pod / group).mkdir(parents=True, exist_ok=True)
        (pod / group / "cgroup.kill").touch()
    Ending(PodGroups(tmp_path), PROCESSES)(victim(seen(running.pid), container=mine))
    killed = [file.parent.name for file in pod.glob("*/cgroup.kill") if file.read_bytes()]
    assert killed == [name.format(mine)]
    assert running.poll() is None  # the kernel does it


@pytest.mark.parametrize("is_twice", [True, False])
def test_where_a_group_cannot_be_ended_its_processes_are(
    tmp_path: Path, running: subprocess.Popen[bytes], is_twice: bool
) -> None:
    pod = tmp_path / f"kubepods/pod{UID}"
    (pod / ID / "cgroup.kill").mkdir(parents=True)  # it cannot be written
    if is_twice:  # it is not known which of them is the kubelet's
        (tmp_path / f"kubepods/burstable/pod{UID}").mkdir(parents=True)
    Ending(PodGroups(tmp_path), PROCESSES)(victim(seen(running.pid)))
    assert running.wait(10) == -signal.SIGKILL
