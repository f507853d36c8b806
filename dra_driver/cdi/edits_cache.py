"""The container edits that prepare puts into specs: found once, kept while the files look the same.

Finding the driver's files takes about ten milliseconds, so they are kept until they may have
changed, as shown by a folder that contains them, a control node, the hook program, or their age.
This is checked once for each spec, and so are the nodes of its GPUs.
"""

import os
import stat
import threading
from collections.abc import Callable
from typing import assert_never

from msgspec import Struct, field

from dra_driver.cdi.devices import gpu_edits, mig_edits, watched_nodes
from dra_driver.cdi.driver_edits import driver_edits
from dra_driver.cdi.driver_root import find_driver_files, watched_paths
from dra_driver.cdi.hooks import find_hook_program, watched_places
from dra_driver.cdi.model import Edits
from dra_driver.cdi.nodes import CONTROL_NODES, NodeMaker, control_edits
from dra_driver.cdi.roots import Roots
from dra_driver.devices.device import Mig, MigIds, NodeDevice, Vfio, Whole, profile_of
from dra_driver.devices.model import Gpu
from dra_driver.devices.versions import running_driver
from dra_driver.errors import StateError

# Changes to configuration files in folders that are not watched are noticed after this time.
_MOST_SECONDS = 300.0

_Signature = tuple[tuple[int, ...] | None, ...]


class NodeEdits(Struct, frozen=True, kw_only=True):
    """The container edits of this node at the last look; all its GPUs share `common`."""

    common: Edits
    roots: Roots
    _gpus: dict[tuple[int, str], tuple[tuple[str, ...], _Signature, Edits]] = field(
        default_factory=dict
    )

    def device(self, source: NodeDevice) -> Edits:
        """Return what a container gets for a device, besides the common edits.

        Raises DeviceError if the GPU's node is not usable or there is no MIG, TransientError if the
        GPU driver does not know the MIG device yet or no longer knows it, and StateError if the
        device has not been made yet.
        """
        base = source.device.base
        match base:
            case Whole():
                return self._gpu(source.gpu)
            case Mig(instance=MigIds() as ids):
                has_graphics = profile_of(source.gpu, base).has_graphics
                return mig_edits(source.gpu, ids, self.roots, has_graphics=has_graphics)
            case Mig():
                raise StateError(
                    f"{base.profile} at {base.placement.start} of {source.gpu.uuid} cannot be used "
                    "before it is made"
                )
            case Vfio():
                return Edits()  # its nodes come with its step (sharing/passthrough.py)
            case _:
                assert_never(base)

    def _gpu(self, gpu: Gpu) -> Edits:
        """Return what a container gets for a whole GPU, kept while its nodes look the same."""
        kept = self._gpus.get((gpu.minor, gpu.pci_address))
        if kept is None or _signature(kept[0]) != kept[1]:
            watched = watched_nodes(gpu, self.roots)
            kept = watched, _signature(watched), gpu_edits(gpu, self.roots)
            self._gpus[gpu.minor, gpu.pci_address] = kept
        return kept[2]


class _Kept(Struct, frozen=True, kw_only=True):
    edits: NodeEdits
    running: str | None
    watched: tuple[str, ...]
    signature: _Signature
    until: float


class EditsCache:
    """The container edits of this node. Calls may come from any thread."""

    def __init__(
        self,
        roots: Roots,
        *,
        hook_path: str | None,
        kernel_release: str,
        clock: Callable[[], float],
        nvml_version: Callable[[], str | None] = lambda: None,
        make_uvm_nodes: NodeMaker | None = None,
    ) -> None:
        """Take where to look; `nvml_version` is asked if /proc does not say the driver version."""
        self._roots = roots
        self._nvml_version = nvml_version
        self._make_uvm_nodes = make_uvm_nodes
        self._hook_path = hook_path or None
        self._kernel_release = kernel_release
        self._clock = clock
        self._lock = threading.Lock()
        self._kept: _Kept | None = None

    def look(self) -> NodeEdits:
        """Return the current edits. Raises DeviceError if a file, node or hook is not usable."""
        with self._lock:
            if self._kept is None or self._is_over(self._kept):
                self._kept = None
                self._kept = self._find()
            return self._kept.edits

    def look_at_files(self) -> NodeEdits:
        """Return the current edits, found again if any file in them is missing, watched or not.

        Raises DeviceError as `look` does.
        """
        edits = self.look()
        if not missing_files(edits.common, edits.roots):
            return edits
        with self._lock:
            self._kept = None
        return self.look()

    def _is_over(self, kept: _Kept) -> bool:
        return (
            self._clock() >= kept.until
            or self._running() != kept.running
            or _signature(kept.watched) != kept.signature
        )

    def _running(self) -> str | None:
        """Return the running driver's version; NVML's may be out of date after a reload."""
        return running_driver(self._roots.proc) or self._nvml_version()

    def _find(self) -> _Kept:
        moving = tuple(map(str, self._roots.watched()))
        before = _signature(moving)
        running, roots = self._running(), self._roots.now()
        files = find_driver_files(roots, kernel_release=self._kernel_release, running=running)
        hook_program = find_hook_program(roots, self._hook_path)
        nodes = control_edits(roots, self._make_uvm_nodes)
        folders = {*watched_paths(roots, files), *watched_places(roots, self._hook_path)}
        watched = (*map(str, folders), *(f"{roots.dev}/{name}" for name in CONTROL_NODES))
        return _Kept(
            edits=NodeEdits(common=driver_edits(files, roots, hook_program) + nodes, roots=roots),
            running=running,
            watched=moving + watched,
            signature=before + _signature(watched),
            until=self._clock() + _MOST_SECONDS,
        )


def missing_files(edits: Edits, roots: Roots) -> list[str]:
    """Return the files in edits that are not there, of those below the driver root."""
    paths = (*(mount.host_path for mount in edits.mounts), *(hook.path for hook in edits.hooks))
    seen = {path: roots.driver_file_seen(path) for path in paths}
    return [path for path, there in seen.items() if there and not os.path.lexists(there)]


def _signature(paths: tuple[str, ...]) -> _Signature:
    return tuple(map(_mark, paths))


def _mark(path: str) -> tuple[int, ...] | None:
    try:
        status = os.stat(path)
    except OSError:
        return None
    if stat.S_ISDIR(status.st_mode):
        return status.st_dev, status.st_ino, status.st_mtime_ns
    return status.st_dev, status.st_ino, status.st_rdev, status.st_mode, status.st_gid
