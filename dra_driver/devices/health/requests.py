"""What an admin asks the running driver about GPUs: files in its directory, which are root's.

In: files that `dra-driver health` (admin/health.py) writes, each named by what is asked. Out: what
is asked, until it is done; then the file is deleted, for which the command waits.
"""

import os
from pathlib import Path

import structlog

from dra_driver.host.files import delete

FOLDER = "health-requests"
"""The folder's name in the driver's directory."""

RELEASE = "release"
"""The file that asks the driver to close NVML; others have the UUIDs of GPUs whose faults end."""

RELEASE_SECONDS = 600.0
"""How long NVML then stays closed between looks."""

log = structlog.get_logger()


class HealthRequests:
    """The requests to one driver. Methods may be called from any thread."""

    def __init__(self, directory: Path) -> None:
        self._folder = directory / FOLDER

    def pending(self) -> list[str]:
        """Return what is asked; nothing if the folder cannot be read."""
        try:
            return os.listdir(self._folder)  # noqa: PTH208 (names are what is wanted)
        except OSError:
            return []

    def ask(self, request: str) -> None:
        """Ask for something. Raises OSError if the disk refuses."""
        self._folder.mkdir(mode=0o700, exist_ok=True)
        (self._folder / request).touch(mode=0o600)

    def end(self, request: str) -> None:
        """Delete a request that is done, or given up; a missing one is fine."""
        try:
            delete(self._folder / request)
        except OSError as error:
            log.warning("health request not deleted", file=request, reason=str(error))
