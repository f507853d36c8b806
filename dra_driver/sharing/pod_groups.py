"""Finds the control group that the kubelet made for a pod, by the pod's UID.

In: the root of cgroup v2, and a pod's UID. Out: the groups of the pod and of its containers. The
kubelet makes the pod's group before it calls NodePrepareResources, and each container's later.

The group's path depends on the kubelet's settings and the pod's QoS class, so these are tried:

    cgroupfs  [--cgroup-root/]kubepods[/burstable|/besteffort]/pod<uid>
    systemd   [<root>.slice/][<root>-]kubepods[-<class>].slice/…-pod<uid with _ for ->.slice

Only folders that the kubelet makes are searched, never those below a pod's group. So a container
that can make groups cannot present one of them as another pod's. Links are not followed.
"""

import os
import threading
from collections.abc import Iterator
from pathlib import Path

from dra_driver.errors import DeviceError

_PODS = "kubepods"
_SLICE = ".slice"
_DEEPEST = 6
"""How many levels below the root to search; a kubelet in a container has its folder deep down."""
_MOST_FOLDERS = 20_000


class PodGroups:
    """Finds the groups of pods. Methods may be called from any thread."""

    def __init__(self, hierarchy: Path | None) -> None:
        """Take the root of the hierarchy of cgroup v2 as this process sees it; None: none."""
        self.hierarchy = hierarchy
        self._tops: tuple[Path, ...] = ()
        self._lock = threading.Lock()

    def tops(self) -> tuple[Path, ...]:
        """Return the groups that hold all pods, one for each kubelet; searched until found."""
        if self.hierarchy is None:
            return ()
        with self._lock:
            if not self._tops or not all(top.is_dir() for top in self._tops):
                self._tops = tuple(_find_tops(self.hierarchy))
            return self._tops

    def find(self, uid: str) -> Path | None:
        """Return the group of a pod, None if it has none. Raises DeviceError if it has two."""
        paths = [group for top in self.tops() for group in _pod_groups(top, uid)]
        if len(paths) > 1:
            raise DeviceError(
                f"pod {uid} has two control groups, {paths[0]} and {paths[1]}; remove the one that"
                " is not the kubelet's (systemd-cgls shows what is in each)"
            )
        return paths[0] if paths else None

    def containers(self, uid: str) -> list[Path]:
        """Return the groups of a pod's containers, including the sandbox. Raises as `find`."""
        group = self.find(uid)
        return [] if group is None else _folders(group)


def _find_tops(hierarchy: Path) -> Iterator[Path]:
    """Yield the folders that hold all pods; search level by level, and not below such a folder."""
    level, seen = [hierarchy], 0
    for _ in range(_DEEPEST):
        below: list[Path] = []
        for folder in level:
            for child in _folders(folder):
                seen += 1
                if is_top(child.name, folder.name):
                    yield child
                elif seen < _MOST_FOLDERS:
                    below.append(child)
        level = below


def is_top(name: str, above: str) -> bool:
    """Tell whether a group is that of all pods, by its name and that of the group above it."""
    stem = name.removesuffix(_SLICE)
    if stem == name:
        return stem == _PODS
    # systemd prefixes the name of a slice with its parents' names, as in kubelet-kubepods.slice.
    return stem in (_PODS, f"{above.removesuffix(_SLICE)}-{_PODS}")


def classes(top: str) -> list[str]:
    """Return the names of the groups of QoS classes in a group of all pods."""
    stem = top.removesuffix(_SLICE)
    names = ("burstable", "besteffort")
    return list(names) if stem == top else [f"{stem}-{name}{_SLICE}" for name in names]


def _pod_groups(top: Path, uid: str) -> Iterator[Path]:
    for place in (top, *(top / name for name in classes(top.name))):
        name = f"pod{uid}"
        if top.name.endswith(_SLICE):
            name = f"{place.name.removesuffix(_SLICE)}-pod{uid.replace('-', '_')}{_SLICE}"
        yield from (folder for folder in _folders(place) if folder.name == name)


def _folders(folder: Path) -> list[Path]:
    """Return the folders in a folder, sorted, without links; none if it is gone or a link."""
    try:
        if folder.is_symlink():
            return []
        with os.scandir(folder) as entries:
            names = [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
    except OSError:
        return []
    return [folder / name for name in sorted(names)]
