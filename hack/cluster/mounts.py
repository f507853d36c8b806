"""Mounts below a folder: listed from /proc/self/mountinfo, made and removed by mount(2).

The removal of a cluster must never delete through a mount (a pod may have mounted a folder of the
host), so all mounts below its state folder are removed first, and a remaining one is an error.
"""

import ctypes
import os
import re
from dataclasses import dataclass
from pathlib import Path

MS_BIND = 0x1000
MS_REC = 0x4000
MS_PRIVATE = 1 << 18
MS_SLAVE = 1 << 19
MS_SHARED = 1 << 20
MNT_DETACH = 2
CLONE_NEWNS = 0x00020000


@dataclass(frozen=True, slots=True, kw_only=True)
class Mount:
    """One line of mountinfo: where something is mounted, and of what kind it is."""

    point: Path
    kind: str


def mounted(below: Path | None = None) -> list[Mount]:
    """All mounts, in the order of mounting; with a folder, only those at or below it."""
    mounts = []
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        fields, _, source = line.partition(" - ")
        point = Path(_unescaped(fields.split(" ")[4]))
        if below is None or point == below or below in point.parents:
            mounts.append(Mount(point=point, kind=source.split(" ")[0]))
    return mounts


def holding(path: Path) -> Mount:
    """The mount that a path is on."""
    real = path.resolve()
    holders = [each for each in mounted() if each.point == real or each.point in real.parents]
    # Of equally deep mounts, the last one covers the others.
    return max(enumerate(holders), key=lambda item: (len(item[1].point.parts), item[0]))[1]


def can_hold_overlays(path: Path) -> bool:
    """Whether an overlay can be there; not on an overlay, such as a folder inside a container."""
    return holding(path).kind not in ("overlay", "tmpfs", "nfs")


def unmount_below(folder: Path) -> list[Path]:
    """Unmount everything at or below a folder, last first; return what is still mounted."""
    for below in reversed(mounted(folder)):
        # Detached: it disappears from the tree now, and is released when its last user ends.
        _libc().umount2(os.fsencode(below.point), MNT_DETACH)
    return [each.point for each in mounted(folder)]


def mount(source: Path | None, target: Path, flags: int) -> None:
    """mount(2), for bind mounts and changes of propagation."""
    origin = None if source is None else os.fsencode(source)
    if _libc().mount(origin, os.fsencode(target), None, flags, None) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), str(target))


def share(folder: Path) -> None:
    """Make a folder a shared mount of its own: what is mounted below it is seen everywhere."""
    if not any(each.point == folder for each in mounted(folder)):
        mount(folder, folder, MS_BIND)
        mount(None, folder, MS_PRIVATE)
    mount(None, folder, MS_SHARED | MS_REC)


def unshare_mounts() -> None:
    """Give this process its own list of mounts (unshare(2)), propagation as it was."""
    if _libc().unshare(CLONE_NEWNS) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), "unshare")


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _unescaped(text: str) -> str:
    # mountinfo writes blank, tab, newline and backslash as \ooo.
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), text)
