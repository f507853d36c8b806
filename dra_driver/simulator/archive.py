"""Reads the profile in an archive of `dra-driver gather`.

In: a tar.gz. Out: the text of its `profile.yaml`. An archive may come from anybody, so nothing in
it is trusted: no more is unpacked than a real archive can contain, only plain files with known
kinds of names are accepted, the profile may not have YAML aliases, and nothing is written.
"""

import gzip
import io
import json
import re
import tarfile
import zlib
from pathlib import Path
from typing import Any

import yaml

from dra_driver.errors import StateError, VersionError

MAGIC = b"\x1f\x8b"
"""The first bytes of an archive."""

MANIFEST, PROFILE = "manifest.json", "profile.yaml"
FORMAT, VERSION = "dra-driver-gather", 1
_NAME = re.compile(r"[a-z][a-z-]{0,62}\.(json|yaml)")
_OPENING = (
    yaml.BlockMappingStartToken,
    yaml.BlockSequenceStartToken,
    yaml.FlowMappingStartToken,
    yaml.FlowSequenceStartToken,
)
_CLOSING = (yaml.BlockEndToken, yaml.FlowMappingEndToken, yaml.FlowSequenceEndToken)
_DEEPEST = 16
_MOST_MEMBERS = 32
_MOST_PACKED, _MOST_UNPACKED, _MOST_OF_PROFILE = 8 * 1024**2, 64 * 1024**2, 256 * 1024


def profile_in(path: Path) -> str:
    """Return the profile in an archive, as YAML.

    Raises:
        VersionError: a newer version of dra-driver made the archive.
        StateError: it cannot be read, is damaged or no such archive, or has no profile.
    """
    try:
        with path.open("rb") as file:
            members = _members(_unzipped(file.read(_MOST_PACKED + 1)))
        _check(members.get(MANIFEST, b""))
        return _profile(members.get(PROFILE))
    except OSError as error:
        raise StateError(f"the archive {path} cannot be read: {error}") from error
    except VersionError as error:
        raise VersionError(f"the archive {path} {error}") from error
    except (StateError, tarfile.TarError, zlib.error, EOFError, ValueError) as error:
        raise StateError(f"the archive {path} cannot be used: {error}") from error


def _unzipped(packed: bytes) -> bytes:
    if len(packed) > _MOST_PACKED:
        raise StateError(f"it has more than {_MOST_PACKED >> 20} MiB")
    with gzip.GzipFile(fileobj=io.BytesIO(packed)) as file:
        data = file.read(_MOST_UNPACKED + 1)
    if len(data) > _MOST_UNPACKED:
        raise StateError(f"it unpacks to more than {_MOST_UNPACKED >> 20} MiB")
    return data


def _members(data: bytes) -> dict[str, bytes]:
    """Return the files by name.

    All of them are in `data`, so none may claim to be larger: tarfile fills a sparse file (from PAX
    and GNU headers) with as many zeros as it claims.
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
                raise StateError(f"{shown} is there twice")
            if len(members) >= _MOST_MEMBERS:
                raise StateError(f"it has more than {_MOST_MEMBERS} files")
            content = tar.extractfile(member) if member.size <= len(data) else None
            members[member.name] = content.read() if content else b""
            if len(members[member.name]) != member.size:
                raise StateError(f"{shown} in it is cut off")
    return members


def _check(manifest: bytes) -> None:
    try:
        about: Any = json.loads(manifest)
    except (ValueError, RecursionError):
        about = None
    if not isinstance(about, dict) or about.get("format") != FORMAT:
        raise StateError(f"its {MANIFEST} is missing or was not written by `dra-driver gather`")
    version = about.get("version")
    if not isinstance(version, int) or version < 1:
        raise StateError(f"the version in its {MANIFEST} is not a number")
    if version > VERSION:
        raise VersionError(
            f"has format version {version}, but this program reads only up to {VERSION};"
            " use the dra-driver that made it, or a newer one"
        )


def _profile(data: bytes | None) -> str:
    if data is None:
        raise StateError(
            f"it has no {PROFILE}, because NVML did not answer on that node (see its {MANIFEST}),"
            " or an older dra-driver made it; gather it again"
        )
    if len(data) > _MOST_OF_PROFILE:
        raise StateError(f"its {PROFILE} has more than {_MOST_OF_PROFILE >> 10} KiB")
    text = data.decode()
    depth = 0
    try:
        for token in yaml.scan(text):
            if isinstance(token, yaml.AliasToken):
                raise StateError(f"its {PROFILE} has aliases")
            depth += isinstance(token, _OPENING) - isinstance(token, _CLOSING)
            if depth > _DEEPEST:  # libyaml would overflow the stack
                raise StateError(f"its {PROFILE} is nested too deeply")
    except yaml.YAMLError as error:
        raise StateError(f"its {PROFILE} is not YAML: {error}") from error
    return text
