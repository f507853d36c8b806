"""What a container gets for one whole GPU: its nodes, and nothing of any other GPU.

In: a GPU of the inventory. Out: edits with /dev/nvidia<minor> and, for graphics, the DRM nodes that
/sys lists under the GPU's PCI address, with their by-path names. As nvidia-ctk does for a device,
but for the by-path names: they are the same nodes once more and no links, so that specs which were
written with and without hooks give the same (cdi/driver_edits.py).
"""

import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from dra_driver.cdi.model import Edits, merged
from dra_driver.cdi.nodes import node_edits, renamed
from dra_driver.cdi.roots import Roots
from dra_driver.devices.model import Gpu
from dra_driver.errors import DeviceError

_BY_PATH = "dri/by-path"


def gpu_edits(gpu: Gpu, roots: Roots) -> Edits:
    """Return the edits for a whole GPU.

    Raises:
        DeviceError: the GPU's device node is missing or not usable.
    """
    found = {drm: node_edits(roots, f"dri/{drm}") for drm in _drm_names(gpu, roots)}
    present = {drm: edits for drm, edits in found.items() if edits is not None}
    by_path = _by_path(gpu, roots, present)
    return merged(parent_edits(gpu, roots), *present.values(), *by_path)


def watched_nodes(gpu: Gpu, roots: Roots) -> tuple[Path, ...]:
    """Return paths of which one looks different whenever `gpu_edits` would be different.

    A node that comes or goes shows in its folder below /dev, and one that is changed in itself;
    the folder in /sys need not show what is in it, but is there only while the GPU has nodes.
    """
    return (
        roots.dev / f"nvidia{gpu.minor}",
        roots.dev / "dri",
        roots.dev / _BY_PATH,
        _drm_folder(gpu, roots),
        *(roots.dev / "dri" / name for name in _drm_names(gpu, roots)),
    )


def parent_edits(gpu: Gpu, roots: Roots) -> Edits:
    """Return the edits for the GPU's own node alone, without graphics.

    Raises:
        DeviceError: it is missing or not usable.
    """
    name = f"nvidia{gpu.minor}"
    edits = node_edits(roots, name)
    if edits is None:
        raise DeviceError(
            f"device node {roots.node_on_host(name)} of GPU {gpu.uuid} is missing;"
            f" create it with nvidia-modprobe -c {gpu.minor}, or start nvidia-persistenced"
        )
    return edits


def _drm_folder(gpu: Gpu, roots: Roots) -> Path:
    return roots.sys / "bus/pci/devices" / gpu.pci_address / "drm"


def _drm_names(gpu: Gpu, roots: Roots) -> list[str]:
    try:
        return sorted(os.listdir(_drm_folder(gpu, roots)))  # noqa: PTH208 (names are what is wanted)
    except OSError:
        return []  # a compute-only kernel driver has no DRM part


def _by_path(gpu: Gpu, roots: Roots, present: Mapping[str, Edits]) -> Iterator[Edits]:
    """Yield the DRM nodes that are there under their names by PCI address."""
    for link, target in _by_path_links(gpu, roots):
        found = present.get(target.rpartition("/")[2])
        for node in found.device_nodes if found else ():
            yield Edits(device_nodes=(renamed(node, f"/dev/{link}"),))


def _by_path_links(gpu: Gpu, roots: Roots) -> Iterator[tuple[str, str]]:
    """Yield name below /dev and text of the links that udev made for the GPU."""
    folder = roots.dev / _BY_PATH
    try:
        names = sorted(os.listdir(folder))  # noqa: PTH208 (names are what is wanted)
    except OSError:
        return
    for name in names:
        if name.startswith(f"pci-{gpu.pci_address}-"):
            with suppress(OSError):  # gone meanwhile, or no link
                yield f"{_BY_PATH}/{name}", str((folder / name).readlink())
