"""A page of ELF in front of the state file.

In: a soname, or none. Out: one page that makes the file a loadable 64-bit shared object with that
soname and no code. The state file is named like a driver library so that container tools carry it
along, and those tools (ldconfig, soname readers) expect every such file to be ELF.
"""

import platform
import struct

PAGE = 4096

_ET_DYN = 3
_PT_LOAD, _PT_DYNAMIC = 1, 2
_DT_NULL, _DT_STRTAB, _DT_SYMTAB, _DT_STRSZ, _DT_SYMENT, _DT_SONAME = 0, 5, 6, 10, 11, 14
_MACHINES = {"x86_64": 62, "aarch64": 183}
_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SEGMENT = struct.Struct("<IIQQQQQQ")
_ENTRY = struct.Struct("<qQ")


def library_page(soname: str | None) -> bytes:
    """Build the page for `soname`, or without one. Addresses equal file offsets."""
    dynamic_at = _HEADER.size + 2 * _SEGMENT.size
    entries = 6
    symbols_at = dynamic_at + entries * _ENTRY.size
    strings_at = symbols_at + 24  # one empty symbol
    strings = b"\0" + (soname or "").encode() + b"\0"
    dynamic = b"".join(
        _ENTRY.pack(tag, value)
        for tag, value in (
            (_DT_STRTAB, strings_at),
            (_DT_STRSZ, len(strings)),
            (_DT_SYMTAB, symbols_at),
            (_DT_SYMENT, 24),
            (_DT_NULL, 0) if soname is None else (_DT_SONAME, 1),
            (_DT_NULL, 0),
        )
    )
    identification = b"\x7fELF\x02\x01\x01".ljust(16, b"\0")  # 64 bits, little endian
    header = _HEADER.pack(
        identification, _ET_DYN, _MACHINES.get(platform.machine(), 62), 1,
        0, _HEADER.size, 0, 0, _HEADER.size, _SEGMENT.size, 2, 0, 0, 0,
    )  # fmt: skip
    readable = 4
    load = _SEGMENT.pack(_PT_LOAD, readable, 0, 0, 0, PAGE, PAGE, PAGE)
    at_dynamic = _SEGMENT.pack(
        _PT_DYNAMIC, readable, dynamic_at, dynamic_at, dynamic_at, len(dynamic), len(dynamic), 8
    )
    page = header + load + at_dynamic + dynamic + bytes(24) + strings
    return page.ljust(PAGE, b"\0")
