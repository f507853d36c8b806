"""Control groups of pods: the kubelet's folder of a pod below the hierarchy's root, by its UID.

In: the root of cgroup v2, and a pod's UID. Out: the pod's group, and those of its containers. The
kubelet makes the pod's group before NodePrepareResources is called, and each container's later.

Its name depends on the kubelet's settings and the pod's class of service, so it is looked for:

    cgroupfs  [--cgroup-root/]kubepods[/burstable|/besteffort]/pod<uid>
    systemd   [<root>.slice/][<root>-]kubepods[-<class>].slice/…-pod<uid with _ for ->.slice

Only places that the kubelet itself makes are looked at, never what is below a pod's group: who may
make groups in a container cannot pass one off as another pod's. Links are not followed.
"""

import os
import threading
from collections.abc import Iterator
from pathlib import Path

from msgspec import Struct

from dra_driver.errors import DeviceError

_PODS = "kubepods"
_CLASSES = ("burstable", "besteffort")
_SLICE = ".slice"
_DEEPEST = 6
"""How far below the root the folder of all pods may be: kubelets in containers have it deep."""
_MOST_FOLDERS = 20_000


class PodGroup(Struct, frozen=True, kw_only=True):
    """The control group of a pod, and those of its containers, the sandbox's included."""

    path: Path
    containers: tuple[Path, ...] = ()


class PodGroups:
    """Finds the groups of pods. For any thread."""

    def __init__(self, hierarchy: Path | None) -> None:
        """Take the root of the hierarchy of cgroup v2 as this process sees it; None: none."""
        self.hierarchy = hierarchy
        self._tops: tuple[Path, ...] = ()
        self._lock = threading.Lock()

    def tops(self) -> tuple[Path, ...]:
        """Return the groups that hold all pods: one for each kubelet. Looked for until found."""
        if self.hierarchy is None:
            return ()
        with self._lock:
            if not self._tops or not all(top.is_dir() for top in self._tops):
                self._tops = tuple(_find_tops(self.hierarchy))
            return self._tops

    def find(self, uid: str) -> PodGroup | None:
        """Return the group of a pod, None without one. Raises DeviceError if it has two."""
        paths = [group for top in self.tops() for group in _pod_groups(top, uid)]
        if len(paths) > 1:
            raise DeviceError(
                f"pod {uid} has two control groups, {paths[0]} and {paths[1]}; remove the one that"
                " is not the kubelet's (systemd-cgls shows what is in each)"
            )
        if not paths:
            return None
        return PodGroup(path=paths[0], containers=tuple(_folders(paths[0])))


def _find_tops(hierarchy: Path) -> Iterator[Path]:
    """Look for the folders of all pods, level by level, and not below one."""
    level, seen = [hierarchy], 0
    for _ in range(_DEEPEST):
        below: list[Path] = []
        for folder in level:
            for child in _folders(folder):
                seen += 1
                if _is_top(child):
                    yield child
                elif seen < _MOST_FOLDERS:
                    below.append(child)
        level = below


def _is_top(folder: Path) -> bool:
    stem = folder.name.removesuffix(_SLICE)
    if stem == folder.name:
        return stem == _PODS
    # systemd writes the slices above into the name of each, as kubelet-kubepods.slice.
    above = folder.parent.name.removesuffix(_SLICE)
    return stem in (_PODS, f"{above}-{_PODS}")


def _pod_groups(top: Path, uid: str) -> Iterator[Path]:
    is_slice = top.name.endswith(_SLICE)
    stem = top.name.removesuffix(_SLICE)
    classes = [f"{stem}-{name}{_SLICE}" if is_slice else name for name in _CLASSES]
    for place in (top, *(top / name for name in classes)):
        name = f"pod{uid}"
        if is_slice:
            name = f"{place.name.removesuffix(_SLICE)}-pod{uid.replace('-', '_')}{_SLICE}"
        yield from (folder for folder in _folders(place) if folder.name == name)


def _folders(folder: Path) -> list[Path]:
    """Return the folders in a folder, by name, no links; none when it is gone or a link."""
    try:
        if folder.is_symlink():
            return []
        with os.scandir(folder) as entries:
            names = [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
    except OSError:
        return []
    return [folder / name for name in sorted(names)]
