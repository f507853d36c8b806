"""Device nodes of a simulated driver root.

In: a dev folder, the GPUs. Out: nodes as the GPU driver makes them (195:minor, 195:255 for
nvidiactl, 195:254 for nvidia-modeset, a dynamic major for nvidia-uvm and nvidia-caps, 226 for
DRM) and the kernel those of VFIO, or plain files instead where real nodes are not possible (without
CAP_MKNOD) or not safe (a GPU driver of this machine has the same numbers).
"""

import enum
import os
import stat
import tempfile
from pathlib import Path

from msgspec import Struct

from dra_driver.errors import SetupError
from dra_driver.simulator.hardware import SimulatedGpu

NVIDIA_MAJOR = 195
DRM_MAJOR = 226
_CONTROL_MINOR = 255
_MODESET_MINOR = 254
_FIRST_RENDER_MINOR = 128
_MISC_MAJOR, _VFIO_MINOR, _IOMMU_MINOR = 10, 196, 122
# The kernel assigns dynamic major numbers downwards from these ranges.
_DYNAMIC_MAJORS = (*range(254, 233, -1), *range(511, 383, -1))


class NodeKind(enum.StrEnum):
    """What represents a device node."""

    DEVICE = "device"
    PLACEHOLDER = "placeholder"


class NodePlan(Struct, frozen=True, kw_only=True):
    """How nodes are made.

    Attributes:
        kind: real nodes or plain files.
        uvm_major: major number of nvidia-uvm.
        caps_major: major number of nvidia-caps.
        drm: whether /dev/dri nodes are made.
        vfio_major: major number of IOMMU groups.
        vfio_device_major: major number of devices bound to vfio-pci.
        note: why not everything is real, for the user; empty when it is.
    """

    kind: NodeKind
    uvm_major: int
    caps_major: int
    drm: bool
    vfio_major: int = 0
    vfio_device_major: int = 0
    note: str = ""


def plan(wanted: NodeKind | None, folder: Path, host_devices: str) -> NodePlan:
    """Decide how nodes are made below `folder`.

    Args:
        wanted: the kind to make, None for real nodes where possible.
        folder: an existing folder on the file system of the driver root.
        host_devices: the text of the host's /proc/devices.

    Raises:
        SetupError: real nodes are wanted and cannot be made.
    """
    taken = _character_majors(host_devices)
    free = [major for major in _DYNAMIC_MAJORS if major not in taken]
    obstacle = ""
    if "nvidia" in taken.get(NVIDIA_MAJOR, ()):
        obstacle = (
            "this machine has a real GPU driver, so the simulated nodes would lead to its real GPUs"
        )
    elif not _can_make_nodes(folder):
        obstacle = "making device nodes needs root (CAP_MKNOD)"
    if obstacle and wanted is NodeKind.DEVICE:
        raise SetupError(f"cannot make device nodes in {folder}: {obstacle}")
    kind = NodeKind.PLACEHOLDER if obstacle else (wanted or NodeKind.DEVICE)
    note = f"device nodes are plain files: {obstacle}" if obstacle and wanted is None else ""
    return NodePlan(
        kind=kind,
        uvm_major=free[0],
        caps_major=free[1],
        drm=DRM_MAJOR not in taken,
        vfio_major=free[2],
        vfio_device_major=free[3],
        note=note,
    )


def make_control_nodes(dev: Path, nodes: NodePlan) -> None:
    """Make the nodes that belong to the driver, not to a GPU."""
    _make(dev / "nvidiactl", NVIDIA_MAJOR, _CONTROL_MINOR, nodes.kind)
    _make(dev / "nvidia-modeset", NVIDIA_MAJOR, _MODESET_MINOR, nodes.kind)
    _make(dev / "nvidia-uvm", nodes.uvm_major, 0, nodes.kind)
    _make(dev / "nvidia-uvm-tools", nodes.uvm_major, 1, nodes.kind)
    (dev / "nvidia-caps").mkdir(exist_ok=True)
    # 1 is mig/config, 2 is mig/monitor, as in mig-minors.
    _make(dev / "nvidia-caps" / "nvidia-cap1", nodes.caps_major, 1, nodes.kind, 0o400)
    _make(dev / "nvidia-caps" / "nvidia-cap2", nodes.caps_major, 2, nodes.kind, 0o444)


