"""The driver's shared libraries under a driver root, and the links a loader needs beside them.

In: the driver root. Out: the driver's version, its libraries and links, as paths inside the root.
Which files belong to the driver follows NVIDIA's container toolkit (pkg/nvcdi): everything named
`*.so.<driver version>` in the folders that hold the driver's libraries, whatever it is, because
each release adds some. Links: ldconfig would make the SONAME ones; the others are those that
NVIDIA's installer makes and programs open by name.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from dra_driver.cdi.elf import read_soname
from dra_driver.devices import libraries, rooted
from dra_driver.errors import DeviceError

_VERSION = re.compile(r"\.so\.(\d+(?:\.\d+)+)$")

# Libraries of the driver that carry a version of their own.
_OTHER_VERSIONS = (
    "libnvidia-nvvm70.so.*",
    "libnvidia-egl-gbm.so.*.*",
    "libnvidia-egl-wayland.so.*.*",
    "libnvidia-egl-wayland2.so.*.*",
    "libnvidia-egl-xcb.so.*.*",
    "libnvidia-egl-xlib.so.*.*",
)
_XORG_MODULES = ("nvidia_drv.so", "libglxserver_nvidia.so.{version}")
_XORG_FOLDERS = tuple(
    f"{base}/{modules}/{kind}"
    for base in ("/usr/lib/xorg", "/usr/lib64/xorg", "/usr/X11R6/lib", "/usr/X11R6/lib64")
    for modules in ("modules", "modules/updates")
    for kind in ("drivers", "extensions")
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Library:
    """A library file. `path` is inside the driver root and no link."""

    path: str
    soname: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """A link to a library that containers need. `path` is inside the root, `target` as link text.

    `library` is the file that it leads to in the end. The link need not exist in the root.
    """

    path: str
    target: str
    library: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverLibraries:
    """All libraries of one driver version. `folders` are those the loader has to search."""

    version: str
    folders: tuple[str, ...]
    libraries: tuple[Library, ...]
    links: tuple[Link, ...]


def find_driver_libraries(root: Path) -> DriverLibraries:
    """Find the libraries of the driver that is installed under a root.

    Raises:
        DeviceError: there is none.
        OSError: a folder or library cannot be read.
    """
    version = _driver_version(root)
    versioned = libraries.locate(root, f"lib*.so.{version}")
    folders = _unique(_folder(path) for path in versioned)
    search = [each for folder in folders for each in (folder, f"{folder}/vdpau")]
    found = [path for folder in search for path in _files(root, folder, f"*.so.{version}")]
    found += [path for pattern in _OTHER_VERSIONS for path in libraries.locate(root, pattern)]
    loaded = _unique(found)
    every = [
        Library(path=path, soname=read_soname(rooted.outside(root, path)))
        for path in _unique([*loaded, *_xorg_modules(root, folders, version)])
    ]
    links = [link for library in every for link in _links(root, library, version)]
    return DriverLibraries(
        version=version,
        folders=_unique(_folder(path) for path in loaded),
        libraries=tuple(every),
        links=tuple({link.path: link for link in reversed(links)}.values())[::-1],
    )


def _driver_version(root: Path) -> str:
    """Return the version in the file name that the driver's main libraries' links lead to."""
    for name in ("libcuda.so.1", "libnvidia-ml.so.1"):
        for path in libraries.locate(root, name):
            if match := _VERSION.search(path):
                return match[1]
    for pattern in ("libcuda.so.*.*", "libnvidia-ml.so.*.*"):
        versions = [
            match[1] for path in libraries.locate(root, pattern) if (match := _VERSION.search(path))
        ]
        if versions:
            return max(versions, key=lambda text: [int(part) for part in text.split(".")])
    raise DeviceError(
        f"no NVIDIA driver libraries under {root}: neither libcuda.so.1 nor libnvidia-ml.so.1"
        f" (looked in {libraries.SEARCHED});"
        " install the NVIDIA driver, or point --nvidia-driver-root at where it is"
    )


def _links(root: Path, library: Library, version: str) -> Iterator[Link]:
    folder, name = _folder(library.path), PurePosixPath(library.path).name
    stem = name.partition(".so")[0]
    soname = library.soname or name
    wanted = {soname: name}
    if rooted.resolve(root, f"{folder}/{stem}.so"):
        wanted[f"{stem}.so"] = soname
    wanted |= _ALWAYS.get(stem, {})
    for link, target in wanted.items():
        if link != name:
            text = target.format(version=version)
            yield Link(path=f"{folder}/{link}", target=text, library=library.path)


# By the library's stem: links that programs open by name, which not every installer makes.
_ALWAYS = {
    "libcuda": {"libcuda.so": "libcuda.so.1"},
    "libGLX_nvidia": {"libGLX_indirect.so.0": "libGLX_nvidia.so.{version}"},
    "libnvidia-opticalflow": {"libnvidia-opticalflow.so": "libnvidia-opticalflow.so.1"},
    "libnvidia-vulkan-producer": {
        "libnvidia-vulkan-producer.so": "libnvidia-vulkan-producer.so.{version}"
    },
    "libglxserver_nvidia": {"libglxserver_nvidia.so": "libglxserver_nvidia.so.{version}"},
    "libnvidia-allocator": {"gbm/nvidia-drm_gbm.so": "../libnvidia-allocator.so.1"},
}


def _xorg_modules(root: Path, folders: tuple[str, ...], version: str) -> Iterator[str]:
    near = [
        f"{folder}/{path}"
        for folder in folders
        for path in (
            "nvidia/xorg",
            "xorg/modules/drivers",
            "xorg/modules/extensions",
            "xorg/modules/updates/drivers",
            "xorg/modules/updates/extensions",
        )
    ]
    for pattern in _XORG_MODULES:
        name = pattern.format(version=version)
        found = (path for folder in (*near, *_XORG_FOLDERS) for path in _files(root, folder, name))
        first = next(found, None)
        if first is not None:
            yield first


def _files(root: Path, folder: str, pattern: str) -> Iterator[str]:
    for path in rooted.matches(root, folder, pattern):
        resolved = rooted.resolve(root, path)
        if resolved is not None and rooted.outside(root, resolved).is_file():
            yield resolved


def _folder(path: str) -> str:
    return str(PurePosixPath(path).parent)


def _unique(paths: "Iterator[str] | list[str]") -> tuple[str, ...]:
    return tuple(dict.fromkeys(paths))
