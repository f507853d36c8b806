"""Cases as processes: tenants begin together, are judged, and have ended, whatever happens.

The tenants of most tests are a script that says what tenants say, so that the runner is tested
where no GPU does any work. The MPS daemon is NVIDIA's own, on a simulated machine.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import pytest

from bench_processes import command, runner, scenario_of
from bench_reports import asked, strategy
from dra_driver.bench.model import Case
from dra_driver.bench.mps_daemon import mps_daemon
from dra_driver.bench.pods.offer import Offer
from dra_driver.bench.session import run_all
from dra_driver.bench.stopping import Stop, stoppable
from dra_driver.bench.strategies import Sharing, Strategy
from dra_driver.bench.tenant.card import CardNvml
from dra_driver.bench.workload import Workload, WorkloadKind
from dra_driver.simulator.driver_root import Options
from dra_driver.simulator.machine import Machine

WORK = Workload(kind=WorkloadKind.COMPUTE, seconds=0.2, warm_up=0.0)
ALONE = strategy(Sharing.ALONE, work=WORK, name="alone")
TWO = strategy(Sharing.TIME_SLICING, 2, WORK)
LIMITED = strategy(Sharing.MPS_LIMITS, 2, WORK, thread_percentage=40, memory_mib=3072)


def alone(work: Workload) -> Strategy:
    return strategy(Sharing.ALONE, work=work)


def test_no_tenant_begins_before_the_common_moment_and_each_has_its_result(tmp_path: Path) -> None:
    case = runner(tmp_path).run(TWO, 1)
    assert case.state == "measured", case.reason
    found = [tenant.result for tenant in case.tenants]
    assert [one.throughput for one in found if one] == [5.0, 10.0]
    assert all(one is not None and one.late_seconds >= 0 for one in found)
    assert all(one is not None and one.launch_seconds for one in found)


@pytest.mark.parametrize(
    ("mode", "reason"),
    [("crash", "segmentation fault, say"), ("odd", "a tenant's output is not understood")],
)
def test_a_case_whose_tenants_fail_says_why(tmp_path: Path, mode: str, reason: str) -> None:
    case = runner(tmp_path, {"MODE": mode}).run(TWO, 1)
    assert case.state == "failed"
    assert reason in case.reason


def test_a_killed_tenant_is_reported_with_signal_and_last_words(tmp_path: Path) -> None:
    case = runner(tmp_path, {"MODE": "killed"}).run(TWO, 1)
    assert case.state == "measured"
    assert [tenant.failure for tenant in case.tenants] == [
        "",
        "it was killed by SIGKILL: the last words",
    ]


def test_a_tenant_that_hangs_is_ended_and_has_no_result(tmp_path: Path) -> None:
    case = runner(tmp_path, {"MODE": "one-stuck"}, patience=4).run(TWO, 1)
    assert case.state == "measured"
    (first, second) = case.tenants
    assert first.result is not None
    assert second.failure == "it was ready, but still ran long after its time was over"
    assert _processes_with(str(tmp_path / "tenant.py")) == []


def test_no_tenant_is_a_client_of_the_machines_own_mps(tmp_path: Path) -> None:
    outside = {"CUDA_MPS_PIPE_DIRECTORY": "/tmp/nvidia-mps", "CUDA_VISIBLE_DEVICES": "3"}
    own = runner(tmp_path, outside)
    with own._shared(TWO, tmp_path) as (environment, _):
        assert environment["CUDA_MPS_PIPE_DIRECTORY"] == str(tmp_path / "no-mps")
        assert list((tmp_path / "no-mps").iterdir()) == []
        assert "CUDA_VISIBLE_DEVICES" not in environment
    assert own._devices(TWO) == ["GPU-played", "GPU-played"]


def test_strategies_that_would_change_a_setting_are_not_run(tmp_path: Path) -> None:
    own = runner(tmp_path)
    mig = strategy(Sharing.MIG, 2, profile="1g.10gb")
    assert own.obstacle(mig).startswith("there is no MIG device 1g.10gb; there are: none; bench ")
    assert own.obstacle(strategy(Sharing.SHARES)).startswith("only on a cluster")
    assert own.obstacle(TWO) == ""
    alone = runner(tmp_path, compute_mode="Exclusive_Process")
    assert "allows only one process" in alone.obstacle(TWO)
    assert alone.obstacle(ALONE) == ""
    assert "Prohibited" in runner(tmp_path, compute_mode="Prohibited").obstacle(ALONE)


def test_a_command_is_timed_and_its_failure_is_one(tmp_path: Path) -> None:
    good = Workload(kind=WorkloadKind.COMMAND, seconds=20.0, command=("sleep", "0.3"))
    case = runner(tmp_path).run(strategy(Sharing.TIME_SLICING, 2, good), 1)
    assert case.state == "measured"
    assert all(tenant.result and 0.3 <= tenant.result.seconds < 10 for tenant in case.tenants)
    assert case.usage is not None
    assert case.usage.sm_percent == 50
    absent = command("no-such-program")
    reason = runner(tmp_path).run(alone(absent), 1).reason
    assert "its exit status was 127: error: cannot run no-such-program" in reason


def test_a_command_that_does_not_end_is_ended_with_its_children(tmp_path: Path) -> None:
    mark = str(tmp_path / "mark")
    script = f"trap '' TERM; (exec -a {mark} sleep 1000) & exec -a {mark} sleep 1001"
    work = command("bash", "-c", script, seconds=0.5)
    case = runner(tmp_path).run(alone(work), 1)
    assert "it did not end in time: give it more time with --seconds" in case.reason
    assert _processes_with(mark) == []


@pytest.fixture
def interruptible() -> Iterator[None]:
    """SIGINT as on a terminal: tests in the background of a script ignore it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
