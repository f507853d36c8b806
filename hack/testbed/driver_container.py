"""A GPU driver in a container, which is replaced by another one, as by GPU Operator.

In: the folder in which a driver container mounts its root, on a node that already has a driver.
Out: that driver is removed, if nobody uses it, and another one takes its place. Pods that began in
between see the new one by mount propagation.
"""

import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from testbed.commands import TestbedError, run
from testbed.machine import SimulatedMachine
from testbed.mounts import mounts_below, unmount_all

_BOOT_ID = "proc/sys/kernel/random/boot_id"
_Identity = tuple[int, int]


class DriverContainer:
    """The place of a GPU driver: `machine` is mounted there, and `folder` is for the next one."""

    def __init__(self, machine: SimulatedMachine, folder: Path) -> None:
        self._root = machine.root
        self._first = machine
        self._folder = folder
        self._boot_id = ""
        self._next: SimulatedMachine | None = None

    def unload(self) -> None:
        """Remove the driver: unload its kernel modules and unmount its root.

        Raises TestbedError if somebody uses it.
        """
        self._boot_id = (self._root / _BOOT_ID).read_text()
        if users := users_of(self._root):
            raise TestbedError(f"the GPU driver is in use: {', '.join(users)}")
        for point in mounts_below(self._root, itself=True):
            run(("umount", point))
        self._first.down()
        # Pods that have the folder already see what is mounted here later.
        self._keep_boot_id(self._root)
        run(("mount", "--bind", self._root, self._root))
        run(("mount", "--make-shared", self._root))

    def load(self, options: Sequence[str]) -> None:
        """Mount another driver for the same GPUs; `options` are of `dra-driver simulate up`."""
        self._next = SimulatedMachine(self._folder, self._first.profile, options)
        self._next.up()
        self._keep_boot_id(self._folder)
        self._next.mount()
        run(("mount", "--rbind", self._folder, self._root))

    def _keep_boot_id(self, root: Path) -> None:
        """Keep the machine's /proc, which is in the driver root here, as without a reboot."""
        path = root / _BOOT_ID
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(self._boot_id)

    def down(self) -> None:
        """Remove all of it."""
        unmount_all(self._root)
        if self._boot_id:
            shutil.rmtree(self._root, ignore_errors=True)
        if self._next is not None:
            self._next.down()


def users_of(root: Path) -> list[str]:
    """The processes of this machine that have a file below a folder open or mapped.

    By any path. Files with several names are skipped, because other machines have them as well.
    """
    files = {(look.st_dev, look.st_ino) for look in _looks(root) if look.st_nlink == 1}
    users = []
    for process in Path("/proc").iterdir():
        if process.name.isdecimal() and files & set(_used(process)):
            with suppress(OSError):
                name = (process / "comm").read_text().strip()
                users.append(f"{name} (PID {process.name})")
    return users


def _looks(root: Path) -> Iterator[os.stat_result]:
    for path in root.rglob("*"):
        with suppress(OSError):
            yield path.lstat()


def _used(process: Path) -> Iterator[_Identity]:
    for folder in ("fd", "map_files"):
        with suppress(OSError):
            for link in (process / folder).iterdir():
                with suppress(OSError):
                    seen = link.stat()
                    yield seen.st_dev, seen.st_ino
