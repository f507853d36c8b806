"""Control groups (cgroup v2): where their root is, and whether the kernel counts GPU memory.

A node can have versions 1 and 2 side by side; version 2 is then in a folder such as `unified`.
"""

import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from dra_driver.host.files import text_of

MOUNTINFO = Path("/proc/self/mountinfo")
USUAL = Path("/sys/fs/cgroup")
"""Where cgroup v2 must be for NVML's memory limits, according to NVIDIA's MPS documentation."""

_CONTROLLERS = "cgroup.controllers"
# Every group except the root has this file; so does the group that a container sees as the root.
_EVENTS = "cgroup.events"
_OCTAL = re.compile(r"\\([0-7]{3})")


def find_hierarchy(setting: Path | None, mountinfo: Path = MOUNTINFO) -> Path | None:
    """Return the root of the control groups of version 2, or None if there is none.

    `setting` is the node's /sys/fs/cgroup as this process sees it; None means to look for mounts.
    There may be several, because a mounted driver root of / includes the host's own. The whole
    hierarchy is preferred to a container's part of it, then the usual place, then the first mount.
    """
    places = _hierarchies(mountinfo) if setting is None else [setting, setting / "unified"]
    hierarchies = [place for place in places if (place / _CONTROLLERS).is_file()]

    def order(place: Path) -> tuple[bool, bool]:
        return (place / _EVENTS).exists(), not place.is_relative_to(USUAL)

    return min(hierarchies, key=order, default=None)


def kernel_counts_gpus(hierarchy: Path) -> bool:
    """Tell whether the kernel counts GPU memory (dmem), as opposed to the GPU driver (misc)."""
    lines = text_of(hierarchy / "dmem.capacity").splitlines()
    return any(line.startswith("nvidia/") for line in lines)


def mounts(mountinfo: Path) -> Iterator[tuple[Sequence[str], str]]:
    """Yield the fields of each mount up to its options, and the type of its file system.

    36 35 98:0 /root /mount/point options [optional]... - type source options

    Source: proc_pid_mountinfo(5). Raises OSError.
    """
    # The kernel escapes only four characters; a name may have any others, in any encoding.
    for line in os.fsdecode(mountinfo.read_bytes()).rstrip("\n").split("\n"):
        fields, _, kind = line.partition(" - ")
        yield fields.split(" "), kind.split(" ")[0]


def _hierarchies(mountinfo: Path) -> list[Path]:
    try:
        found = [fields for fields, kind in mounts(mountinfo) if kind == "cgroup2"]
    except OSError:
        return []
    return [Path(unescaped(fields[4])) for fields in found if len(fields) > 4]


def unescaped(path: str) -> str:
    """Return the path that mountinfo writes like this."""
    return _OCTAL.sub(lambda code: chr(int(code[1], 8)), path)
