"""A small file system that can be filled, or made read-only, without affecting the machine."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class SmallDisk:
    """A tmpfs at a folder, which is made; needs root. `size` is in bytes."""

    def __init__(self, folder: Path, *, size: int = 262_144, inodes: int = 128) -> None:
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        options = f"size={size},nr_inodes={inodes}"
        _run("mount", "-t", "tmpfs", "-o", options, "tmpfs", folder)

    def fill(self) -> None:
        """Take every byte and every inode that is left."""
        with (self._folder / ".ballast").open("wb", buffering=0) as ballast:
            try:
                while True:
                    ballast.write(b"\0" * 4096)
            except OSError:
                pass
        number = 0
        while True:
            try:
                (self._folder / f".ballast{number}").touch()
            except OSError:
                return
            number += 1

    def empty(self) -> None:
        """Free what `fill` took."""
        for ballast in self._folder.glob(".ballast*"):
            ballast.unlink()

    @contextmanager
    def full(self) -> Iterator[None]:
        """Make the file system full: nothing can be added."""
        self.fill()
        yield
        self.empty()

    @contextmanager
    def read_only(self) -> Iterator[None]:
        """Make it read-only; open files stay open, as after the kernel has found an error."""
        self.forbid_writing()
        try:
            yield
        finally:
            self.allow_writing()

    def forbid_writing(self) -> None:
        """Mount a read-only view of the folder, with all mounts in it, over it.

        It is private, so that its removal removes nothing below it.
        """
        _run("mount", "--rbind", self._folder, self._folder)
        _run("mount", "--make-rprivate", self._folder)
        _run("mount", "-o", "bind,remount,ro", self._folder)

    def allow_writing(self) -> None:
        """Remove the read-only view."""
        _run("umount", "--lazy", self._folder)

    def unmount(self) -> None:
        """Remove the file system with its content, when nobody uses it any more."""
        _run("umount", "--lazy", self._folder)


def _run(*command: str | Path) -> None:
    subprocess.run(command, check=True)