def test_an_interrupt_ends_all_tenants_and_keeps_what_was_measured(tmp_path: Path) -> None:
    said: list[str] = []
    kept: list[int] = []

    class Interrupting:
        """Runs the first case, and is interrupted amid the second, whose tenants do not end."""

        where: Final = "processes"
        offer = Offer()

        def __init__(self, stop: Stop) -> None:
            self.usual = runner(tmp_path, stop=stop)
            self.stuck = runner(tmp_path, {"MODE": "stuck"}, stop=stop)

        def obstacle(self, strategy: Strategy) -> str:
            return ""

        def run(self, strategy: Strategy, seed: int) -> Case:
            if strategy == ALONE:
                return self.usual.run(strategy, seed)
            later = [threading.Timer(at, os.kill, (os.getpid(), signal.SIGINT)) for at in (4, 4.2)]
            for timer in later:
                timer.start()
            try:
                return self.stuck.run(strategy, seed)
            finally:
                for timer in later:
                    timer.join()

    with stoppable(said.append) as stop:
        cases, interrupted = run_all(
            Interrupting(stop),
            (ALONE, TWO, TWO),
            asked((ALONE, TWO)),
            say=said.append,
            stop=stop,
            keep=lambda cases: kept.append(len(cases)),
        )
    assert interrupted
    assert [case.state for case in cases] == ["measured"]
    assert kept == [1]
    assert any(text.startswith("SIGINT: ending") for text in said)
    assert said[-1] == "cleaning up; this takes a moment"
    assert _processes_with(str(tmp_path / "tenant.py")) == []


def _processes_with(word: str, file: str = "cmdline") -> list[int]:
    """The processes that have a word in their command line, or in another file of theirs."""
    found = []
    for entry in Path("/proc").glob(f"[0-9]*/{file}"):
        try:
            if word.encode() in entry.read_bytes():
                found.append(int(entry.parent.name))
        except OSError:
            continue
    return found


def _until(is_so: Callable[[], bool]) -> None:
    assert Stop().wait(is_so, 60.0, 0.1)


@pytest.fixture
def machine(tmp_path: Path, real_userspace: None) -> Iterator[Machine]:
    """A simulated machine with NVIDIA's own programs."""
    machine = Machine.create(tmp_path / "driver", "h100x8", Options(userspace="real"))
    yield machine
    machine.destroy()


class TestOnASimulatedMachine:
    """With NVML and NVIDIA's MPS daemon."""

    def test_a_benchmark_daemon_has_the_limits_and_is_ended(
        self, machine: Machine, tmp_path: Path
    ) -> None:
        nvml = CardNvml(tmp_path / "driver")
        before = machine.status
        try:
            path = {"LD_LIBRARY_PATH": str(nvml.library_folder)}
            with mps_daemon(tmp_path / "driver", nvml.uuid, path) as daemon:
                seen = daemon.limit(LIMITED)
                folder = daemon.pipe.parent
                pids = _processes_with(str(folder), "environ")
                assert pids
            assert seen == ("active threads: 40 %", f"pinned memory: {LIMITED.memory_mib} MiB")
            assert not folder.exists()
            assert _processes_with(str(folder), "environ") == []
            assert machine.status == before
        finally:
            nvml.close()

    def test_a_run_that_is_killed_leaves_no_process_and_its_folder_goes_with_the_next(
        self, machine: Machine, tmp_path: Path
    ) -> None:
        temporary = Path(tempfile.mkdtemp(prefix="b-", dir="/tmp"))  # a short path
        lasting = "setsid sleep 999 & sleep 1000; true"
        script = f"case $CUDA_MPS_PIPE_DIRECTORY in *no-mps) ;; *) {lasting} ;; esac"
        words = ("--nvidia-driver-root", tmp_path / "driver", "--name", tmp_path / "b")
        run = (sys.executable, "-m", "dra_driver", "bench", "processes", *words, "--scenario")
        process = subprocess.Popen(
            [*run, scenario_of(tmp_path / "long.yaml", "mps", "sh", "-c", script)],
            env={**os.environ, "TMPDIR": str(temporary)},
            stderr=subprocess.DEVNULL,
        )
        try:
            # Of MPS: supervising process and daemon. Of each tenant: supervising process, shell,
            # sleep, and sleep in a session of its own.
            _until(lambda: len(_processes_with(f"={temporary}/dra-bench-", "environ")) == 10)
            process.kill()
            process.wait()
            _until(lambda: _processes_with(f"={temporary}/dra-bench-", "environ") == [])
            report = json.loads((tmp_path / "b.json").read_text())
            assert [case["state"] for case in report["cases"]] == ["passed"]
            assert report["interrupted"]
            assert list(temporary.iterdir())
            subprocess.run(
                [*run, scenario_of(tmp_path / "short.yaml", "mps", "true")],
                env={**os.environ, "TMPDIR": str(temporary)},
                check=True,
                capture_output=True,
                timeout=60,
            )
            assert list(temporary.iterdir()) == []
        finally:
            process.kill()
            shutil.rmtree(temporary)


def test_a_failed_command_is_reported_with_its_last_words(tmp_path: Path) -> None:
    said = "import sys; sys.stderr.write('first\\nout of memory\\n\\n'); sys.exit(3)"
    case = runner(tmp_path).run(alone(command(sys.executable, "-c", said)), 1)
    assert case.reason == ("the command failed: its exit status was 3: out of memory")
    (simulated,) = [runner(tmp_path, is_simulated=True).run(alone(command("false")), 1)]
    assert (simulated.state, simulated.tenants) == ("failed", ())
