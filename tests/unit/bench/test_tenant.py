"""One tenant: every work on a libcuda of the tests, with NVIDIA's own bindings and NVRTC."""

import multiprocessing
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pytest

import libcuda
from dra_driver.bench import lines
from dra_driver.bench.tenant.cuda import compiled
from dra_driver.bench.tenant.kernels import SOURCE, triad_gigabytes
from dra_driver.bench.tenant.supervised import uptime
from dra_driver.bench.workload import Workload, WorkloadKind
from dra_driver.errors import DeviceError


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return libcuda.build(tmp_path_factory.mktemp("libcuda"))


def tenant(
    folder: Path, library: Path | None, work: Workload, environment: Mapping[str, str] | None = None
) -> list[lines.Said]:
    """Let a tenant live that may begin at once; return what it said."""
    start = folder / "start"
    start.write_text(str(uptime()))
    root = folder / "root"  # no NVML here
    root.mkdir(exist_ok=True)
    spec = lines.Spec(number=0, work=work, start=str(start), patience=20, driver_root=str(root))
    path = {"LD_LIBRARY_PATH": str(library)} if library else {}
    done = subprocess.run(
        [sys.executable, "-m", "dra_driver.bench.tenant.program", spec.model_dump_json()],
        env={**os.environ, **path, **(environment or {})},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert "Traceback" not in done.stderr, done.stderr
    return list(_said(done.stdout))


def _said(text: str) -> Iterator[lines.Said]:
    for line in text.splitlines():
        if said := lines.heard(line):
            yield said


def work(kind: WorkloadKind, **fields: object) -> Workload:
    return Workload.model_validate({"kind": kind, "seconds": 0.3, "warm_up": 0.05, **fields})


@pytest.mark.parametrize("kind", ["bandwidth", "inference", "memory"])
def test_every_work_is_done_and_its_outcome_checked(
    kind: str, tmp_path: Path, library: Path
) -> None:
    asked = work(WorkloadKind(kind), memory_mib=12, rate=100.0, width=64)
    ready, *_, done = tenant(tmp_path, library, asked)
    assert isinstance(ready, lines.Ready)
    assert ready.context_seconds is not None
    assert isinstance(done, lines.Done)
    assert done.steps
    assert done.seconds >= 0.3
    step = {
        "bandwidth": triad_gigabytes(1 << 20),
        "inference": 1.0,
        "memory": 12 * (1 << 20) * 2 / 1e9,
    }[kind]
    assert done.units == pytest.approx(done.steps * step)
    assert done.latency is not None
    assert done.latency.p99_ms >= done.latency.p50_ms > 0


def test_a_gpu_that_computes_nothing_is_not_measured(tmp_path: Path, library: Path) -> None:
    asked = work(WorkloadKind.COMPUTE, memory_mib=12, width=64)
    (failed,) = tenant(tmp_path, library, asked, {"TEST_CUDA_WRONG": "multiply_add"})
    assert isinstance(failed, lines.Failed)
    assert failed.reason.startswith("the GPU's result is 0 where 4 is right")
    assert "it did not do the work, so nothing is measured" in failed.reason


def test_without_a_driver_a_tenant_names_the_reason(tmp_path: Path) -> None:
    (failed,) = tenant(tmp_path, None, work(WorkloadKind.COMPUTE))
    assert isinstance(failed, lines.Failed)
    assert failed.reason.startswith("libcuda.so.1 cannot be used")
    assert "in a container with a claim for a GPU" in failed.reason


def test_nvrtc_makes_code_for_cards_it_knows_and_ptx_for_newer_ones() -> None:
    # In a process of its own, as in a tenant: beside other libraries NVRTC has crashed.
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as alone:

        def made(source: str, capability: tuple[int, int]) -> bytes:
            return alone.submit(compiled, source, capability).result()

        assert made(SOURCE, (7, 0)).startswith(b"\x7fELF")
        assert b".target sm_121" in made(SOURCE, (13, 0))
        with pytest.raises(DeviceError, match=r"no code for compute capability 3\.5"):
            made(SOURCE, (3, 5))
        with pytest.raises(DeviceError, match=r"cannot compile the kernels for sm_90.*nonsense"):
            made("nonsense", (9, 0))
