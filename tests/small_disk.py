"""A small file system for tests that fill one; needs root."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class Disk:
    """A small file system at a folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(parents=True)
        subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "size=256k,nr_inodes=128", "tmpfs", folder], check=True
        )

    def fill(self) -> None:
        """Take every byte and every inode that is left."""
        with (self._folder / "ballast").open("wb", buffering=0) as ballast:
            try:
                while True:
                    ballast.write(b"\0" * 4096)
            except OSError:
                pass
        for number in range(128):
            try:
                (self._folder / f"ballast{number}").touch()
            except OSError:
                return
        raise AssertionError("there are more inodes than there should be")

    def empty(self) -> None:
        for ballast in self._folder.glob("ballast*"):
            ballast.unlink()

    @contextmanager
    def read_only(self) -> Iterator[None]:
        """Let nothing be changed; what is open stays so, as when a kernel has found an error."""
        subprocess.run(["mount", "--bind", self._folder, self._folder], check=True)
        try:
            subprocess.run(["mount", "-o", "bind,remount,ro", self._folder], check=True)
            yield
        finally:
            self.unmount()

    def unmount(self) -> None:
        subprocess.run(["umount", "--lazy", self._folder], check=True)
