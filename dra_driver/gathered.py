"""The archive of a node: its form, for its writer (admin/gather) and its reader (simulator).

It is a tar.gz of JSON files. The first is `manifest.json`: form and version of the archive, who
made it and when, what is missing and why, and size and SHA-256 of every other file; these follow in
order of their names. Equal contents give equal bytes.

An archive may come from anybody, so reading trusts nothing: no more is unpacked than an archive can
contain, only plain files with known kinds of names are accepted, and nothing is written anywhere.
"""

import gzip
import io
import json
import re
import tarfile
import zlib
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any

from msgspec import Struct

from dra_driver.errors import StateError, VersionError

FORMAT = "dra-driver-gather"
VERSION = 1
MANIFEST = "manifest.json"
NVML, PCI, NODE, FILES = "nvml.json", "pci.json", "node.json", "driver-files.json"
CONFIG, STATE, LOG, SLICES = "config.json", "state.json", "log.json", "slices.json"

_NAME = re.compile(r"[a-z][a-z-]{0,62}\.json")
_MOST_MEMBERS = 32
_MOST_PACKED, _MOST_UNPACKED = 8 * 1024**2, 64 * 1024**2
_LEVEL = 9


class Archive(Struct, frozen=True, kw_only=True):
    """A checked archive. `documents` are the contents of its files, by name."""

    manifest: Mapping[str, Any]
    documents: Mapping[str, Any]


def pack(about: Mapping[str, object], documents: Mapping[str, object]) -> bytes:
    """Return an archive with these documents; `about` becomes part of its manifest."""
    members = {name: _text(documents[name]) for name in sorted(documents)}
    listed = {
        name: {"bytes": len(data), "sha256": sha256(data).hexdigest()}
        for name, data in members.items()
    }
    manifest = {"format": FORMAT, "version": VERSION, **about, "files": listed}
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for name, data in {MANIFEST: _text(manifest), **members}.items():
            member = tarfile.TarInfo(name)
            member.size, member.mode = len(data), 0o644
            tar.addfile(member, io.BytesIO(data))
    return gzip.compress(packed.getvalue(), _LEVEL, mtime=0)


def _text(document: object) -> bytes:
    return (json.dumps(document, indent=1, ensure_ascii=True) + "\n").encode()


def unpack(path: Path) -> Archive:
    """Return the content of an archive.

    Raises VersionError if a newer version of this program made it, and StateError if it cannot be
    read, is damaged, or is not such an archive.
    """
    try:
        with path.open("rb") as file:
            packed = file.read(_MOST_PACKED + 1)
    except OSError as error:
        raise StateError(f"the archive {path} cannot be read: {error.strerror}") from error
    try:
        return _checked(_members(_unzipped(packed)))
    except VersionError as error:
        raise VersionError(f"the archive {path} {error}") from error
    except (StateError, tarfile.TarError, zlib.error, EOFError, ValueError) as error:
        raise StateError(f"the archive {path} cannot be used: {error}; gather it again") from error


def _unzipped(packed: bytes) -> bytes:
    if len(packed) > _MOST_PACKED:
        raise StateError(f"it has more than {_MOST_PACKED >> 20} MiB")
    unzip = zlib.decompressobj(wbits=zlib.MAX_WBITS | 16)  # with gzip's header
    data = unzip.decompress(packed, _MOST_UNPACKED + 1)
    if len(data) > _MOST_UNPACKED:
        raise StateError(f"it unpacks to more than {_MOST_UNPACKED >> 20} MiB")
    if not unzip.eof:
        raise StateError("it is cut off")
    if unzip.unused_data:
        raise StateError("something follows its end")
    return data


def _members(data: bytes) -> dict[str, bytes]:
    """Return the files by name.

    All of them are in `data`, so none may claim to be larger. A sparse file, which tarfile reads
    from PAX and GNU headers, has as many zeros as it claims.
    """
    members: dict[str, bytes] = {}
    with tarfile.open(fileobj=io.BytesIO(data), mode="r:") as tar:
        for member in tar:
            shown = repr(member.name[:80])
            if member.type not in (tarfile.REGTYPE, tarfile.AREGTYPE) or member.issparse():
                raise StateError(f"{shown} in it is not a plain file")
            if _NAME.fullmatch(member.name) is None:
                raise StateError(f"{shown} in it is not the name of a gathered file")
            if member.name in members:
                raise StateError(f"{shown} is in it twice")
            if len(members) >= _MOST_MEMBERS:
                raise StateError(f"it has more than {_MOST_MEMBERS} files")
            if member.size > len(data):
                raise StateError(f"{shown} in it is cut off")
            content = tar.extractfile(member)
            members[member.name] = content.read() if content else b""
            if len(members[member.name]) != member.size:
                raise StateError(f"{shown} in it is cut off")
    return members


def _checked(members: dict[str, bytes]) -> Archive:
    if MANIFEST not in members:
        raise StateError(f"it has no {MANIFEST}, so `dra-driver gather` did not make it")
    manifest = _parsed(MANIFEST, members.pop(MANIFEST))
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        raise StateError(f"its {MANIFEST} is of another program")
    version = manifest.get("version")
    if not isinstance(version, int) or isinstance(version, bool) or version < 1:
        raise StateError(f"the version in its {MANIFEST} is not a number")
    if version > VERSION:
        raise VersionError(
            f"has format version {version}, but this program reads only up to {VERSION};"
            " use the dra-driver that made it, or a newer one"
        )
    listed = manifest.get("files")
    if not isinstance(listed, dict) or listed.keys() != members.keys():
        raise StateError(f"its files are not those that its {MANIFEST} lists")
    for name, data in members.items():
        if not isinstance(listed[name], dict) or (
            listed[name].get("sha256") != sha256(data).hexdigest()
        ):
            raise StateError(f"the checksum of {name} does not match its content")
    documents = {name: _parsed(name, data) for name, data in members.items()}
    return Archive(manifest=manifest, documents=documents)


def _parsed(name: str, data: bytes) -> Any:
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        raise StateError(f"{name} is not valid JSON ({type(error).__name__})") from error
