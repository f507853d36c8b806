"""Device nodes of the node, as edits that let a container open them.

In: the name of a node below the dev root. Out: edits with the node and, where only a group may open
it, that group. Type and numbers are written out, so that the runtime needs no second look at the
host: CDI fills gaps by lstat when the container starts, and fails then.
Numbers: a char device's own; a plain file stands for a node where nobody may make one (simulated
GPUs without root), and then /proc/devices says the major number.
"""

import os
import re
import stat
from dataclasses import replace
from pathlib import Path

from dra_driver.cdi.model import DeviceNode, Edits
from dra_driver.cdi.roots import Roots
from dra_driver.errors import DeviceError

_ANYONE = 0o006
_ALL_PERMISSIONS = "rwm"
# By node name: the driver's name in /proc/devices and the minor number (devices.txt of the kernel's
# admin guide for 195, nvidia-uvm's source for the rest). The number in any other name is its minor.
_CONTROL_NODES = {
    "nvidiactl": ("nvidia", 255),
    "nvidia-modeset": ("nvidia", 254),
    "nvidia-uvm": ("nvidia-uvm", 0),
    "nvidia-uvm-tools": ("nvidia-uvm", 1),
}
# What the kernel module registered as, by release: nvidia-frontend until 560.
_DRIVER_NAMES = {
    "nvidia": ("nvidia", "nvidia-frontend"),
    "nvidia-uvm": ("nvidia-uvm",),
    "drm": ("drm",),
}
_MOST_DIGITS = 9  # a major number has 12 bits
_NUMBERED = re.compile(r"(?:nvidia|(?P<drm>dri/(?:card|renderD)))(?P<minor>[0-9]+)")


def renamed(node: DeviceNode, path: str) -> DeviceNode:
    """Return a node of the host as another path in the container."""
    return replace(node, path=path, host_path=node.host_path or node.path)


def node_edits(roots: Roots, name: str) -> Edits | None:
    """Return the edits that give a container the node `name`, such as `nvidia0` or `dri/card1`.

    Args:
        roots: where the node is.
        name: path below the dev root.

    Returns:
        None if there is no such node.

    Raises:
        DeviceError: there is something of that name which cannot be given to a container.
    """
    path = roots.dev / name
    try:
        status = path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise DeviceError(f"device node {path} cannot be inspected: {error.strerror}") from error
    major, minor = _numbers(roots.proc, path, name, status)
    in_container = f"/dev/{name}"
    on_host = roots.node_on_host(name)
    node = DeviceNode(
        path=in_container,
        host_path=None if on_host == in_container else on_host,
        type="c",
        major=major,
        minor=minor,
        file_mode=stat.S_IMODE(status.st_mode),
        permissions=_ALL_PERMISSIONS,
        gid=status.st_gid or None,
    )
    for_group_only = status.st_gid and status.st_mode & _ANYONE != _ANYONE
    return Edits(device_nodes=(node,), additional_gids=(status.st_gid,) if for_group_only else ())


def _numbers(proc: Path, path: Path, name: str, status: os.stat_result) -> tuple[int, int]:
    if stat.S_ISCHR(status.st_mode):
        return os.major(status.st_rdev), os.minor(status.st_rdev)
    if stat.S_ISREG(status.st_mode) and (known := known_numbers(proc, name)):
        return known
    raise DeviceError(
        f"{path} is not a character device; remove it and let nvidia-modprobe or"
        " nvidia-persistenced make the device node again"
    )


def known_numbers(proc: Path, name: str) -> tuple[int, int] | None:
    """Return the numbers that a node has by its name, None while no kernel driver has them."""
    if name in _CONTROL_NODES:
        driver, minor = _CONTROL_NODES[name]
    elif match := _NUMBERED.fullmatch(name):
        driver, minor = ("drm" if match["drm"] else "nvidia"), int(match["minor"])
    else:
        return None
    majors = (character_major(proc, registered) for registered in _DRIVER_NAMES[driver])
    major = next((major for major in majors if major is not None), None)
    return None if major is None else (major, minor)


def character_major(proc: Path, driver: str) -> int | None:
    """Return the major number of a character device driver, from /proc/devices."""
    try:
        text = (proc / "devices").read_text(errors="replace")
    except OSError:
        return None
    for line in text.partition("Block devices:")[0].splitlines():
        number, _, name = line.strip().partition(" ")
        if name == driver and number.isdecimal() and len(number) <= _MOST_DIGITS:
            return int(number)
    return None
