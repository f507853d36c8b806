"""One look for all who ask, and nobody waits for one that hangs."""

import subprocess
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, nullcontext
from pathlib import Path

import pytest
from msgspec.structs import replace

from clock import Clock
from dra_driver.devices.load import GpuLoad, GpuProcess, ProcessKind
from dra_driver.errors import TransientError
from dra_driver.mps.domain import Daemon, DomainId, State, Status, encode
from dra_driver.mps.files import MpsFiles
from dra_driver.usage.model import Known, NodeUse
from dra_driver.usage.node import NodeLook, known_below
from dra_driver.usage.processes import Processes
from dra_driver.usage.sampler import Sampler

USE = NodeUse(gpus=(), silent={}, sees_processes=True)


def test_one_look_on_request_serves_many() -> None:
    looks: list[None] = []

    def look() -> NodeUse:
        looks.append(None)
        time.sleep(0.1)
        return USE

    clock = Clock()
    sampler = Sampler(look, clock=clock)
    assert looks == []
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(lambda _: sampler.current(), range(8))) == [USE] * 8
    assert len(looks) == 1
    clock.now += 4.9
    assert sampler.current() is USE
    assert len(looks) == 1
    clock.now += 0.2
    assert sampler.current() is USE
    assert len(looks) == 2


def test_a_look_that_hangs_is_waited_for_until_the_deadline_and_made_once() -> None:
    goes_on, looks = threading.Event(), threading.Semaphore(0)

    def look() -> NodeUse:
        looks.release()
        goes_on.wait(60)
        return USE

    sampler = Sampler(look, deadline_seconds=0.1)
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(sampler.current)
        assert looks.acquire(timeout=30)
        start = time.monotonic()
        assert sampler.current() is None
        assert sampler.current() is None
        assert time.monotonic() - start < 30
        goes_on.set()
        assert first.result(30) is USE
    assert sampler.current() is USE
    assert not looks.acquire(blocking=False)


@pytest.mark.parametrize("error", [TransientError("not open now"), RuntimeError("a defect")])
def test_a_look_that_fails_is_made_again(error: Exception) -> None:
    answers: list[NodeUse | Exception] = [error, USE]

    def look() -> NodeUse:
        if isinstance(found := answers.pop(0), Exception):
            raise found
        return found

    sampler = Sampler(look)
    with pytest.raises(RuntimeError) if isinstance(error, RuntimeError) else nullcontext():
        assert sampler.current() is None
    assert sampler.current() is USE


class TwoGpus:
    """The second answers when it is let to."""

    def __init__(self) -> None:
        self.goes_on = threading.Event()

    def gpu_count(self) -> int:
        return 2

    def gpu_load(self, index: int, *, sampled: bool = True) -> GpuLoad:
        if index == 1:
            self.goes_on.wait(60)
            raise TransientError("too late")
        return GpuLoad(
            index=0, minor=0, uuid="GPU-0", product_name="x", memory=None, busy=None, processes=()
        )


class SilentGpus(TwoGpus):
    """None of eight answers."""

    def gpu_count(self) -> int:
        return 8

    def gpu_load(self, index: int, *, sampled: bool = True) -> GpuLoad:
        return super().gpu_load(1)


def test_all_gpus_that_hang_take_no_longer_than_one(monkeypatch: pytest.MonkeyPatch) -> None:
    gpus, clock = SilentGpus(), Clock()
    begun = clock.now

    def wait(_: threading.Thread, seconds: float) -> None:
        clock.now += seconds

    with monkeypatch.context() as patched:
        patched.setattr(time, "monotonic", clock)
        patched.setattr(threading.Thread, "join", wait)
        found = NodeLook(gpus, Processes(), Known, answer_seconds=3).look()
    gpus.goes_on.set()
    assert found.silent == dict.fromkeys(range(8), "it has not answered in 3 s")
    assert clock.now == begun + 3


def test_a_process_newer_than_nvmls_answer_is_ignored() -> None:
    with ExitStack() as stack:

        class Busy(TwoGpus):
            """A process was on the GPU, and another one has its PID since."""

            def gpu_count(self) -> int:
                return 1

            def gpu_load(self, index: int, *, sampled: bool = True) -> GpuLoad:
                time.sleep(0.05)  # longer than a tick of the clock by which starts are known
                successor = stack.enter_context(subprocess.Popen(["sleep", "60"]))
                stack.callback(successor.kill)
                process = GpuProcess(pid=successor.pid, kind=ProcessKind.COMPUTE, memory_bytes=1)
                return replace(super().gpu_load(index), processes=(process,))

        found = NodeLook(Busy(), Processes(), Known, answer_seconds=30).look()
    assert [one.others for gpu in found.gpus for one in gpu.devices] == [()]


def test_domains_that_cannot_be_read_hide_no_other(tmp_path: Path) -> None:
    files, daemon = MpsFiles(root=tmp_path / "mps"), Daemon(pid=7, start_ticks=1)
    files.make_folders()
    for number in range(20):
        file = files.status(DomainId(f"bad-{number}"))
        file.symlink_to(file.name)  # to itself
    good = Status(id=DomainId("good"), state=State.READY, supervisor="s", daemon=daemon)
    files.status(good.id).write_bytes(encode(good))
    assert known_below(tmp_path, (), lambda _: {}, tuple).daemons == (daemon,)
