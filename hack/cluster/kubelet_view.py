"""The kubelet's private view of machine paths that it uses regardless of its settings.

In: a state folder and the kubelet's command line. In a mount namespace of its own, this process
mounts folders and files of the state folder over the kubelet's fixed paths, then becomes the
kubelet, under the same pid:

- /var/lib/kubelet has the device plugins' sockets whatever --root-dir says, and a starting kubelet
  empties that folder: another kubelet of this machine would lose its plugins;
- /var/log/containers gets a link for each container;
- kernel.panic, vm.overcommit_memory … are set for the whole machine at every start.

The kubelet's root folder is a shared mount, so volumes it mounts there reach containerd.

A mount needs a folder below it. A cluster that makes one notes it; the last cluster that is removed
deletes the noted ones, if they are empty.
"""

import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

from cluster import mounts
from cluster.state import RUN, all_folders, locked

NOTE = "made-on-this-machine"
HOST_FOLDERS = (Path("/var/lib/kubelet"), Path("/var/log/containers"))
SYSCTLS = (
    "vm/overcommit_memory",
    "vm/panic_on_oom",
    "kernel/panic",
    "kernel/panic_on_oops",
    "kernel/keys/root_maxkeys",
    "kernel/keys/root_maxbytes",
)


def cover(state: Path) -> None:
    """Mount the cluster's own folders and files over the machine's, only in this namespace."""
    mounts.unshare_mounts()
    for folder in HOST_FOLDERS:
        own = state / "host" / folder.relative_to("/")
        own.mkdir(parents=True, exist_ok=True)
        _cover(own, folder)
    for name in SYSCTLS:
        real = Path("/proc/sys") / name
        if not real.exists():
            continue
        own = state / "host" / "sysctl" / name
        own.parent.mkdir(parents=True, exist_ok=True)
        if not own.exists():
            own.write_text(real.read_text())
        _cover(own, real)


def _cover(own: Path, path: Path) -> None:
    # `MS_SLAVE` first: on a shared mount the whole machine would see the cover.
    mounts.mount(None, mounts.holding(path).point, mounts.MS_SLAVE)
    mounts.mount(own, path, mounts.MS_BIND)


def become(state: Path, command: Sequence[str]) -> NoReturn:
    """Cover the machine's paths and turn this process into the kubelet."""
    cover(state)
    os.execv(command[0], list(command))  # noqa: S606 - this process is to become the kubelet


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
