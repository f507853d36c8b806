"""Paths under a driver root, followed as a process that is chrooted there would follow them.

The driver root may be the host's `/` seen at /driver-root, or a driver container's tree. Its
symbolic links are often absolute (such as Debian's /etc/alternatives), so plain resolution would
leave the root and find this process's own files. In and out: paths as written inside the root.
"""

import errno
import fnmatch
import os
from collections.abc import Iterator
from pathlib import Path

_MOST_LINKS = 40  # the kernel's own limit, path_resolution(7)


def outside(root: Path, path: str) -> Path:
    """Return where this process finds the absolute path `path` of the root."""
    return root / path.lstrip("/")


def resolve(root: Path, path: str) -> str | None:
    """Return the path with every symbolic link followed inside the root; None if it leads nowhere.

    Raises OSError if the file system fails for any reason other than a missing file.
    """
    to_do = _parts(path)
    done: list[str] = []
    links = 0
    while to_do:
        part = to_do.pop()
        if part == "..":
            del done[-1:]
            continue
        done.append(part)
        target = _link_target(f"{root}/{'/'.join(done)}")
        if target is None:
            return None
        if target:
            links += 1
            if links > _MOST_LINKS:
                return None
            del done[0 if target.startswith("/") else -1 :]
            to_do += _parts(target)
    return "/" + "/".join(done)


def chain(root: Path, path: str) -> tuple[str, ...]:
    """Return every path along a file's chain of links; the last one is the file itself.

    Links among the folders are resolved and not listed. Empty if the path leads nowhere. Raises
    OSError as `resolve` does.
    """
    seen: list[str] = []
    while len(seen) <= _MOST_LINKS:
        folder, _, name = path.rpartition("/")
        inside = resolve(root, folder)
        if inside is None:
            return ()
        here = f"{inside.rstrip('/')}/{name}"
        target = _link_target(f"{root}{here}")
        if target is None:
            return ()
        seen.append(here)
        if not target:
            return tuple(seen)
        path = target if target.startswith("/") else f"{inside}/{target}"
    return ()


def matches(root: Path, folder: str, pattern: str) -> Iterator[str]:
    """Yield the paths in a folder of the root whose names match a glob pattern, sorted by name.

    A missing or unreadable folder has none. Names that are not ASCII are left out: no driver has
    such files, and JSON cannot hold every name that Linux allows. The folder's part of each path is
    resolved but the last part is not, so that a link can be told from its target.
    """
    inside = resolve(root, folder)
    if inside is None:
        return
    try:
        names = os.listdir(outside(root, inside))  # noqa: PTH208 (names are what is wanted)
    except OSError:
        return
    for name in sorted(fnmatch.filter(names, pattern)):
        if name.isascii():
            yield f"{inside.rstrip('/')}/{name}"


def _parts(path: str) -> list[str]:
    """Return the components, the first one last."""
    return [part for part in reversed(path.split("/")) if part not in ("", ".")]


def _link_target(path: str) -> str | None:
    """Return a link's target; an empty text if it is not a link; None if it does not exist."""
    try:
        return os.readlink(path)  # noqa: PTH115 (thousands of times: a Path costs more than the call)
    except OSError as error:
        if error.errno == errno.EINVAL:
            return ""
        if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.EACCES):
            return None
        raise
