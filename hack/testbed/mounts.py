"""What is mounted below a folder of this machine, from /proc/self/mountinfo."""

from pathlib import Path

from testbed.commands import run


def mounts_below(folder: Path, *, itself: bool = False) -> list[str]:
    """The mount points below a folder, the deepest first; perhaps with the folder itself."""
    points = (line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines())
    own = str(folder) if itself else None
    below = (point for point in points if point.startswith(f"{folder}/") or point == own)
    return sorted(below, key=len, reverse=True)


def unmount_all(folder: Path) -> None:
    """Unmount a folder and all below it, also while it is in use."""
    for point in mounts_below(folder, itself=True):
        run(("umount", "--lazy", point))
