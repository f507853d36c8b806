"""A disk that loses at a power cut what nobody synced (fsync(2)), and only that.

A file's content is surely there once the file was synced, its name or its absence once its folder
was. Anything else may be there or not, and a file whose content was not synced may be empty: ext4
and XFS both leave such files.
"""

import os
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

Choose = Callable[[list[bytes | None]], bytes | None]
"""Picks what is left of a file: one of these contents, None for no file."""


class Disk:
    """Watches the syncs of this process below some folders."""

    def __init__(self, *folders: Path) -> None:
        self._folders = folders
        self._synced: set[int] = set()
        self._sure: dict[Path, bytes | None] = {}
        self._patch = pytest.MonkeyPatch()
        self._fsync = os.fsync
        self._patch.setattr(os, "fsync", self._on_sync)

    def close(self) -> None:
        self._patch.undo()

    def cut_power(self, choose: Choose) -> None:
        """Let go of what is not sure to be there, as is chosen for each file."""
        for path, content in {**dict.fromkeys(self._sure), **self._files()}.items():
            ways = [self._sure.get(path), content]
            if content is not None and path.stat().st_ino not in self._synced:
                ways.append(b"")
            left = content if ways[0] == content and len(ways) == 2 else choose(ways)
            if left is None:
                path.unlink(missing_ok=True)
            elif left != content:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(left)
        self._sure = dict(self._files())

    def _on_sync(self, descriptor: int) -> None:
        self._fsync(descriptor)
        self._synced.add(os.fstat(descriptor).st_ino)
        folder = Path(f"/proc/self/fd/{descriptor}").readlink()
        if folder.is_dir():
            files = {
                path: content for path, content in self._files().items() if path.parent == folder
            }
            self._sure = {path: c for path, c in self._sure.items() if path.parent != folder}
            self._sure |= {
                path: content if path.stat().st_ino in self._synced else b""
                for path, content in files.items()
            }

    def _files(self) -> Mapping[Path, bytes | None]:
        return {
            path: path.read_bytes()
            for folder in self._folders
            for path in folder.rglob("*")
            if path.is_file()
        }
