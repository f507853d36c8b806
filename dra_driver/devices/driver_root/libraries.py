"""Where a driver root keeps its shared libraries.

The folders and their order are those that NVIDIA's container toolkit searches
(nvidia-container-toolkit, pkg/lookup/library.go), followed by those of systems that it does not
know. /etc/ld.so.cache, and links that lead out of these folders, may name a library only by its
SONAME, such as libcuda.so.1. So a file that they lead to is matched by every name along its chain
of links. The cache's format is glibc's, sysdeps/generic/dl-cache.h.
"""

import fnmatch
import os
import re
import struct
from collections.abc import Iterable, Iterator
from pathlib import Path

from msgspec import Struct

from dra_driver.devices.driver_root import rooted

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
    "/run/opengl-driver/lib",  # NixOS, which has no loader cache
    "/usr/local/glibc/usr/lib",  # Talos, whose own C library is not glibc
    "/usr/local/glibc/lib",
    "/glibc/usr/lib",  # Talos, with /usr/local as the driver root
    "/glibc/lib",
)

SEARCHED = f"{', '.join(LIBRARY_FOLDERS[1:3])} and other library folders, and /etc/ld.so.cache"
"""Where libraries are looked for, in words."""

_VERSION = re.compile(r"\.so\.(\d+(?:\.\d+)+)$")
_CACHE = "/etc/ld.so.cache"
_CACHE_MAGIC = b"glibc-ld.so.cache1.1"
_CACHE_HEADER = struct.Struct("=II")  # number of entries, length of the strings; after the magic
_CACHE_HEADER_SIZE = 48
_CACHE_ENTRY = struct.Struct("=iIIIQ")  # flags, offset of the name, offset of the path, OS, hwcap
_LIBC6 = 3
_LONGEST_PATH, _LONGEST_NAME = 4096, 255  # Linux, limits.h
_WORD_64 = (0x0300, 0x0A00)  # x86-64 and aarch64, in the second byte of an entry's flags


class Found(Struct, frozen=True):
    """A library file, with every path along its chain of links; the last is the file itself."""

    paths: tuple[str, ...]

    @property
    def source(self) -> str:
        """The path of the file itself."""
        return self.paths[-1]

    def named(self, pattern: str) -> str | None:
        """Return the last of its paths whose name matches a glob pattern."""
        for path in reversed(self.paths):
            if fnmatch.fnmatchcase(path.rpartition("/")[2], pattern):
                return path
        return None


def version_of(path: str) -> str | None:
    """Return the version in a library's name, such as 550.54.15; None if it has only a SONAME's."""
    match = _VERSION.search(path)
    return match[1] if match else None


def locate(root: Path, pattern: str) -> tuple[str, ...]:
    """Return the matching files, links followed inside the root, each once, in search order.

    Only if no folder has one, other names of the same library are followed to matching files: first
    those in the folders, such as Debian's, which lead to the driver that its alternatives chose,
    then those in the loader's cache.
    """
    files = _existing(root, _in_folders(root, pattern))
    if not files:
        stem = pattern.partition(".so")[0]
        named_otherwise = (
            *_in_folders(root, f"{stem}.so*"),
            *(path for name, path in _cached(root) if fnmatch.fnmatchcase(_stem(name), stem)),
        )
        files = tuple(file for file in _existing(root, named_otherwise) if file.named(pattern))
    return tuple(dict.fromkeys(file.source for file in files))


def find_all(root: Path, stems: re.Pattern[str]) -> tuple[Found, ...]:
    """Return every library whose name up to `.so` matches, in all folders and then the cache.

    A file is listed once for each name by which it was found.
    """
    in_folders = (
        path
        for path in _in_folders(root, "lib*.so*")
        if stems.fullmatch(_stem(path.rpartition("/")[2]))
    )
    in_cache = (path for name, path in _cached(root) if stems.fullmatch(_stem(name)))
    return _existing(root, (*in_folders, *in_cache))


def _in_folders(root: Path, pattern: str) -> Iterator[str]:
    for folder in LIBRARY_FOLDERS:
        yield from rooted.matches(root, folder, pattern)


def _existing(root: Path, paths: Iterable[str]) -> tuple[Found, ...]:
    chains = (rooted.chain(root, path) for path in dict.fromkeys(paths))
    files = dict.fromkeys(Found(chain) for chain in chains if chain)
    return tuple(file for file in files if rooted.outside(root, file.source).is_file())


def _stem(name: str) -> str:
    return name.partition(".so")[0]


def _cached(root: Path) -> Iterator[tuple[str, str]]:
    """Yield the name and path of each 64-bit library in the loader cache, if that is readable."""
    path = rooted.resolve(root, _CACHE)
    if path is None:
        return
    try:
        content = rooted.outside(root, path).read_bytes()
    except OSError:
        return
    # Older caches begin with a part for libc 5; offsets always count from this magic.
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
            texts = _text(cache, name), _text(cache, target)
            if all(map(_is_plausible, texts)):
                yield texts


def _text(content: bytes, offset: int) -> str:
    """Return the text at an offset; empty if it does not end within the length of a path."""
    end = content.find(b"\0", offset, offset + _LONGEST_PATH)
    return os.fsdecode(content[offset:end]) if end >= 0 else ""


def _is_plausible(path: str) -> bool:
    """Tell whether a driver can have this path, as opposed to damage; it has to be ASCII."""
    return path.isascii() and all(len(part) <= _LONGEST_NAME for part in path.split("/"))
