"""The files of MIG instances, what containers see of them, and processes that die half-way."""

import contextlib
import fcntl
import os
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path

import pynvml
import pytest

import mig_calls
from contract.simulator.conftest import MakeMachine, Nvml
from dra_driver.simulator import procfs, state
from dra_driver.simulator import profile as profiles
from dra_driver.simulator.device_nodes import NodeKind
from dra_driver.simulator.machine import Machine


@pytest.fixture
def machine(make_machine: MakeMachine) -> Machine:
    machine = make_machine("h100x8")
    assert machine.set_mig_mode(machine.gpus[2].uuid, enabled=True)
    return machine


def access_files(machine: Machine, minor: int) -> dict[str, int]:
    """The capability files of a GPU: path below its folder, and the minor number in it."""
    folder = machine.proc_root / f"driver/nvidia/capabilities/gpu{minor}/mig"
    return {
        str(path.relative_to(folder)): int(path.read_text().split()[1])
        for path in sorted(folder.rglob("access"))
    }


def node_minors(machine: Machine) -> set[int]:
    """The instances' capability nodes; 1 and 2 are those of the driver itself."""
    nodes = (machine.dev_root / "dev/nvidia-caps").iterdir()
    return {int(node.name.removeprefix("nvidia-cap")) for node in nodes} - {1, 2}


def test_an_instance_has_files_and_nodes_while_it_is_there(machine: Machine) -> None:
    gpu = machine.gpus[2]
    first = machine.create_mig(gpu.uuid, "3g.40gb", 4)
    second = machine.create_mig(gpu.uuid, "1g.10gb", 0)
    files = access_files(machine, gpu.minor)
    table = dict(line.split() for line in procfs.mig_minors().splitlines())
    assert files == {
        path: int(table[f"gpu{gpu.minor}/{path}"])
        for path in ("gi1/access", "gi1/ci0/access", "gi11/access", "gi11/ci0/access")
    }
    assert node_minors(machine) == set(files.values())
    if machine.description.nodes.kind is NodeKind.DEVICE:
        node = (machine.dev_root / f"dev/nvidia-caps/nvidia-cap{files['gi1/access']}").stat()
        assert stat.S_ISCHR(node.st_mode)
        assert os.major(node.st_rdev) == machine.description.nodes.caps_major
        assert os.minor(node.st_rdev) == files["gi1/access"]
    machine.destroy_mig(first)
    assert list(access_files(machine, gpu.minor)) == ["gi11/access", "gi11/ci0/access"]
    machine.destroy_mig(second)
    assert access_files(machine, gpu.minor) == {}
    assert node_minors(machine) == set()


@pytest.mark.parametrize("end", ["reset_gpu", "remove_gpu", "reboot", "reload"])
def test_files_go_with_instances_that_end_otherwise(machine: Machine, end: str) -> None:
    gpu = machine.gpus[2].uuid
    machine.create_mig(gpu, "3g.40gb")
    if end == "reboot":
        machine.reboot()
    elif end == "reload":
        machine.unload_driver()
        machine.load_driver()
    else:
        getattr(machine, end)(gpu)
    assert access_files(machine, machine.gpus[2].minor) == {}
    assert node_minors(machine) == set()
    assert machine.mig_devices(gpu) == []


def container(machine: Machine, folder: Path, nodes: list[str]) -> Path:
    """A dev folder with some of the machine's nodes."""
    for name in ("nvidiactl", *nodes):
        status = (machine.dev_root / "dev" / name).stat()
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if stat.S_ISCHR(status.st_mode):
            os.mknod(target, status.st_mode, status.st_rdev)
        else:
            target.touch()
    return folder


