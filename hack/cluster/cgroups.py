"""The cluster's cgroups: one subtree in every mounted hierarchy.

On cgroup v2 there is one hierarchy; on v1, and if both are mounted side by side, one for each
controller. The kubelet wants its root cgroup to exist in all of them; runc adds
children, and at the end the empty subtree is removed bottom-up, as the kernel requires.
"""

import os
from contextlib import suppress
from pathlib import Path

from cluster.mounts import mounted


def hierarchies() -> list[Path]:
    """The mount point of every cgroup hierarchy."""
    return sorted(mount.point for mount in mounted() if mount.kind in ("cgroup", "cgroup2"))


def create(cgroup: str) -> None:
    """Make a cgroup in every hierarchy."""
    for hierarchy in hierarchies():
        _under(hierarchy, cgroup).mkdir(exist_ok=True)
        _delegate(hierarchy)


def folders(cgroup: str) -> list[Path]:
    """The cgroup's folders and all below them, deepest first."""
    paths: list[Path] = []
    for hierarchy in hierarchies():
        top = _under(hierarchy, cgroup)
        paths.extend(Path(folder) for folder, _, _ in os.walk(top, topdown=False))
    return paths


def remove(cgroup: str) -> list[Path]:
    """Remove the cgroup everywhere; return the folders that still have processes."""
    for folder in folders(cgroup):
        with suppress(OSError):
            folder.rmdir()
    return folders(cgroup)


def _under(hierarchy: Path, cgroup: str) -> Path:
    return hierarchy / cgroup.lstrip("/")


def _delegate(hierarchy: Path) -> None:
    """On v2, let children of the root use its controllers (systemd does so at boot)."""
    controllers = hierarchy / "cgroup.controllers"
    with suppress(OSError):
        wanted = " ".join(f"+{name}" for name in controllers.read_text().split())
        if wanted:
            (hierarchy / "cgroup.subtree_control").write_text(wanted)
