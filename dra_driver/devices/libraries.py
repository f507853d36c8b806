"""Where a driver root keeps its shared libraries.

In: the driver root and a name or glob pattern. Out: resolved paths inside the root. The folders and
their order are those that NVIDIA's container toolkit searches (nvidia-container-toolkit,
pkg/lookup/library.go): known folders first, and only if those have nothing /etc/ld.so.cache.
The cache's format is glibc's, sysdeps/generic/dl-cache.h.
"""

import fnmatch
import os
import struct
from collections.abc import Iterator
from pathlib import Path

from dra_driver.devices import rooted

LIBRARY_FOLDERS = (
    "/",
    "/usr/lib64",
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/usr/lib/x86_64-linux-gnu/nvidia/current",
    "/usr/lib/aarch64-linux-gnu/nvidia/current",
    "/lib64",
    "/lib/x86_64-linux-gnu",
    "/lib/aarch64-linux-gnu",
    "/lib/x86_64-linux-gnu/nvidia/current",
    "/lib/aarch64-linux-gnu/nvidia/current",
)

SEARCHED = f"{', '.join(LIBRARY_FOLDERS[1:3])} and other library folders, and /etc/ld.so.cache"
"""Where libraries are looked for, in words."""

_CACHE = "/etc/ld.so.cache"
_CACHE_MAGIC = b"glibc-ld.so.cache1.1"
_CACHE_HEADER = struct.Struct("=II")  # number of entries, length of the strings; after the magic
_CACHE_HEADER_SIZE = 48
_CACHE_ENTRY = struct.Struct("=iIIIQ")  # flags, offset of the name, offset of the path, OS, hwcap
_LIBC6 = 3
_WORD_64 = (0x0300, 0x0A00)  # x86-64 and aarch64, in the second byte of an entry's flags


def locate(root: Path, pattern: str) -> tuple[str, ...]:
    """Return the files that match, links followed inside the root, each once, in search order."""
    found = _existing(
        root, (path for folder in LIBRARY_FOLDERS for path in rooted.matches(root, folder, pattern))
    )
    return found or _existing(
        root, (path for name, path in _cached(root) if fnmatch.fnmatchcase(name, pattern))
    )


def _existing(root: Path, paths: Iterator[str]) -> tuple[str, ...]:
    resolved = (rooted.resolve(root, path) for path in paths)
    return tuple(
        dict.fromkeys(path for path in resolved if path and rooted.outside(root, path).is_file())
    )


def _cached(root: Path) -> Iterator[tuple[str, str]]:
    """Yield name and path of each 64-bit library in the root's loader cache, if it can be read."""
    path = rooted.resolve(root, _CACHE)
    if path is None:
        return
    try:
        content = rooted.outside(root, path).read_bytes()
    except OSError:
        return
    # Older caches begin with a part for libc 5; offsets count from this magic in either case.
    start = content.find(_CACHE_MAGIC)
    if start < 0 or len(content) < start + _CACHE_HEADER_SIZE:
        return
    cache = content[start:]
    (entries, _) = _CACHE_HEADER.unpack_from(cache, len(_CACHE_MAGIC))
    room = (len(cache) - _CACHE_HEADER_SIZE) // _CACHE_ENTRY.size
    for number in range(min(entries, room)):
        flags, name, target, _, _ = _CACHE_ENTRY.unpack_from(
            cache, _CACHE_HEADER_SIZE + number * _CACHE_ENTRY.size
        )
        if flags & 0xFF == _LIBC6 and flags & 0xFF00 in _WORD_64:
            yield _text(cache, name), _text(cache, target)


def _text(content: bytes, offset: int) -> str:
    end = content.find(b"\0", offset)
    return os.fsdecode(content[offset : end if end >= 0 else None])
