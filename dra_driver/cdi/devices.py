"""The edits for one GPU or MIG device: its device nodes, and nothing of any other device.

In: a GPU of the inventory, or a MIG device of it. Out: for a whole GPU /dev/nvidia<minor> and, for
graphics, the DRM nodes that /sys lists under the GPU's PCI address, with their by-path names. These
are as nvidia-ctk gives them, except that the by-path names are nodes instead of links, so that
specs have the same effect with and without hooks (cdi/driver_edits.py).

For a MIG device: its parent's node and, for its GPU instance and its compute instance,
/dev/nvidia-caps/nvidia-cap<N>. A process that can open these two may use the device, and no other
on that GPU. The GPU driver says what N is: in the instance's `access` file under
/proc/driver/nvidia/capabilities, and for every possible instance in
/proc/driver/nvidia-caps/mig-minors (NVIDIA MIG user guide, "Device Nodes and Capabilities"). The
capability nodes are made on demand, often later than the instance. So type and numbers are written
out: the runtime then makes the nodes in the container without looking for them on the host.
"""

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from msgspec.structs import replace

from dra_driver.cdi.model import Edits, merged
from dra_driver.cdi.nodes import character_major, character_node, node_edits
from dra_driver.cdi.roots import Roots
from dra_driver.devices.device import MigIds
from dra_driver.devices.model import Gpu
from dra_driver.errors import DeviceError, TransientError
from dra_driver.host.files import entries_of, text_of

_BY_PATH = "dri/by-path"


def gpu_edits(gpu: Gpu, roots: Roots) -> Edits:
    """Return the edits for a whole GPU. Raises DeviceError if its device node is not usable."""
    # None if the GPU driver is for compute only.
    names = sorted(entries_of(f"{roots.sys}/bus/pci/devices/{gpu.pci_address}/drm"))
    nodes = {name: node_edits(roots, f"dri/{name}") for name in names}
    present = {name: edits for name, edits in nodes.items() if edits is not None}
    by_path = _by_path(gpu, roots, present)
    return merged(parent_edits(gpu, roots), *present.values(), *by_path)


def watched_nodes(gpu: Gpu, roots: Roots) -> tuple[str, ...]:
    """Return paths, at least one of which looks different whenever `gpu_edits` changes.

    A new or removed node changes its folder below /dev, and a changed node looks different itself.
    The folder in /sys may look the same with other contents, but exists only while there are nodes.
    """
    folder = f"{roots.sys}/bus/pci/devices/{gpu.pci_address}/drm"
    nodes = (f"nvidia{gpu.minor}", "dri", _BY_PATH, *(f"dri/{name}" for name in entries_of(folder)))
    return (folder, *(f"{roots.dev}/{name}" for name in nodes))


def parent_edits(gpu: Gpu, roots: Roots) -> Edits:
    """Return the edits for a GPU's node, without graphics. Raises DeviceError if it is missing."""
    name = f"nvidia{gpu.minor}"
    edits = node_edits(roots, name)
    if edits is None:
        raise DeviceError(
            f"device node {roots.node_on_host(name)} of GPU {gpu.uuid} is missing;"
            f" create it with nvidia-modprobe -c {gpu.minor}, or start nvidia-persistenced"
        )
    return edits


def _by_path(gpu: Gpu, roots: Roots, present: Mapping[str, Edits]) -> Iterator[Edits]:
    """Yield the DRM nodes under the names with a PCI address that udev gave them."""
    folder = f"{roots.dev}/{_BY_PATH}"
    for name in sorted(entries_of(folder)) if present else ():
        if not name.startswith(f"pci-{gpu.pci_address}-"):
            continue
        with suppress(OSError):  # it has disappeared, or is not a link
            target = os.readlink(f"{folder}/{name}")  # noqa: PTH115 (a Path takes twice the time)
            edits = present.get(target.rpartition("/")[2])
            for node in edits.device_nodes if edits else ():
                host_path = node.host_path or node.path
                shown = replace(node, path=f"/dev/{_BY_PATH}/{name}", host_path=host_path)
                yield Edits(device_nodes=(shown,))


_CAPABILITIES = "nvidia-caps"
"""The character device driver's name in /proc/devices, and its folder below /dev."""

_USUAL_MODE = 0o444
_FIELD = re.compile(r"(?P<name>DeviceFile\w+):\s*(?P<value>0[0-7]{0,8}|[1-9][0-9]{0,8})\b")
_NUMBER = re.compile(r"[0-9]{1,9}")


def mig_edits(gpu: Gpu, device: MigIds, roots: Roots, *, has_graphics: bool) -> Edits:
    """Return the edits for a MIG device, with DRM nodes only for a profile with graphics.

    Raises DeviceError if the parent's node or the GPU driver's MIG capabilities are missing, and
    TransientError if the instance's capability does not exist yet, or no longer exists.
    """
    edits = gpu_edits(gpu, roots) if has_graphics else parent_edits(gpu, roots)
    major = character_major(roots.proc, _CAPABILITIES)
    if major is None:
        raise DeviceError(
            f"{roots.proc}/devices has no {_CAPABILITIES}, so no container can use MIG device"
            f" {device.uuid}; load the GPU driver's MIG part (nvidia-modprobe), or mount the"
            " host's /proc"
        )
    instance = f"gpu{gpu.minor}/mig/gi{device.gpu_instance}"
    for name in (f"{instance}/access", f"{instance}/ci{device.compute_instance}/access"):
        minor, mode = _capability(roots.proc, name, device)
        node = character_node(roots, f"{_CAPABILITIES}/nvidia-cap{minor}", major, minor, mode)
        edits += Edits(device_nodes=(node,))
    return edits


def _capability(proc: Path, name: str, device: MigIds) -> tuple[int, int]:
    """Return the minor number and the file mode of a capability's node."""
    fields = _fields(proc / "driver/nvidia/capabilities" / name)
    if "DeviceFileMinor" in fields:
        return fields["DeviceFileMinor"], fields.get("DeviceFileMode", _USUAL_MODE)
    minor = _table(proc / "driver/nvidia-caps/mig-minors").get(name.replace("/mig/", "/"))
    if minor is None:
        raise TransientError(
            f"the GPU driver has no capability {name} for MIG device {device.uuid}: either it is"
            " not there yet, or the device was destroyed by others"
        )
    return minor, _USUAL_MODE


def _fields(path: Path) -> dict[str, int]:
    """Return the numbers in a capability's file: octal if they begin with 0, otherwise decimal."""
    return {
        match["name"]: int(match["value"], 8 if match["value"].startswith("0") else 10)
        for match in _FIELD.finditer(text_of(path))
    }


def _table(path: Path) -> dict[str, int]:
    """Return the minor numbers of all possible instances, by names such as `gpu0/gi1/access`."""
    rows = (line.split() for line in text_of(path).splitlines())
    return {row[0]: int(row[1]) for row in rows if len(row) == 2 and _NUMBER.fullmatch(row[1])}