def test_a_container_sees_the_mig_devices_whose_nodes_it_has(
    machine: Machine, nvml: Nvml, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpu = machine.gpus[2]
    machine.create_mig(gpu.uuid, "1g.10gb", 0)
    mine = machine.create_mig(gpu.uuid, "1g.10gb", 1)
    files = access_files(machine, gpu.minor)
    caps = [f"nvidia-caps/nvidia-cap{files[f'gi12/{path}']}" for path in ("access", "ci0/access")]
    nodes = [f"nvidia{gpu.minor}", *caps]
    monkeypatch.setenv("NVML_SIMULATOR_DEV", str(container(machine, tmp_path / "dev", nodes)))
    with nvml(machine):
        assert pynvml.nvmlDeviceGetCount() == 1
        device = pynvml.nvmlDeviceGetHandleByIndex(0)
        found = mig_calls.mig_devices(device)
        assert {i: pynvml.nvmlDeviceGetUUID(mig) for i, mig in found.items()} == {0: mine}
        assert pynvml.nvmlDeviceGetIndex(found[0]) == 0
        other = machine.mig_devices(gpu.uuid)[0].uuid
        with pytest.raises(pynvml.NVMLError_NotFound):
            pynvml.nvmlDeviceGetHandleByUUID(other)
        for call in (pynvml.nvmlDeviceGetGpuInstanceById, pynvml.nvmlDeviceCreateGpuInstance):
            with pytest.raises(pynvml.NVMLError_NoPermission):
                call(device, 12)
    for missing in caps:
        aside = tmp_path / "dev" / missing
        aside.rename(tmp_path / "aside")
        with nvml(machine):
            assert mig_calls.mig_devices(pynvml.nvmlDeviceGetHandleByIndex(0)) == {}
        (tmp_path / "aside").rename(aside)


def test_with_the_node_of_mig_config_a_container_may_cut(
    machine: Machine, nvml: Nvml, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nodes = ["nvidia2", "nvidia-caps/nvidia-cap1"]
    monkeypatch.setenv("NVML_SIMULATOR_DEV", str(container(machine, tmp_path / "dev", nodes)))
    with nvml(machine):
        device = pynvml.nvmlDeviceGetHandleByIndex(0)
        mig_calls.create_both(device, 19, 0, 1)
        assert len(mig_calls.instances(device)) == 1
    assert len(machine.mig_devices(machine.gpus[2].uuid)) == 1


CUT = """
import ctypes, sys
import pynvml
import mig_calls

pynvml.nvmlLib = ctypes.CDLL(sys.argv[1])
pynvml.nvmlInit()
device = pynvml.nvmlDeviceGetHandleByUUID(sys.argv[2])
pynvml.nvmlDeviceSetMigMode(device, 1)
for start in (0, 1):
    instance, compute = mig_calls.create_both(device, 19, start, 1)
pynvml.nvmlComputeInstanceDestroy(compute)
pynvml.nvmlGpuInstanceDestroy(instance)
"""


MAKE = """
import ctypes, sys
library = ctypes.CDLL(sys.argv[1])
print(flush=True)
library.nvmlSimulatorCreateMig(sys.argv[2].encode(), 0, 19, -1, (ctypes.c_uint * 3)())
"""


def test_nothing_is_seen_of_an_instance_before_it_is_made(
    make_machine: MakeMachine, nvml: Nvml
) -> None:
    slow = profiles.load("h100x8").model_copy(update={"mig_change_ms": 3_600_000})
    machine = make_machine(slow, "slow")
    machine.set_mig_mode(machine.gpus[0].uuid, enabled=True)
    path = state.find(machine.library_folder)
    command = [sys.executable, "-c", MAKE, machine.library, path]
    with (
        nvml(machine),
        subprocess.Popen(command, stdout=subprocess.PIPE) as maker,
        contextlib.ExitStack() as ends,
    ):
        ends.callback(maker.kill)
        assert maker.stdout
        maker.stdout.readline()
        with path.open() as file, contextlib.suppress(BlockingIOError):
            while True:  # until it has begun
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                fcntl.flock(file, fcntl.LOCK_UN)
                time.sleep(0.01)
        device = pynvml.nvmlDeviceGetHandleByUUID(machine.gpus[0].uuid)
        assert not mig_calls.instances(device)
        maker.kill()
        maker.wait()
        assert not mig_calls.instances(device)


def cut(machine: Machine) -> int:
    """Run a process that makes two MIG devices and destroys the second; its exit status."""
    return subprocess.run(
        [sys.executable, "-c", CUT, str(machine.library), machine.gpus[0].uuid],
        env={**os.environ, "PYTHONPATH": str(Path(mig_calls.__file__).parent)},
        timeout=60,
        check=False,
    ).returncode


@pytest.mark.parametrize(
    ("function", "nth", "before", "after"),
    [
        # What is there when it died: mode, GPU instances, compute instances.
        ("nvmlDeviceSetMigMode", 1, (0, 0, 0), (1, 0, 0)),
        ("nvmlDeviceCreateGpuInstanceWithPlacement", 1, (1, 0, 0), (1, 1, 0)),
        ("nvmlGpuInstanceCreateComputeInstance", 1, (1, 1, 0), (1, 1, 1)),
        ("nvmlDeviceCreateGpuInstanceWithPlacement", 2, (1, 1, 1), (1, 2, 1)),
        ("nvmlGpuInstanceCreateComputeInstance", 2, (1, 2, 1), (1, 2, 2)),
        ("nvmlComputeInstanceDestroy", 1, (1, 2, 2), (1, 2, 1)),
        ("nvmlGpuInstanceDestroy", 1, (1, 2, 1), (1, 1, 1)),
    ],
)
def test_a_process_dies_where_it_is_told_to(
    function: str,
    nth: int,
    before: tuple[int, int, int],
    after: tuple[int, int, int],
    make_machine: MakeMachine,
    nvml: Nvml,
) -> None:
    for late, expected in ((False, before), (True, after)):
        machine = make_machine("h100x8", name=f"after-{late}")
        gpu = machine.gpus[0].uuid
        machine.kill_at(function, nth=nth, after=late, uuid=gpu)
        assert cut(machine) == -signal.SIGKILL
        assert machine.faults() == []
        with nvml(machine):
            device = pynvml.nvmlDeviceGetHandleByUUID(gpu)
            mode = pynvml.nvmlDeviceGetMigMode(device)[0]
            made = mig_calls.instances(device) if mode else []
        assert (mode, len(made), len(machine.mig_devices(gpu))) == expected
