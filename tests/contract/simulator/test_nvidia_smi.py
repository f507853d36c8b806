"""NVIDIA's own nvidia-smi on a simulated machine, on the host and in a container's place."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from contract.simulator.conftest import MakeMachine
from dra_driver.simulator import userspace
from dra_driver.simulator.machine import Machine


@pytest.fixture
def machine(make_machine: MakeMachine, real_userspace: None) -> Machine:
    return make_machine("a100x8", userspace="real")


def smi(machine: Machine, *words: str) -> subprocess.CompletedProcess[str]:
    environment = {"LD_LIBRARY_PATH": str(machine.library_folder), "PATH": os.environ["PATH"]}
    return subprocess.run(
        [str(machine.nvidia_smi), *words],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def in_order(machine: Machine) -> list[str]:
    return [gpu.uuid for gpu in sorted(machine.gpus, key=lambda gpu: gpu.pci)]


def test_its_table_shows_no_error(machine: Machine) -> None:
    done = smi(machine)
    assert done.returncode == 0
    assert done.stdout.count("NVIDIA A100-SXM4-40GB") == 8
    assert f"Driver Version: {machine.description.driver_version}" in done.stdout
    assert "ERR!" not in done.stdout
    assert "mismatch" not in done.stdout.lower()


def test_a_card_without_time_slices_says_so(
    make_machine: MakeMachine, real_userspace: None
) -> None:
    machine = make_machine("mixed", userspace="real")
    for words in (["--set-timeslice=1"], ["-l"]):
        done = smi(machine, "compute-policy", "-i", "3", *words)
        assert done.returncode == 3
        assert "Not Supported" in done.stdout


def test_it_reports_a_lost_gpu_and_an_unloaded_driver(machine: Machine) -> None:
    machine.lose_gpu(in_order(machine)[1])
    listed = smi(machine, "-L")
    assert "GPU is lost" in listed.stdout
    assert in_order(machine)[7] in listed.stdout
    machine.unload_driver()
    assert "couldn't communicate with the NVIDIA driver" in smi(machine, "-L").stdout


def test_it_divides_a_gpu_and_lists_the_devices(
    make_machine: MakeMachine, real_userspace: None
) -> None:
    machine = make_machine("h100x8", userspace="real")
    gpu = in_order(machine)[1]
    assert smi(machine, "-i", "1", "-mig", "1").returncode == 0
    made = smi(machine, "mig", "-i", "1", "-cgi", "9:4,19:0", "-C")
    assert made.returncode == 0, made.stdout
    devices = machine.mig_devices(gpu)
    assert {(device.profile, device.start) for device in devices} == {
        ("3g.40gb", 4),
        ("1g.10gb", 0),
    }
    listed = smi(machine, "-L").stdout.splitlines()
    assert listed[2:4] == [
        f"  MIG {device.profile:<11} Device {device.index:>2}: (UUID: {device.uuid})"
        for device in devices
    ]
    assert smi(machine, "mig", "-lgi").stdout.count("|   1  MIG ") == 2
    assert smi(machine, "mig", "-lci").stdout.count("|   1 ") == 2
    table = smi(machine).stdout
    assert "No MIG devices found" not in table
    assert "40448MiB" in table
    full = smi(machine, "mig", "-i", "1", "-lgip").stdout
    assert "0/1        79.25" in full
    machine.hold_instance(devices[0].uuid)
    busy = smi(machine, "mig", "-i", "1", "-dci")
    assert busy.returncode != 0
    assert "In use by another client" in busy.stdout
    machine.release_instance(devices[0].uuid)
    assert smi(machine, "mig", "-i", "1", "-dci").returncode == 0
    assert smi(machine, "mig", "-i", "1", "-dgi").returncode == 0
    assert machine.mig_devices(gpu) == []
    assert smi(machine, "-i", "1", "-mig", "0").returncode == 0
    assert not machine.status()[1].mig_mode


def libraries_of(program: Path) -> list[Path]:
    """The loader and the libraries a program needs, as ldd finds them on this machine."""
    done = subprocess.run(["ldd", str(program)], capture_output=True, text=True, check=True)
    return [
        Path(word)
        for line in done.stdout.splitlines()
        for word in line.split()
        if word.startswith("/")
    ]


@pytest.mark.usefixtures("needs_root")  # it changes the root folder
@pytest.mark.parametrize("place", ["as-on-the-host", "hookless"])
def test_in_a_container_it_shows_the_gpus_whose_nodes_are_there(
    machine: Machine, place: str, tmp_path: Path
) -> None:
    inside = tmp_path / "container"
    if place == "hookless":  # every library under its soname, in the folder CUDA images search
        folder, library = "usr/local/nvidia/lib64", "libnvidia-ml.so.1"
        state = "libnvidia-simulator.so.1"
    else:
        folder, library = userspace.library_folder(), machine.library.resolve().name
        state = machine.state_file.name
    (inside / folder).mkdir(parents=True)
    shutil.copy(machine.library, inside / folder / library)
    if library != machine.library.name:
        (inside / folder / machine.library.name).symlink_to(library)
    os.link(machine.state_file, inside / folder / state)  # as a bind mount: the same, live file
    for path in [machine.nvidia_smi, *libraries_of(machine.nvidia_smi)]:
        target = inside / ("usr/bin" if path == machine.nvidia_smi else str(path.parent)[1:])
        target.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, target / path.name)
    (inside / "dev").mkdir()
    gpu = machine.gpus[2]
    for name in ("nvidiactl", f"nvidia{gpu.minor}"):
        status = (machine.dev_root / "dev" / name).stat()
        os.mknod(inside / "dev" / name, status.st_mode, status.st_rdev)

    def run(*words: str) -> str:
        return subprocess.run(
            ["chroot", str(inside), "/usr/bin/nvidia-smi", *words],
            env={"LD_LIBRARY_PATH": f"/{folder}", "PATH": os.environ["PATH"]},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        ).stdout

    assert run("-L") == f"GPU 0: {gpu.card.name} (UUID: {gpu.uuid})\n"
    machine.set_mig_mode(gpu.uuid, enabled=True)
    machine.reset_gpu(gpu.uuid)
    machine.create_mig(gpu.uuid, "1g.5gb", 0)
    mine = machine.create_mig(gpu.uuid, "2g.10gb", 2)
    assert "MIG" not in run("-L")
    of_mine = next(one for one in machine.mig_devices(gpu.uuid) if one.uuid == mine)
    instance = f"gi{of_mine.gpu_instance}/**/access"
    for access in (machine.proc_root / "driver/nvidia/capabilities").rglob(instance):
        name = f"nvidia-caps/nvidia-cap{access.read_text().split()[1]}"
        (inside / "dev/nvidia-caps").mkdir(exist_ok=True)
        status = (machine.dev_root / "dev" / name).stat()
        os.mknod(inside / "dev" / name, status.st_mode, status.st_rdev)
    assert run("-L").splitlines()[1:] == [f"  MIG 2g.10gb     Device  0: (UUID: {mine})"]
    machine.lose_gpu(gpu.uuid)
    assert "GPU is lost" in run("-L")
