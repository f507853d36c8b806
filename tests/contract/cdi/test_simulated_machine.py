"""CDI content from a simulated machine's driver root: what is mounted is enough to run NVML."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import make
from dra_driver.cdi.edits_cache import EditsCache
from dra_driver.cdi.model import Edits, Spec
from dra_driver.cdi.roots import Roots, find_roots
from dra_driver.cdi.store import SpecStore
from dra_driver.devices.device import NodeDevice
from dra_driver.devices.model import Gpu
from dra_driver.devices.session import DriverSession
from dra_driver.errors import DeviceError
from dra_driver.simulator.machine import Machine

# Prints the UUIDs that NVML shows to a process which has only what the loader finds.
LIST_GPUS = """
import ctypes, pynvml
pynvml.nvmlLib = ctypes.CDLL("libnvidia-ml.so.1")
pynvml.nvmlInit()
for index in range(pynvml.nvmlDeviceGetCount()):
    gpu = pynvml.nvmlDeviceGetHandleByIndex(index)
    print(pynvml.nvmlDeviceGetUUID(gpu))
    for number in range(pynvml.nvmlDeviceGetMaxMigDeviceCount(gpu)):
        try:
            mig = pynvml.nvmlDeviceGetMigDeviceHandleByIndex(gpu, number)
        except pynvml.NVMLError:
            continue
        print(pynvml.nvmlDeviceGetUUID(mig))
"""


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine.create(tmp_path / "root", "h100x8")


@pytest.fixture
def roots(machine: Machine) -> Roots:
    return find_roots(
        driver_root=machine.driver_root,
        dev_root=machine.dev_root,
        proc_root=machine.proc_root,
        sys_root=machine.sys_root,
    )


@pytest.fixture
def gpus(roots: Roots) -> tuple[Gpu, ...]:
    return look(roots)


def look(roots: Roots) -> tuple[Gpu, ...]:
    session = DriverSession(
        driver_root=roots.driver, dev=roots.dev, proc_root=roots.proc, sys_root=roots.sys
    )
    try:
        return session.look().gpus
    finally:
        session.close()


def content_of(roots: Roots) -> EditsCache:
    return EditsCache(roots, hook_path=None, kernel_release="6.8.0", clock=lambda: 0.0)


def make_container(folder: Path, edits: Edits) -> None:
    """Copy what is mounted, and put plain files for nodes, into a folder."""
    for mount in edits.mounts:
        target = folder / mount.container_path.lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(mount.host_path, target)
    for node in edits.device_nodes:
        target = folder / node.path.lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.touch()


def shown_in(container: Path) -> list[str]:
    """Return the UUIDs of what NVML shows to a process in that folder."""
    shown = subprocess.run(
        [sys.executable, "-c", LIST_GPUS],
        env=os.environ
        | {
            "LD_LIBRARY_PATH": str(container / "usr/local/nvidia/lib64"),
            "NVML_SIMULATOR_DEV": str(container / "dev"),
        },
        capture_output=True,
        text=True,
        check=True,
    )

    return shown.stdout.split()


def test_hookless_content_of_one_gpu_shows_that_gpu_to_nvml(
    roots: Roots, gpus: tuple[Gpu, ...], tmp_path: Path
) -> None:
    content = content_of(roots)
    container = tmp_path / "container"
    make_container(container, content.look().common + content.look().device(make.whole(gpus[3])))

    assert shown_in(container) == [gpus[3].uuid]


@pytest.mark.parametrize("nodes_are_late", [False, True])
def test_content_of_a_mig_device_shows_that_device_and_no_other(
    machine: Machine, roots: Roots, tmp_path: Path, *, nodes_are_late: bool
) -> None:
    if nodes_are_late:
        machine.late_nodes(3_600_000)
    machine.set_mig_mode(machine.gpus[3].uuid, enabled=True)
    for start in (2, 4, 6):
        machine.create_mig(machine.gpus[3].uuid, "1g.10gb", start)
    (gpu,) = (gpu for gpu in look(roots) if gpu.uuid == machine.gpus[3].uuid)
    assert gpu.mig is not None
    device = gpu.mig.instances[1]
    content = content_of(roots)
    container = tmp_path / "container"
    on_node = NodeDevice(gpu=gpu, device=make.device(device))
    make_container(container, content.look().common + content.look().device(on_node))

    assert shown_in(container) == [gpu.uuid, device.uuid]


def test_each_gpu_has_nodes_of_its_own(roots: Roots, gpus: tuple[Gpu, ...]) -> None:
    content = content_of(roots)
    paths = [
        node.path for gpu in gpus for node in content.look().device(make.whole(gpu)).device_nodes
    ]

    assert len(paths) == len(set(paths))
    assert {f"/dev/nvidia{gpu.minor}" for gpu in gpus} <= set(paths)


def test_a_claims_spec_can_be_written_and_names_paths_that_exist(
    roots: Roots, gpus: tuple[Gpu, ...], tmp_path: Path
) -> None:
    content = content_of(roots)
    devices = {f"uid-gpu-{gpu.minor}": content.look().device(make.whole(gpu)) for gpu in gpus}
    SpecStore(tmp_path / "cdi").write("uid", Spec(devices=devices, edits=content.look().common))

    [written] = (tmp_path / "cdi").iterdir()
    document = json.loads(written.read_bytes())
    assert len(document["devices"]) == len(gpus)
    for mount in document["containerEdits"]["mounts"]:
        assert Path(mount["hostPath"]).exists()
    for device in document["devices"]:
        for node in device["containerEdits"]["deviceNodes"]:
            assert Path(node["hostPath"]).exists()


def test_a_pulled_gpu_fails_alone(machine: Machine, roots: Roots, gpus: tuple[Gpu, ...]) -> None:
    content = content_of(roots)
    machine.remove_gpu(gpus[0].uuid)

    with pytest.raises(DeviceError, match="is missing"):
        content.look().device(make.whole(gpus[0]))
    assert content.look().device(make.whole(gpus[1])).device_nodes
