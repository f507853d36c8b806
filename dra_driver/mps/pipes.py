"""A domain's two pipe folders: the daemon's own, and what clients get of it.

The daemon makes its sockets in `own`; `pipe`, which containers mount read-only, has hard links to
those that clients use. A program is a client through `control`. Told to quit there, the daemon
refuses ("not enough privilege"); limits it lets be changed, and mps/supervisor/lifecycle.py puts
them back. `control_privileged` takes every command, and stays in `own`. This is seen with NVIDIA's
own control program, daemon and libcuda, R535 (tests/contract/mps/test_hostile_tenants.py).

Nothing in `pipe` is ever read, followed or believed here. It is only put there and removed. What
cannot be done is a StateError.
"""

import os
import shutil
import stat
from contextlib import suppress
from pathlib import Path

from dra_driver.host.files import file_error
from dra_driver.mps.files import DomainPaths, names_in

SHARED = ("control", "log")
"""What clients get: the socket at which they connect, and the FIFO by which they log."""

CONTROL_SOCKET = "control_privileged"
"""In `own`: where the daemon takes every command."""

SIZE = 1024**2
FILES = 64
"""Limits of the tmpfs: sockets and FIFOs take no space, and there are fewer than ten."""


def make_pipes(paths: DomainPaths) -> None:
    """Make both folders without what a dead daemon left, and whatever is in that of the clients.

    Folders that are there keep their inodes, which containers have mounted.
    """
    for folder in (paths.own, paths.pipe):
        try:
            for name in names_in(folder):
                _remove(folder / name)
        except OSError as error:
            raise file_error("clean", folder, error) from error
    try:
        for folder in (paths.own, paths.pipe):
            folder.mkdir(exist_ok=True)
            folder.chmod(0o755)  # for clients of any user, and servers, which run as these
    except OSError as error:
        raise file_error("make", paths.run, error) from error


def publish_pipes(paths: DomainPaths) -> None:
    """Let clients reach the daemon that made its sockets. Repeating it changes nothing."""
    for name in SHARED:
        source, target = paths.own / name, paths.pipe / name
        try:
            made = source.lstat()
            if _is_same(made, target):
                continue
            if stat.S_ISDIR(_mode(target)):
                _remove(target)
            new = target.with_name(f".{name}.new")
            _remove(new)
            os.link(source, new, follow_symlinks=False)
            new.replace(target)
        except OSError as error:
            raise file_error("make", target, error) from error


def _remove(path: Path) -> None:
    if stat.S_ISDIR(_mode(path)):
        shutil.rmtree(path)  # follows no link
    else:
        path.unlink(missing_ok=True)


def _mode(path: Path) -> int:
    with suppress(FileNotFoundError):
        return path.lstat().st_mode
    return 0


def _is_same(made: os.stat_result, path: Path) -> bool:
    try:
        return os.path.samestat(made, path.lstat())
    except FileNotFoundError:
        return False
