"""The record of what is wrong with this node's GPUs: one file, always written as a whole.

The driver needs it after a restart, because NVML reports an XID only once, and `dra-driver status`
reads it. A record of another boot is ignored, because a reboot resets every GPU; what lasts longer
is found again by the first look. A file that is damaged, or of a newer version, is kept under
another name, for people.

Beside it are the requests of admins to the running driver: files that `dra-driver health`
(admin/health.py) writes, each named by what is asked. The driver deletes a file once that is done,
for which the command waits.
"""

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import structlog
from msgspec import Struct, field
from msgspec.structs import replace

from dra_driver.devices.health.debounce import GpuConditions
from dra_driver.devices.health.findings import Severity
from dra_driver.errors import StateError
from dra_driver.host.envelope import seal, unseal, value_of
from dra_driver.host.files import delete, entries_of, read_whole, write_whole
from dra_driver.host.worker import LogOnce

FILE = "health.json"
"""The record's name in the driver's directory."""

DAMAGED = "health.json.damaged"
"""The name under which a damaged record is kept."""

REQUESTS = "health-requests"
"""The name of the folder with requests there."""

RELEASE = "release"
"""The file that asks the driver to close NVML; others have the UUIDs of GPUs whose faults end."""

RELEASE_SECONDS = 600.0
"""How long NVML then stays closed between looks."""

log = structlog.get_logger()


class GpuHealth(Struct, frozen=True, kw_only=True):
    """What is wrong with one GPU, and how people know it.

    `name` is its device name, such as `gpu-3`; `index` is NVML's when the GPU was last described.
    """

    name: str
    index: int
    pci_address: str
    conditions: GpuConditions = ()


class HealthRecord(Struct, frozen=True, kw_only=True):
    """What the file contains: the boot in which it was written, and GPUs by UUID."""

    boot_id: str
    gpus: Mapping[str, GpuHealth] = field(default_factory=dict)


def read_health(directory: Path) -> HealthRecord | None:
    """Return the record in the driver's directory; None if there is none.

    Raises StateError if it is damaged, of a newer version of this driver, or cannot be read.
    """
    path = directory / FILE
    try:
        contents = read_whole(path)
        if contents is None:
            return None
        return value_of(unseal(contents[0]), HealthRecord, "what is wrong with GPUs")
    except (OSError, StateError) as error:
        reason = str(error.strerror if isinstance(error, OSError) else error)
        raise StateError(
            f"the record of what is wrong with GPUs, {path}, cannot be read: {reason}; what NVML "
            "still reports is noticed again; earlier XIDs are only in the kernel's log"
        ) from error


def lasting(gpu: GpuHealth) -> GpuHealth:
    """Return a GPU's health without remarks, which are not kept."""
    kept = (
        condition
        for condition in gpu.conditions
        if condition.finding.severity is not Severity.REMARK
    )
    return replace(gpu, conditions=tuple(kept))


class HealthFile:
    """The record of one driver, in the driver's own directory. For one thread at a time."""

    def __init__(self, directory: Path, boot_id: str) -> None:
        self._directory = directory
        self._boot_id = boot_id
        self._written: bytes | None = None
        self._once = LogOnce()

    def read(self) -> Mapping[str, GpuHealth]:
        """Return what was wrong in this boot, by UUID; a file that cannot be read is renamed."""
        try:
            record = read_health(self._directory)
        except StateError as error:
            with suppress(OSError):
                (self._directory / FILE).replace(self._directory / DAMAGED)
            log.warning("health record damaged", reason=str(error), kept=DAMAGED)
            return {}
        if record is None:
            return {}
        if record.boot_id != self._boot_id:
            log.info("gpus recovered by the reboot", gpus=sorted(record.gpus))
            return {}
        return record.gpus

    def write(self, gpus: Mapping[str, GpuHealth]) -> None:
        """Write what is wrong if it has changed since the last write; a failure is logged once."""
        sick = {
            uuid: kept for uuid, gpu in sorted(gpus.items()) if (kept := lasting(gpu)).conditions
        }
        data = seal(HealthRecord(boot_id=self._boot_id, gpus=sick))
        path = self._directory / FILE
        is_there = path.exists()
        if data == self._written or not (sick or is_there):
            return
        try:
            self._directory.mkdir(parents=True, exist_ok=True)
            write_whole(path, data, mode=0o600, durable=True)
        except OSError as error:
            reason = str(error.strerror or error)
            if self._once.is_new(reason):
                log.warning("health record not written", path=str(path), reason=reason)
            return
        self._once.forget()
        self._written = data


class HealthRequests:
    """The requests to one driver. Methods may be called from any thread."""

    def __init__(self, directory: Path) -> None:
        self._folder = directory / REQUESTS

    def pending(self) -> list[str]:
        """Return what is asked; nothing if the folder cannot be read."""
        return entries_of(self._folder)

    def end(self, request: str) -> None:
        """Delete a request that is done, or given up; a missing one is fine."""
        try:
            delete(self._folder / request)
        except OSError as error:
            log.warning("health request not deleted", file=request, reason=str(error))
