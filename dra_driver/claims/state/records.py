"""The files of claims' records, and what one of them has.

<directory>/claims/<uid>.json       the record (format: claims/model/record.py)
<directory>/claims/.<uid>.json.tmp  being written
<directory>/quarantine/<uid>.json   damaged, moved aside for a person to look at
"""

import re
import stat
from contextlib import suppress
from pathlib import Path

from msgspec import Struct

from dra_driver.claims.model.claim import ClaimUid, check_uid
from dra_driver.claims.model.record import ClaimRecord, decode, released, written_by
from dra_driver.devices.model import GpuUuid
from dra_driver.errors import StateError, VersionError
from dra_driver.host.files import read_whole

_GPU = re.compile(rb'"gpu":\s?"(GPU-[0-9A-Za-z-]{1,90})"')
"""A GPU in a record of any format, also in what is left of a damaged one."""

SUFFIX = ".json"


def disk_refused(what: str, error: OSError) -> StateError:
    """Return the error for an operation that the disk of the driver's directory refused."""
    return StateError(
        f"cannot {what}: {error.strerror or error}; check the free space and the permissions of "
        "the driver's directory on the node"
    )


class Unusable(Struct, frozen=True, kw_only=True):
    """A record that cannot be used: `newer` is of a newer version of this driver, else damaged.

    `gpus` are those that it names, as far as they can be seen.
    """

    uid: str
    reason: str
    gpus: frozenset[GpuUuid] = frozenset()
    newer: VersionError | None = None
    is_empty: bool = False


Entry = ClaimRecord | Unusable
"""What a file has."""


def entry_in(path: str, uid: str) -> Entry | None:
    """Return what a file has, which should be a claim's record; None if there is none."""
    contents = read_whole(path)
    if contents is None:
        return None
    data, seen = contents
    if not data:
        return Unusable(uid=uid, reason="it is empty", is_empty=True)
    try:
        record = decode(data)
    except VersionError as error:
        version = written_by(data)
        why = f"{error}; version {version} of the driver wrote it" if version else str(error)
        newer = VersionError(
            f"a newer version of this driver prepared claim UID {uid} ({why}); its record {path} "
            "and its devices are left as they are: install that version again, or drain the node "
            "with it before an older one is installed"
        )
        return Unusable(uid=uid, reason=why, gpus=gpus_in(data), newer=newer)
    except StateError as error:
        return Unusable(uid=uid, reason=str(error), gpus=gpus_in(data))
    if record.ref.uid != uid:
        reason = f"it is the record of claim UID {record.ref.uid}"
        return Unusable(uid=uid, reason=reason, gpus=gpus_in(data))
    return record if seen.st_mode & stat.S_IWUSR else released(record, seen.st_ctime)


def gpus_in(data: bytes) -> frozenset[GpuUuid]:
    """Return the GPUs that the bytes of a record name, whatever their format, even if damaged."""
    return frozenset(GpuUuid(found.decode()) for found in _GPU.findall(data))


def gpus_named(path: Path) -> frozenset[GpuUuid]:
    """Return the GPUs that a damaged record's file names; none if it cannot be read."""
    with suppress(OSError):
        contents = read_whole(path)
        return gpus_in(contents[0]) if contents else frozenset()
    return frozenset()


def written_at(directory: Path, uid: ClaimUid) -> float:
    """Return when a claim's record was written, in seconds since the epoch; 0 without one."""
    try:
        return (directory / "claims" / f"{check_uid(uid)}{SUFFIX}").stat().st_mtime
    except OSError:
        return 0.0
