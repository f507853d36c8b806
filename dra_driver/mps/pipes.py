"""Makes a domain's two pipe folders: the daemon's own, and the one that clients see.

The daemon makes its sockets in `own`; `pipe`, which containers mount read-only, has hard links to
those that clients use. A program is a client through `control`. There the daemon refuses to quit
("not enough privilege"), but lets clients change limits, which mps/supervisor/lifecycle.py
restores. `control_privileged` accepts every command, and stays in `own`. This was seen with
NVIDIA's control program, daemon and libcuda, R535 (tests/e2e/test_hostile_tenants.py).

Nothing in `pipe` is ever read, followed or trusted here; entries are only added and removed.
Failures are StateErrors.
"""

import os
import shutil
import stat
from contextlib import suppress
from pathlib import Path

from dra_driver.host.files import file_error
from dra_driver.mps.files import DomainPaths, names_in

SHARED = ("control", "log")
"""What clients get: the socket for connections, and the FIFO for their log messages."""

CONTROL_SOCKET = "control_privileged"
"""In `own`: the socket that accepts every command."""

SIZE = 1024**2
FILES = 64
"""Limits of the tmpfs: sockets and FIFOs take no space, and there are fewer than ten."""


def make_pipes(paths: DomainPaths) -> None:
    """Make both folders, remove what a dead daemon left, and empty the folder of the clients.

    Existing folders keep their inodes, because containers have mounted them.
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
            folder.chmod(0o755)  # for clients of any user, and servers, which run as their users
    except OSError as error:
        raise file_error("make", paths.run, error) from error


def publish_pipes(paths: DomainPaths) -> None:
    """Let clients reach the daemon once it has made its sockets. Can be repeated."""
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
