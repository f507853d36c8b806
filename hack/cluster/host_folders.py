"""The two folders outside any state folder that must exist, so that something can cover them.

The kubelet's fixed paths are covered in its own mount namespace (kubelet_view), and a mount needs
a folder below it. A cluster that makes one notes it; the last cluster that is removed deletes the
noted ones, if they are empty.
"""

from contextlib import suppress
from pathlib import Path

from cluster.kubelet_view import HOST_FOLDERS
from cluster.state import RUN, all_folders, locked

NOTE = "made-on-this-machine"


def ensure_host_folders() -> None:
    """Make the folders that the kubelet's view covers, and note the new ones."""
    with locked("host-folders"):
        note = RUN / NOTE
        for folder in HOST_FOLDERS:
            missing = [path for path in (folder, *folder.parents) if not path.exists()]
            if missing:
                folder.mkdir(parents=True)
                with note.open("a") as lines:
                    lines.writelines(f"{path}\n" for path in missing)


def remove_host_folders(root: Path) -> None:
    """Remove the noted folders, deepest first and only empty ones, unless a cluster is left.

    Call it under the lock: a cluster is recorded before it needs the folders, so none is
    overlooked.
    """
    with locked("host-folders"):
        note = RUN / NOTE
        if note.exists() and not all_folders(root):
            for line in sorted(note.read_text().splitlines(), key=len, reverse=True):
                with suppress(OSError):
                    Path(line).rmdir()
            note.unlink()