def make_gpu_nodes(dev: Path, gpu: SimulatedGpu, nodes: NodePlan) -> None:
    """Make the nodes of one GPU."""
    _make(dev / f"nvidia{gpu.minor}", NVIDIA_MAJOR, gpu.minor, nodes.kind)
    if not nodes.drm:
        return
    by_path = dev / "dri" / "by-path"
    by_path.mkdir(parents=True, exist_ok=True)
    for name, minor, purpose in drm_names(gpu):
        _make(dev / "dri" / name, DRM_MAJOR, minor, nodes.kind, 0o660)
        link = by_path / f"pci-{gpu.pci}-{purpose}"
        link.unlink(missing_ok=True)
        link.symlink_to(f"../{name}")


def make_iommu_nodes(dev: Path, nodes: NodePlan, *, iommufd: bool) -> None:
    """Make the nodes of VFIO and IOMMUFD that belong to no device."""
    (dev / "vfio/devices").mkdir(parents=True, exist_ok=True)
    _make(dev / "vfio/vfio", _MISC_MAJOR, _VFIO_MINOR, nodes.kind)
    if iommufd:
        _make(dev / "iommu", _MISC_MAJOR, _IOMMU_MINOR, nodes.kind, 0o660)


def make_group_node(dev: Path, group: int, nodes: NodePlan) -> None:
    """Make the node of an IOMMU group."""
    _make(dev / f"vfio/{group}", nodes.vfio_major, group, nodes.kind, 0o600)


def make_vfio_node(dev: Path, number: int, nodes: NodePlan) -> None:
    """Make the node of a device that is bound to vfio-pci."""
    _make(dev / f"vfio/devices/vfio{number}", nodes.vfio_device_major, number, nodes.kind, 0o600)


def remove_gpu_nodes(dev: Path, gpu: SimulatedGpu) -> None:
    """Remove the nodes of one GPU; missing ones are no error."""
    (dev / f"nvidia{gpu.minor}").unlink(missing_ok=True)
    for name, _, purpose in drm_names(gpu):
        (dev / "dri" / name).unlink(missing_ok=True)
        (dev / "dri" / "by-path" / f"pci-{gpu.pci}-{purpose}").unlink(missing_ok=True)


def remove_capability(dev: Path, minor: int) -> None:
    """Remove the node of one MIG capability, if it is there."""
    (dev / "nvidia-caps" / f"nvidia-cap{minor}").unlink(missing_ok=True)


def drm_names(gpu: SimulatedGpu) -> list[tuple[str, int, str]]:
    """List a GPU's DRM nodes: name, minor number, purpose. card0 is the server's own display."""
    card, render = gpu.slot + 1, _FIRST_RENDER_MINOR + gpu.slot
    return [
        (f"card{card}", card, "card"),
        (f"renderD{render}", render, "render"),  # codespell:ignore renderd
    ]


def _make(path: Path, major: int, minor: int, kind: NodeKind, mode: int = 0o666) -> None:
    path.unlink(missing_ok=True)
    if kind is NodeKind.DEVICE:
        os.mknod(path, stat.S_IFCHR | mode, os.makedev(major, minor))
    else:
        path.touch()
    path.chmod(mode)  # the driver's nodes ignore the umask


def _can_make_nodes(folder: Path) -> bool:
    with tempfile.TemporaryDirectory(dir=folder, prefix=".mknod-") as trial:
        try:
            # 1:3 is /dev/null
            os.mknod(Path(trial) / "null", stat.S_IFCHR | 0o600, os.makedev(1, 3))
        except PermissionError:
            return False
    return True


def _character_majors(devices: str) -> dict[int, list[str]]:
    """Read the character devices of /proc/devices: major number → names."""
    majors: dict[int, list[str]] = {}
    for line in devices.partition("Block devices:")[0].splitlines():
        number, _, name = line.strip().partition(" ")
        if number.isdigit():
            majors.setdefault(int(number), []).append(name.strip())
    return majors
