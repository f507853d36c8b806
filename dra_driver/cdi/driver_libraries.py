"""The running driver's shared libraries under a driver root, and the links a loader needs.

In: the driver root, and the version of the running driver. Out: the libraries of only that version,
and their links, as paths inside the root. A root may have several versions: files that an upgrade
left behind, CUDA's compatibility libraries, or another driver beside the one in the distribution's
folder. The driver's kernel module refuses programs whose libcuda has another version.

Which files belong to the driver is decided as in NVIDIA's container toolkit (pkg/nvcdi): everything
named `*.so.<driver version>` in the folders of the driver's libraries, because each release adds
some. Links named by a SONAME are those that ldconfig would make. NVIDIA's installer makes the
others, which programs open by name.
"""

import re
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePosixPath

from msgspec import Struct

from dra_driver.devices.driver_root import libraries, rooted
from dra_driver.devices.driver_root.elf import read_soname
from dra_driver.devices.driver_root.libraries import Found
from dra_driver.errors import DeviceError

# Libraries that only the driver has, which show that a folder is the driver's.
_DRIVERS_OWN = re.compile(r"lib(?:cuda|cudadebugger|nvidia-.+|.+_nvidia|nvcuvid|nvoptix)")
_CUDA = "libcuda"

# Libraries of the driver that have versions of their own.
_OTHER_VERSIONS = (
    "libnvidia-nvvm70.so.*",
    "libnvidia-egl-gbm.so.*.*",
    "libnvidia-egl-wayland.so.*.*",
    "libnvidia-egl-wayland2.so.*.*",
    "libnvidia-egl-xcb.so.*.*",
    "libnvidia-egl-xlib.so.*.*",
)


class Library(Struct, frozen=True, kw_only=True):
    """A library file.

    Attributes:
        source: the file inside the driver root, not a link.
        path: its path in containers; the same, except for files that programs find by a link.
        soname: the name under which the loader looks for it.
    """

    source: str
    path: str
    soname: str | None


class Link(Struct, frozen=True, kw_only=True):
    """A link to a library that containers need. `path` is inside the root, `target` is its text.

    `library` is the file that it finally leads to. The link need not exist in the root.
    """

    path: str
    target: str
    library: str


class DriverLibraries(Struct, frozen=True, kw_only=True):
    """All libraries of one driver version.

    `folders` are those that the loader has to search, and `main_folders` are those that contain
    libraries of this version.
    """

    version: str
    main_folders: tuple[str, ...]
    folders: tuple[str, ...]
    libraries: tuple[Library, ...]
    links: tuple[Link, ...]

    def by_name(self) -> dict[str, str]:
        """Return the sources of all files that a loader opens by name, by name without folder."""
        named = [(library.path, library.soname, library.source) for library in self.libraries]
        named += [(link.path, None, link.library) for link in self.links]
        sources: dict[str, str] = {}
        for path, soname, source in named:
            if _folder(path) in self.folders:
                sources.setdefault(soname or path.rpartition("/")[2], source)
        return sources


def find_driver_libraries(root: Path, running: str | None) -> DriverLibraries:
    """Find the libraries of the running driver; if that is unknown, of the loader's version.

    Raises DeviceError if there are none, none of that version, or libcuda is not among them, and
    OSError if a folder or library cannot be read.
    """
    every = libraries.find_all(root, _DRIVERS_OWN)
    version = running or _installed_version(every)
    if version is None:
        raise DeviceError(
            f"no GPU driver libraries under {root}: neither libcuda.so.1 nor libnvidia-ml.so.1"
            f" (looked in {libraries.SEARCHED});"
            " install the GPU driver, or point --nvidia-driver-root at where it is"
        )
    versioned = _shown(every, f"lib*.so.{version}")
    main_folders = _unique(_folder(path) for path in versioned)
    loaded = versioned | {
        path: source
        for folder in main_folders
        for search in (folder, f"{folder}/vdpau")
        for path, source in _files(root, search, f"*.so.{version}")
    }
    if not any(_stem(path) == _CUDA for path in loaded):
        raise DeviceError(_without_cuda(root, version, every))
    loaded |= _of_other_versions(every)
    modules = dict(_xorg_modules(root, main_folders, version))
    there = [
        Library(source=source, path=path, soname=read_soname(rooted.outside(root, source)))
        for path, source in (loaded | modules).items()
    ]
    links = [link for library in there for link in _links(root, library, version)]
    return DriverLibraries(
        version=version,
        main_folders=main_folders,
        folders=_unique(_folder(path) for path in loaded),
        libraries=tuple(there),
        links=tuple({link.path: link for link in reversed(links)}.values())[::-1],
    )


def _installed_version(every: tuple[Found, ...]) -> str | None:
    """Return the version that the loader would take, or else the highest one installed."""
    for name in ("libcuda.so.1", "libnvidia-ml.so.1"):
        for library in every:
            if library.named(name) and (versions := _versions(library)):
                return versions[-1]
    installed = {
        version
        for shown in every
        if _stem(shown.paths[0]) in (_CUDA, "libnvidia-ml")
        for version in _versions(shown)
    }
    return max(installed, key=_parts, default=None)


def _shown(every: tuple[Found, ...], pattern: str) -> dict[str, str]:
    """Return the path and source of each file with a matching name, in search order."""
    named = ((library.named(pattern), library.source) for library in every)
    return {path: source for path, source in named if path}


