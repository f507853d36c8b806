"""The driver's modules of the X server, for containers that run one.

In: the driver root, and the version of the driver. Out: for each module the path where X.Org looks
for it, and the file. That path may be a link to elsewhere, as Debian's alternatives are. Containers
get the file at the very path, since X.Org searches no other.
"""

from collections.abc import Iterator
from pathlib import Path

from dra_driver.devices.driver_root import libraries, rooted

# By each name that X.Org or an installer gives it; the first that is there stands.
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


def xorg_modules(root: Path, folders: tuple[str, ...], version: str) -> Iterator[tuple[str, str]]:
    """Yield path and source of X.Org's modules.

    Args:
        root: the driver root.
        folders: where the driver's libraries are, as some distributions have X.Org's below.
        version: the driver's.
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
        found = (
            file
            for name in names
            for folder in (*near, *_XORG_FOLDERS)
            for file in _modules(root, folder, name.format(version=version))
            if libraries.version_of(file[1]) in (None, version)
        )
        first = next(found, None)
        if first is not None:
            yield first


def _modules(root: Path, folder: str, name: str) -> Iterator[tuple[str, str]]:
    for path in rooted.matches(root, folder, name):
        source = rooted.resolve(root, path)
        if source is not None and rooted.outside(root, source).is_file():
            yield path, source
