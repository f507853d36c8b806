"""The supervisor's record of what it changed for a domain, so that another can undo that.

It is written before the machine is changed and kept until everything is undone. The daemon in it
may be gone, and after a reboot (another boot id) nothing that it says about the machine is true.
"""

from collections.abc import Mapping
from pathlib import Path

import msgspec
import structlog
from msgspec import Struct, field
from msgspec.structs import replace

from dra_driver.errors import StateError, VersionError
from dra_driver.host.envelope import seal, unseal, value_of
from dra_driver.mps.domain import Daemon
from dra_driver.mps.files import read_file, write_file

log = structlog.get_logger()


class DomainRecord(Struct, frozen=True, kw_only=True, rename="camel"):
    """What was done for a domain.

    Attributes:
        boot_id: the id of the boot in which it was done.
        modes_found: GPU UUID → compute mode before it was changed, as NVML numbers it.
        token: a secret in the environment of this domain's processes, which nobody else can read.
            Written before a daemon is started; empty before the first.
        restarts: how many daemons died and were replaced.
        is_damaged: whether the file was damaged, so that nobody knows what was done.
    """

    boot_id: str = field(name="bootID")
    modes_found: Mapping[str, int] = field(default_factory=dict)
    daemon: Daemon | None = None
    token: str = ""
    restarts: int = 0
    is_damaged: bool = False


def read_record(path: Path, boot_id: str) -> DomainRecord | None:
    """Return the record, as far as it is true in this boot; None if there is none."""
    data = read_file(path)
    if data is None:
        return None
    try:
        record = value_of(unseal(data), DomainRecord, "a record")
    except VersionError:
        return DomainRecord(boot_id=boot_id, is_damaged=True)
    except StateError as error:
        log.warning("mps record damaged", file=str(path), reason=str(error))
        return DomainRecord(boot_id=boot_id, is_damaged=True)
    if record.boot_id != boot_id:
        return replace(record, boot_id=boot_id, modes_found={}, daemon=None, token="")
    return record


def write_record(path: Path, record: DomainRecord) -> None:
    """Write the record; it survives a crash from now on."""
    write_file(path, seal(msgspec.to_builtins(record)), durable=True, mode=0o600)