def _of_other_versions(every: tuple[Found, ...]) -> dict[str, str]:
    """Return the path and source of the libraries with versions of their own, one of each.

    If a folder has several, the one that a link leads to is used, as the loader does; otherwise
    the newest is used.
    """
    chosen: dict[tuple[str, str], tuple[tuple[bool, list[int]], str, str]] = {}
    for pattern in _OTHER_VERSIONS:
        for library in every:
            if path := library.named(pattern):
                place = _folder(path), pattern
                rank = len(library.paths) > 1, _parts(path.partition(".so.")[2])
                if place not in chosen or chosen[place][0] < rank:
                    chosen[place] = rank, path, library.source
    return {path: source for _, path, source in chosen.values()}


def _without_cuda(root: Path, version: str, every: tuple[Found, ...]) -> str:
    others = sorted(
        {
            (path, other)
            for library in every
            if _stem(library.paths[0]) in (_CUDA, "libnvidia-ml")
            for path, other in ((library.source, other) for other in _versions(library)[-1:])
            if other != version
        }
    )
    text = f"libcuda.so.{version} of the running GPU driver {version} is not under {root}"
    if not others:
        return (
            f"{text} (looked in {libraries.SEARCHED}); install the driver's compute libraries"
            " (libnvidia-compute, libcuda1, nvidia-driver-cuda-libs), or point"
            " --nvidia-driver-root at where they are"
        )
    versions = ", ".join(sorted({other for _, other in others}, key=_parts))
    return (
        f"{text}, which has libraries of version {versions} ({others[0][0]}); complete the"
        " driver's upgrade or reboot the node, or point --nvidia-driver-root at the libraries of"
        " the running driver"
    )


def _versions(library: Found) -> list[str]:
    versions = map(libraries.version_of, library.paths)
    return [version for version in versions if version]


def _parts(version: str) -> list[int]:
    return [int(part) for part in version.split(".") if part.isdecimal()]


def _links(root: Path, library: Library, version: str) -> Iterator[Link]:
    folder, name = _folder(library.path), PurePosixPath(library.path).name
    stem = _stem(name)
    soname = library.soname or name
    wanted = {soname: name} if library.soname else _links_on_disk(root, library, stem)
    if rooted.resolve(root, f"{folder}/{stem}.so"):
        wanted[f"{stem}.so"] = soname
    always = _ALWAYS.get(stem, {}).items()
    wanted = {link: text.format(name=name, version=version) for link, text in always} | wanted
    for link, target in wanted.items():
        if link != name:
            yield Link(path=f"{folder}/{link}", target=target, library=library.source)


def _links_on_disk(root: Path, library: Library, stem: str) -> dict[str, str]:
    """Return the links beside a library without SONAME that lead to it: programs open these."""
    name = PurePosixPath(library.path).name
    beside = rooted.matches(root, _folder(library.path), f"{stem}.so.*")
    return {
        path.rpartition("/")[2]: name
        for path in beside
        if rooted.resolve(root, path) == library.source
    }


# Links, by the library's stem, that programs open by name and that not every installer makes.
_ALWAYS = {
    "libcuda": {"libcuda.so.1": "{name}", "libcuda.so": "libcuda.so.1"},
    "libGLX_nvidia": {"libGLX_indirect.so.0": "libGLX_nvidia.so.{version}"},
    "libnvidia-opticalflow": {"libnvidia-opticalflow.so": "libnvidia-opticalflow.so.1"},
    "libnvidia-vulkan-producer": {
        "libnvidia-vulkan-producer.so": "libnvidia-vulkan-producer.so.{version}"
    },
    "libglxserver_nvidia": {"libglxserver_nvidia.so": "libglxserver_nvidia.so.{version}"},
    "libnvidia-allocator": {"gbm/nvidia-drm_gbm.so": "../libnvidia-allocator.so.1"},
}


def _files(root: Path, folder: str, pattern: str) -> Iterator[tuple[str, str]]:
    """Yield the path and source of each match; the path is the last of its links that matches."""
    for path in rooted.matches(root, folder, pattern):
        paths = rooted.chain(root, path)
        if paths and rooted.outside(root, paths[-1]).is_file():
            library = Found(paths)
            yield library.named(pattern) or path, library.source


def _folder(path: str) -> str:
    return str(PurePosixPath(path).parent)


def _stem(path: str) -> str:
    return path.rpartition("/")[2].partition(".so")[0]


def _unique(paths: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(paths))


# The names that X.Org or an installer gives to each module; the first that exists is used.
_XORG_MODULES = (
    ("nvidia_drv.so",),
    ("libglxserver_nvidia.so.{version}", "libglxserver_nvidia.so"),
)
_XORG_FOLDERS = tuple(
    f"{base}/{modules}/{kind}"
    for base in ("/usr/lib/xorg", "/usr/lib64/xorg", "/usr/X11R6/lib", "/usr/X11R6/lib64")
    for modules in ("modules", "modules/updates")
    for kind in ("drivers", "extensions")
)


def _xorg_modules(root: Path, folders: tuple[str, ...], version: str) -> Iterator[tuple[str, str]]:
    """Yield the path where X.Org looks for each of the driver's modules, and the file.

    That path may be a link, as with Debian's alternatives. Containers get the file at that path,
    because X.Org searches nowhere else. Some distributions have X.Org's folders below the folders
    of the driver's libraries.
    """
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
    for names in _XORG_MODULES:
        modules = (
            file
            for name in names
            for folder in (*near, *_XORG_FOLDERS)
            for file in _modules(root, folder, name.format(version=version))
            if libraries.version_of(file[1]) in (None, version)
        )
        first = next(modules, None)
        if first is not None:
            yield first


def _modules(root: Path, folder: str, name: str) -> Iterator[tuple[str, str]]:
    for path in rooted.matches(root, folder, name):
        source = rooted.resolve(root, path)
        if source is not None and rooted.outside(root, source).is_file():
            yield path, source
