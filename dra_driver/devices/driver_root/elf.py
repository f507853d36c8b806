"""The SONAME of a shared library, read from its dynamic section.

The loader looks for a library by this name, such as `libcuda.so.1`. As in the loader, only program
headers are used, so stripped libraries work. Layout: System V ABI, gABI chapters 4 and 5. A file
that is not well-formed ELF has no SONAME: driver folders contain other files too.
"""

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from msgspec import Struct

_MAGIC = b"\x7fELF"
_PT_LOAD, _PT_DYNAMIC = 1, 2
_DT_NULL, _DT_STRTAB, _DT_SONAME = 0, 5, 14
_LONGEST_NAME = 255
# Real libraries have a dozen segments and a few dozen dynamic entries. The limits keep a damaged
# header from making this process read gigabytes.
_MOST_SEGMENTS = 128
_LARGEST_DYNAMIC = 64 * 1024


class _Layout(Struct, frozen=True):
    """Where the fields of an ELF class are, as struct formats without byte order."""

    header_skip: int
    # Of the program header table: offset, then (after flags and header size) entry size, count.
    header: str
    segment: str
    segment_fields: tuple[int, int, int, int]  # type, offset, address, size in the file
    dynamic: str


_LAYOUTS = {
    1: _Layout(28, "II I HHH", "IIIIIIII", (0, 1, 2, 4), "iI"),
    2: _Layout(32, "QQ I HHH", "IIQQQQQQ", (0, 2, 3, 5), "qQ"),
}
_ORDERS = {1: "<", 2: ">"}


class _Segment(Struct, frozen=True):
    kind: int
    offset: int
    address: int
    size: int


def read_soname(path: Path) -> str | None:
    """Return the file's SONAME, or None if it has none or is not an ELF file. Raises OSError."""
    with path.open("rb") as file:
        try:
            return _soname(file)
        except (struct.error, LookupError, ValueError, OverflowError):
            return None


def _soname(file: BinaryIO) -> str | None:
    ident = file.read(16)
    if ident[:4] != _MAGIC:
        return None
    layout, order = _LAYOUTS[ident[4]], _ORDERS[ident[5]]
    segments = list(_segments(file, layout, order))
    for segment in segments:
        if segment.kind == _PT_DYNAMIC:
            tags = _dynamic(
                _read(file, segment.offset, min(segment.size, _LARGEST_DYNAMIC)),
                order + layout.dynamic,
            )
            if _DT_SONAME in tags and _DT_STRTAB in tags:
                offset = _file_offset(segments, tags[_DT_STRTAB]) + tags[_DT_SONAME]
                name, end, _ = _read(file, offset, _LONGEST_NAME + 1).partition(b"\0")
                # A name with a slash would lead out of the folder in which the library is put.
                plausible = end and name and name.isascii() and b"/" not in name
                return name.decode("ascii") if plausible else None
    return None


def _segments(file: BinaryIO, layout: _Layout, order: str) -> Iterator[_Segment]:
    form = struct.Struct(order + layout.header.replace(" ", ""))
    table, _, _, _, size, count = form.unpack(_read(file, layout.header_skip, form.size))
    entry = struct.Struct(order + layout.segment)
    for number in range(min(count, _MOST_SEGMENTS)):
        fields = entry.unpack(_read(file, table + number * size, entry.size))
        kind, offset, address, length = (fields[index] for index in layout.segment_fields)
        yield _Segment(kind, offset, address, length)


def _dynamic(content: bytes, form: str) -> dict[int, int]:
    tags: dict[int, int] = {}
    whole = len(content) - len(content) % struct.calcsize(form)
    for tag, value in struct.iter_unpack(form, content[:whole]):
        if tag == _DT_NULL:
            break
        tags[tag] = value
    return tags


def _file_offset(segments: list[_Segment], address: int) -> int:
    for segment in segments:
        if segment.kind == _PT_LOAD and 0 <= address - segment.address < segment.size:
            return address - segment.address + segment.offset
    raise ValueError(address)


def _read(file: BinaryIO, offset: int, size: int) -> bytes:
    try:
        file.seek(offset)
    except OSError as error:  # EINVAL: beyond any file, so the header is damaged
        raise ValueError(offset) from error
    return file.read(size)
