"""A copy of the checkout, in which code may be faulty."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tracked import tracked


def bring_up_to_date(repository: Path, tree: Path) -> None:
    """Update the copy: every file of the checkout that git knows or would add, and no other."""
    names = {*tracked(repository)}
    for name in names:
        source, copy = repository / name, tree / name
        if not copy.is_file() or source.read_bytes() != copy.read_bytes():
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, copy)
    for path in [path for path in tree.rglob("*") if path.is_file() or path.is_symlink()]:
        # What Python compiled stays: it is only used while its source is the same.
        if str(path.relative_to(tree)) not in names and path.suffix != ".pyc":
            path.unlink()


@contextmanager
def faulty(path: Path, text: str) -> Iterator[None]:
    """During a block, have another text in a file of the copy.

    The file is made a second older, so that Python does not use what it compiled before.
    """
    was, stat = path.read_bytes(), path.stat()
    path.write_text(text)
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns - 10**9))
    try:
        yield
    finally:
        path.write_bytes(was)
        os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
