"""What a tenant is told of the GPU while it works, by NVML and GPM.

On a simulated GPU it would not work. So its NVML lies apart from what says that it is simulated,
and its libcuda is the tests' own.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

import libcuda
from dra_driver.bench import lines
from dra_driver.bench.tenant.supervised import uptime
from dra_driver.bench.workload import Workload, WorkloadKind
from dra_driver.simulator.machine import Machine
from dra_driver.simulator.processes import Activity

MIB = 1 << 20
WORK = Workload(kind=WorkloadKind.COMPUTE, seconds=0.4, warm_up=0.0)


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return libcuda.build(tmp_path_factory.mktemp("libcuda"))


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine.create(tmp_path / "machine", "h100x8")


def done_by_a_tenant(
    machine: Machine,
    library: Path,
    environment: Mapping[str, str] | None = None,
    *,
    watches: bool = False,
) -> lines.Done:
    folder = machine.driver_root.parent
    apart = folder / "root/usr/lib64"
    apart.mkdir(parents=True)
    shutil.copy(machine.library, apart / "libnvidia-ml.so.1")
    start = folder / "start"
    start.write_text(f"{uptime():.3f}")
    spec = lines.Spec(
        number=0, work=WORK, start=str(start), driver_root=str(folder / "root"), watches=watches
    )
    state = {
        "NVML_SIMULATOR_STATE": str(machine.state_file),
        "NVML_SIMULATOR_DEV": str(machine.dev_root / "dev"),
        "LD_LIBRARY_PATH": str(library),
    }
    done = subprocess.run(
        [sys.executable, "-m", "dra_driver.bench.tenant.program", spec.model_dump_json()],
        env={**os.environ, **state, **(environment or {})},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (found,) = (
        said
        for line in done.stdout.splitlines()
        if isinstance(said := lines.heard(line), lines.Done)
    )
    assert found.steps
    return found


def test_the_watching_tenant_reports_how_busy_a_whole_gpu_was(
    machine: Machine, library: Path
) -> None:
    machine.take_memory(machine.find("0").uuid, MIB, pid=11)
    machine.let_do(11, Activity(sm=80, memory_access=25))
    found = done_by_a_tenant(machine, library, watches=True)
    by_gpm = (found.busy_sm_percent, found.bandwidth_percent)
    assert found.usage is not None
    assert (found.usage.sm_percent, found.usage.memory_percent) == (80, 25)
    assert by_gpm == (80, 25)


def test_each_tenant_of_a_mig_device_reports_how_busy_it_was(
    machine: Machine, library: Path
) -> None:
    gpu = machine.find("0").uuid
    machine.set_mig_mode(gpu, enabled=True)
    mine, other = (machine.create_mig(gpu, "1g.10gb") for _ in range(2))
    for device, pid, sm in ((mine, 21, 60), (other, 22, 90)):
        machine.hold_instance(device, pid=pid, memory=MIB)
        machine.let_do(pid, Activity(sm=sm, memory_access=sm // 2))
    found = done_by_a_tenant(machine, library, {"CUDA_VISIBLE_DEVICES": mine})
    assert (found.busy_sm_percent, found.bandwidth_percent) == (60, 30)
