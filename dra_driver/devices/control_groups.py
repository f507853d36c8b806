"""Control groups of cgroup v2: where their hierarchy is, and whether its kernel counts GPU memory.

A node may have versions 1 and 2 side by side; version 2 is then in a folder such as `unified`.
"""

import re
from pathlib import Path

MOUNTINFO = Path("/proc/self/mountinfo")
USUAL = Path("/sys/fs/cgroup")
"""Where cgroup v2 has to be for NVML's memory limits, by NVIDIA's documentation of MPS."""

_CONTROLLERS = "cgroup.controllers"
# A group below the root has it; so does what a container sees as its root.
_EVENTS = "cgroup.events"
_OCTAL = re.compile(r"\\([0-7]{3})")


def find_hierarchy(setting: Path | None, mountinfo: Path = MOUNTINFO) -> Path | None:
    """Return the root of the control groups of version 2, or None if there is none.

    `setting` is the node's /sys/fs/cgroup as this process sees it; None to look for mounts. The
    whole hierarchy is preferred to a container's part of it, then the usual place, then the mount
    that comes first: a driver root of / brings the host's own along.
    """
    places = _mounts(mountinfo) if setting is None else [setting, setting / "unified"]
    hierarchies = [place for place in places if (place / _CONTROLLERS).is_file()]

    def order(place: Path) -> tuple[bool, bool]:
        return (place / _EVENTS).exists(), not place.is_relative_to(USUAL)

    return min(hierarchies, key=order, default=None)


def kernel_counts_gpus(hierarchy: Path) -> bool:
    """Tell whether the kernel counts the memory of GPUs (dmem), and not the GPU driver (misc).

    With dmem every limit of a group above binds as well; with misc the nearest group with a limit
    binds alone.
    """
    try:
        text = (hierarchy / "dmem.capacity").read_text(errors="replace")
    except OSError:
        return False
    return any(line.startswith("nvidia/") for line in text.splitlines())


def _mounts(mountinfo: Path) -> list[Path]:
    try:
        lines = mountinfo.read_text(errors="surrogateescape").splitlines()
    except OSError:
        return []
    mounts = []
    for line in lines:
        # 36 35 98:0 /root /mount/point options [optional]... - type source options
        facts, _, kind = line.partition(" - ")
        if kind.split(" ")[0] == "cgroup2" and len(words := facts.split(" ")) > 4:
            mounts.append(Path(_OCTAL.sub(lambda code: chr(int(code[1], 8)), words[4])))
    return mounts
