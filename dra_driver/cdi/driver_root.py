"""The files of the GPU driver that every container with a GPU gets.

In: the roots (cdi/roots.py). Out: `DriverFiles`: libraries with their links, programs, firmware,
configuration and sockets, each with its path inside the driver root. These are the files that
`nvidia-ctk cdi generate` lists, found by patterns where possible. Two of them are left out on
purpose. One is the host's own /tmp/nvidia-mps: a claim's MPS daemon has that path in containers,
and pods must not reach the host's daemon. The other is nvidia-persistenced's socket: through it, a
process with UID 0, such as root in a container, could set the mode of every GPU
(nvidia-persistenced, command_server.c), and no CUDA program needs it.
"""

import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from msgspec import Struct

from dra_driver.cdi.driver_libraries import DriverLibraries, find_driver_libraries
from dra_driver.cdi.roots import Roots
from dra_driver.devices.driver_root import rooted
from dra_driver.devices.driver_root.programs import (
    MPS_CONTROL,
    MPS_SERVER,
    NVIDIA_SMI,
    PATH_FOLDERS,
    find_program,
)
from dra_driver.errors import DeviceError

_PROGRAMS = (
    NVIDIA_SMI,
    "nvidia-debugdump",
    "nvidia-persistenced",
    MPS_CONTROL,
    MPS_SERVER,
    "nvidia-imex",
    "nvidia-imex-ctl",
    "nvidia-xconfig",
)
_SOCKETS = ("nvidia-fabricmanager/socket",)
_RUN_FOLDERS = ("/run", "/var/run")
_CONFIG_FOLDERS = ("/etc", "/usr/local/share", "/usr/share")
# Names to look for in the config folders, by their folder in containers.
_CONFIGS = {
    "/usr/share": (
        "glvnd/egl_vendor.d/10_nvidia.json",
        "egl/egl_external_platform.d/15_nvidia_gbm.json",
        "egl/egl_external_platform.d/10_nvidia_wayland.json",
        "egl/egl_external_platform.d/09_nvidia_wayland2.json",
        "egl/egl_external_platform.d/20_nvidia_xcb.json",
        "egl/egl_external_platform.d/20_nvidia_xlib.json",
        "nvidia/nvoptix.bin",
        "X11/xorg.conf.d/10-nvidia.conf",
        "X11/xorg.conf.d/nvidia-drm-outputclass.conf",
    ),
    "/etc": (
        "OpenCL/vendors/nvidia.icd",
        "vulkan/icd.d/nvidia_icd.json",
        "vulkan/icd.d/nvidia_icd.x86_64.json",
        "vulkan/icd.d/nvidia_icd.aarch64.json",
        "vulkan/icd.d/nvidia_layers.json",
        "vulkan/implicit_layer.d/nvidia_layers.json",
    ),
}


class DriverFile(Struct, frozen=True, kw_only=True):
    """A file for containers. `source` is inside the driver root, and not a link."""

    source: str
    container_path: str


class DriverFiles(Struct, frozen=True, kw_only=True):
    """All files of the driver that containers share, except device nodes."""

    libraries: DriverLibraries
    programs: tuple[DriverFile, ...]
    firmware: tuple[DriverFile, ...]
    configs: tuple[DriverFile, ...]
    sockets: tuple[DriverFile, ...]


def find_driver_files(
    roots: Roots, *, kernel_release: str, running: str | None = None
) -> DriverFiles:
    """Return the files under the driver root; `running` is the running driver's version, if known.

    Raises DeviceError if there is no driver, if it is not the running one, or on a read error.
    """
    try:
        libraries = find_driver_libraries(roots.driver, running)
        return DriverFiles(
            libraries=libraries,
            programs=tuple(_programs(roots.driver)),
            firmware=tuple(_firmware(roots, libraries.version, kernel_release)),
            configs=tuple(_configs(roots.driver)),
            sockets=tuple(_sockets(roots.driver)),
        )
    except OSError as error:
        raise DeviceError(
            f"the GPU driver's files under {roots.driver} cannot be read: {error.strerror}"
            f" ({error.filename}); check the mount of the driver root"
        ) from error


def watched_paths(roots: Roots, files: DriverFiles) -> tuple[Path, ...]:
    """Return folders, one of which changes whenever the driver's files must be found again."""
    inside = (
        *files.libraries.folders,
        *PATH_FOLDERS,
        *(f"{run}/{os.path.dirname(socket)}" for run in _RUN_FOLDERS for socket in _SOCKETS),  # noqa: PTH120
        *(os.path.dirname(firmware.container_path) for firmware in files.firmware),  # noqa: PTH120
    )
    return tuple(rooted.outside(roots.driver, path) for path in dict.fromkeys(inside))


def _programs(root: Path) -> Iterator[DriverFile]:
    for name in _PROGRAMS:
        program = find_program(root, name)
        if program is not None:
            # Containers find programs by PATH, which has none of the other folders.
            folder = program.folder if program.folder in PATH_FOLDERS else "/usr/bin"
            yield DriverFile(source=program.source, container_path=f"{folder}/{name}")


def _firmware(roots: Roots, version: str, kernel_release: str) -> Iterator[DriverFile]:
    """Yield each firmware file where the kernel would find it: in the first folder that has it."""
    names = set()
    for folder in _firmware_folders(roots.sys, kernel_release):
        for path in rooted.matches(roots.driver, f"{folder}/nvidia/{version}", "gsp*.bin"):
            name = path.rpartition("/")[2]
            source = rooted.resolve(roots.driver, path)
            if source is not None and name not in names:
                names.add(name)
                shown = f"{folder}/nvidia/{version}/{name}"
                yield DriverFile(source=source, container_path=shown)


def _firmware_folders(sys: Path, kernel_release: str) -> Iterable[str]:
    """Return the kernel's firmware search path, in its order (drivers/base/firmware_loader)."""
    try:
        chosen = os.fsdecode((sys / "module/firmware_class/parameters/path").read_bytes()).strip()
    except OSError:
        chosen = ""
    return (
        *([chosen] if chosen.startswith("/") and "\0" not in chosen else []),
        f"/lib/firmware/updates/{kernel_release}",
        "/lib/firmware/updates",
        f"/lib/firmware/{kernel_release}",
        "/lib/firmware",
    )


def _configs(root: Path) -> Iterator[DriverFile]:
    for shown, names in _CONFIGS.items():
        # GKE keeps the vulkan folder at the top of the driver root.
        folders = (*_CONFIG_FOLDERS, "") if shown == "/etc" else _CONFIG_FOLDERS
        for name in names:
            for folder in folders:
                source = rooted.resolve(root, f"{folder}/{name}")
                if source is not None and rooted.outside(root, source).is_file():
                    yield DriverFile(source=source, container_path=f"{shown}/{name}")
                    break


def _sockets(root: Path) -> Iterator[DriverFile]:
    for name in _SOCKETS:
        for folder in _RUN_FOLDERS:
            source = rooted.resolve(root, f"{folder}/{name}")
            if source is not None and not rooted.outside(root, source).is_dir():
                yield DriverFile(source=source, container_path=f"{folder}/{name}")
                break
