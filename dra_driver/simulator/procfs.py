"""The /proc files that go with simulated GPUs.

In: the GPUs, versions, major numbers. Out: below a proc folder, what the NVIDIA kernel modules
show there (driver/nvidia/..., driver/nvidia-caps/mig-minors, devices) and the kernel's boot id.
"""

import functools
import shutil
from collections.abc import Iterable
from pathlib import Path

from dra_driver.simulator.device_nodes import NVIDIA_MAJOR, NodePlan
from dra_driver.simulator.hardware import SimulatedGpu

_GPUS, _GPU_INSTANCES, _COMPUTE_INSTANCES = 32, 15, 8
_CONFIG_MINOR, _MONITOR_MINOR, _FIRST_INSTANCE_MINOR = 1, 2, 3


def write_driver(proc: Path, driver_version: str, machine: str, nodes: NodePlan) -> None:
    """Write the files that do not depend on the GPUs."""
    _write(
        proc / "driver/nvidia/version",
        f"NVRM version: NVIDIA UNIX {machine} Kernel Module  {driver_version}  (simulated)\n"
        "GCC version:  (simulated)\n",
    )
    _write(
        proc / "driver/nvidia/params",
        "ModifyDeviceFiles: 1\nDeviceFileUID: 0\nDeviceFileGID: 0\nDeviceFileMode: 438\n",
    )
    capabilities = proc / "driver/nvidia/capabilities/mig"
    _write(capabilities / "config", capability(_CONFIG_MINOR, 0o400))
    _write(capabilities / "monitor", capability(_MONITOR_MINOR, 0o444))
    _write(proc / "driver/nvidia-caps/mig-minors", mig_minors())
    _write(
        proc / "devices",
        "Character devices:\n  1 mem\n  5 /dev/tty\n"
        f"{NVIDIA_MAJOR} nvidia\n{NVIDIA_MAJOR} nvidia-modeset\n{NVIDIA_MAJOR} nvidiactl\n"
        f"226 drm\n{nodes.caps_major} nvidia-caps\n{nodes.uvm_major} nvidia-uvm\n"
        "\nBlock devices:\n  7 loop\n",
    )


def write_boot_id(proc: Path, boot_id: str) -> None:
    """Write the kernel's random boot id."""
    _write(proc / "sys/kernel/random/boot_id", f"{boot_id}\n")


def read_boot_id(proc: Path) -> str:
    """Return the boot id."""
    return (proc / "sys/kernel/random/boot_id").read_text().strip()


def add_gpu(proc: Path, gpu: SimulatedGpu, driver_version: str) -> None:
    """Write the files of one GPU."""
    firmware = driver_version if gpu.card.gsp_firmware else "N/A"
    lines = (
        ("Model", gpu.card.name),
        ("IRQ", str(100 + gpu.slot)),
        ("GPU UUID", gpu.uuid),
        ("Video BIOS", gpu.card.vbios or "??.??.??.??.??"),
        ("Bus Type", "PCIe"),
        ("DMA Size", "47 bits"),
        ("DMA Mask", "0x7fffffffffff"),
        ("Bus Location", gpu.pci),
        ("Device Minor", str(gpu.minor)),
        ("GPU Firmware", firmware),
        ("GPU Excluded", "No"),
    )
    text = "".join(f"{key + ':':<16}\t {value}\n" for key, value in lines)
    _write(proc / f"driver/nvidia/gpus/{gpu.pci}/information", text)
    if gpu.card.mig is not None:
        (proc / f"driver/nvidia/capabilities/gpu{gpu.minor}/mig").mkdir(parents=True, exist_ok=True)


def remove_gpu(proc: Path, gpu: SimulatedGpu) -> None:
    """Remove the files of one GPU."""
    shutil.rmtree(proc / f"driver/nvidia/gpus/{gpu.pci}", ignore_errors=True)
    shutil.rmtree(proc / f"driver/nvidia/capabilities/gpu{gpu.minor}", ignore_errors=True)


def remove_instances(proc: Path, gpu: SimulatedGpu) -> list[int]:
    """Remove the files of a GPU's MIG instances; return the minor numbers they named."""
    instances = list((proc / f"driver/nvidia/capabilities/gpu{gpu.minor}/mig").glob("gi*"))
    files = [access for path in instances for access in path.rglob("access")]
    minors = [int(access.read_text().split()[1]) for access in files]
    for path in instances:
        shutil.rmtree(path)
    return minors


def capability(minor: int, mode: int) -> str:
    """Return the text of a capability file; nvidia-modprobe makes its node from it."""
    return f"DeviceFileMinor: {minor}\nDeviceFileMode: {mode}\nDeviceFileModify: 1\n"


@functools.cache
def mig_minors() -> str:
    """Return the driver's table of nvidia-caps minor numbers, for every possible instance."""
    return "".join(f"{name} {minor}\n" for name, minor in _mig_minor_lines())


def _mig_minor_lines() -> Iterable[tuple[str, int]]:
    yield "config", _CONFIG_MINOR
    yield "monitor", _MONITOR_MINOR
    minor = _FIRST_INSTANCE_MINOR
    for gpu in range(_GPUS):
        for gpu_instance in range(_GPU_INSTANCES):
            yield f"gpu{gpu}/gi{gpu_instance}/access", minor
            for compute_instance in range(_COMPUTE_INSTANCES):
                minor += 1
                yield f"gpu{gpu}/gi{gpu_instance}/ci{compute_instance}/access", minor
            minor += 1


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
