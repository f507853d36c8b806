"""What a container gets for one MIG device: its parent's node and its two capabilities.

In: a GPU and a MIG device of it. Out: edits with /dev/nvidia<minor> of the parent and, for its GPU
instance and its compute instance, /dev/nvidia-caps/nvidia-cap<N>: who can open the two may use the
device, and no other on that GPU. Which N is said by the kernel driver: in the instance's `access`
file under /proc/driver/nvidia/capabilities, and for every instance that could be in
/proc/driver/nvidia-caps/mig-minors (NVIDIA MIG user guide, "Device Nodes and Capabilities").

The capability nodes are made on demand, often after the instance. So type and numbers are written
out: the runtime then makes the nodes in the container without looking for them on the host.
"""

import re
from pathlib import Path

from dra_driver.cdi.gpu import gpu_edits, parent_edits
from dra_driver.cdi.model import Edits
from dra_driver.cdi.nodes import character_major, character_node
from dra_driver.cdi.roots import Roots
from dra_driver.devices.model import Gpu, MigDevice
from dra_driver.errors import DeviceError, TransientError

_CAPABILITIES = "nvidia-caps"
"""The character device driver's name in /proc/devices, and its folder below /dev."""

_USUAL_MODE = 0o444
_FIELD = re.compile(r"(?P<name>DeviceFile\w+):\s*(?P<value>0[0-7]{0,8}|[1-9][0-9]{0,8})\b")
_NUMBER = re.compile(r"[0-9]{1,9}")


def mig_edits(gpu: Gpu, device: MigDevice, roots: Roots) -> Edits:
    """Return the edits for a MIG device. DRM nodes only for a profile with graphics.

    Raises:
        DeviceError: the parent's node is missing, or the kernel driver has no MIG capabilities.
        TransientError: the instance's capability is not there yet, or not any more.
    """
    has_graphics = device.profile.has_graphics
    edits = gpu_edits(gpu, roots) if has_graphics else parent_edits(gpu, roots)
    major = character_major(roots.proc, _CAPABILITIES)
    if major is None:
        raise DeviceError(
            f"{roots.proc}/devices has no {_CAPABILITIES}, so no container can use MIG device"
            f" {device.uuid}; load the kernel driver's MIG part (nvidia-modprobe), or mount the"
            " host's /proc"
        )
    instance = f"gpu{gpu.minor}/mig/gi{device.gpu_instance}"
    for name in (f"{instance}/access", f"{instance}/ci{device.compute_instance}/access"):
        minor, mode = _capability(roots.proc, name, device)
        node = character_node(roots, f"{_CAPABILITIES}/nvidia-cap{minor}", major, minor, mode)
        edits += Edits(device_nodes=(node,))
    return edits


def _capability(proc: Path, name: str, device: MigDevice) -> tuple[int, int]:
    """Return minor number and file mode of a capability's node."""
    fields = _fields(proc / "driver/nvidia/capabilities" / name)
    if "DeviceFileMinor" in fields:
        return fields["DeviceFileMinor"], fields.get("DeviceFileMode", _USUAL_MODE)
    minor = _table(proc / "driver/nvidia-caps/mig-minors").get(name.replace("/mig/", "/"))
    if minor is None:
        raise TransientError(
            f"the kernel driver has no capability {name} for MIG device {device.uuid}: either it is"
            " not there yet, or the device was destroyed by others"
        )
    return minor, _USUAL_MODE


def _fields(path: Path) -> dict[str, int]:
    """Return the numbers in a capability's file: decimal, a file mode too, unless 0 is first."""
    return {
        match["name"]: int(match["value"], 8 if match["value"].startswith("0") else 10)
        for match in _FIELD.finditer(_text(path))
    }


def _table(path: Path) -> dict[str, int]:
    """Return minor numbers by `gpu0/gi1/access`, for every instance that can be."""
    rows = (line.split() for line in _text(path).splitlines())
    return {row[0]: int(row[1]) for row in rows if len(row) == 2 and _NUMBER.fullmatch(row[1])}


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""
