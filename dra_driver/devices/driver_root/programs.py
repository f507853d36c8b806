"""Where a driver root keeps its programs.

The first folders and their order are those of root's PATH, which NVIDIA's container toolkit
searches too; the others are where some distributions and installers put the driver's programs. The
CDI hook program is not one of these: it belongs to the container toolkit (cdi/hooks.py).
"""

import stat
from pathlib import Path

from msgspec import Struct

from dra_driver.devices.driver_root import rooted

NVIDIA_SMI = "nvidia-smi"
MPS_CONTROL = "nvidia-cuda-mps-control"
MPS_SERVER = "nvidia-cuda-mps-server"

PATH_FOLDERS = ("/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin")
"""The folders that are in a container's PATH as well."""

_OTHER_FOLDERS = (
    "/usr/lib/nvidia/current",  # Debian, where update-alternatives has not been run
    "/opt/bin",
    "/usr/local/nvidia/bin",
)
_FOLDERS = (*PATH_FOLDERS, *_OTHER_FOLDERS)

_ELF = b"\x7fELF"

SEARCHED = ", ".join(_FOLDERS)
"""Where programs are looked for, in words."""


class Program(Struct, frozen=True, kw_only=True):
    """An executable file of a driver root.

    `folder` is where it was found and `source` is the file itself, with every symbolic link
    followed; both are paths inside the root. `path` is where this process finds that file.
    """

    folder: str
    source: str
    path: Path


def find_program(root: Path, name: str) -> Program | None:
    """Return the first executable file of this name; None if there is none. Raises OSError.

    A script is the last choice, because it starts a program elsewhere that a container lacks.
    """
    script = None
    for folder in _FOLDERS:
        source = rooted.resolve(root, f"{folder}/{name}")
        if source is not None and _is_executable(path := rooted.outside(root, source)):
            program = Program(folder=folder, source=source, path=path)
            with path.open("rb") as file:
                if file.read(len(_ELF)) == _ELF:
                    return program
            script = script or program
    return script


def _is_executable(path: Path) -> bool:
    mode = path.stat().st_mode
    return stat.S_ISREG(mode) and bool(mode & 0o111)
