"""Device nodes of this machine, each GPU's and those that all share, as edits for containers.

In: names of nodes below the dev root. Out: edits with the node and, if only a group may open it,
that group. Type and numbers are written out, so that the runtime need not look at the host:
otherwise CDI calls lstat when the container starts, which may fail. The numbers are those of the
character device. Where no node can be made (simulated GPUs without root), a plain file stands for
it, and the major number comes from /proc/devices.

CUDA programs need nvidiactl and nvidia-uvm, so containers always get both. A missing nvidia-uvm is
made, if there is a maker. A node that is still missing is given by its numbers, which needs no node
on the host; if these are unknown, that is an error. The other nodes are for graphics and tools, and
are left out if they are missing or are not devices.
"""

import os
import re
import stat
from collections.abc import Callable
from pathlib import Path

import structlog
from msgspec.structs import replace

from dra_driver.cdi.model import DeviceNode, Edits, merged
from dra_driver.cdi.roots import Roots
from dra_driver.devices.driver_root.modprobe import BY_HAND
from dra_driver.errors import DeviceError
from dra_driver.host.files import text_of

UVM = "nvidia-uvm"
REQUIRED = ("nvidiactl", UVM)
OPTIONAL = ("nvidia-modeset", "nvidia-uvm-tools")
CONTROL_NODES = (*REQUIRED, *OPTIONAL)

_ANYONE_MAY_OPEN = 0o666  # the driver's default, unless its module parameters say otherwise

NodeMaker = Callable[[], str | None]
"""Makes nvidia-uvm's device node; returns the reason for a failure, or None."""

log = structlog.get_logger()

_ANYONE = 0o006
# The driver's name in /proc/devices and the minor number, by node name (devices.txt of the kernel's
# admin guide for 195, nvidia-uvm's source for the rest). Other names contain their minor number.
_CONTROL_NODES = {
    "nvidiactl": ("nvidia", 255),
    "nvidia-modeset": ("nvidia", 254),
    "nvidia-uvm": ("nvidia-uvm", 0),
    "nvidia-uvm-tools": ("nvidia-uvm", 1),
}
# The names under which kernel modules of any release register: nvidia-frontend until 560.
_DRIVER_NAMES = {
    "nvidia": ("nvidia", "nvidia-frontend"),
    "nvidia-uvm": ("nvidia-uvm",),
    "drm": ("drm",),
}
_MOST_DIGITS = 9  # a major number has 12 bits
_NUMBERED = re.compile(r"(?:nvidia|(?P<drm>dri/(?:card|renderD)))(?P<minor>[0-9]+)")


def node_edits(roots: Roots, name: str) -> Edits | None:
    """Return the edits for the node `name`, such as `nvidia0` or `dri/card1`; None if missing.

    Raises DeviceError if there is something with that name that no container can be given.
    """
    path = f"{roots.dev}/{name}"
    try:
        status = os.stat(path)  # noqa: PTH116 (a Path takes twice the time)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise DeviceError(f"device node {path} cannot be inspected: {error.strerror}") from error
    mode = stat.S_IMODE(status.st_mode)
    node = character_node(roots, name, *_numbers(roots.proc, path, name, status), mode)
    node = replace(node, gid=status.st_gid or None)
    for_group_only = status.st_gid and status.st_mode & _ANYONE != _ANYONE
    return Edits(device_nodes=(node,), additional_gids=(status.st_gid,) if for_group_only else ())


def character_node(roots: Roots, name: str, major: int, minor: int, mode: int) -> DeviceNode:
    """Return the node with a name and known numbers, without looking at the host's node."""
    in_container, on_host = f"/dev/{name}", roots.node_on_host(name)
    return DeviceNode(
        path=in_container,
        host_path=None if on_host == in_container else on_host,
        major=major,
        minor=minor,
        file_mode=mode,
    )


def _numbers(proc: Path, path: str, name: str, status: os.stat_result) -> tuple[int, int]:
    if stat.S_ISCHR(status.st_mode):
        return os.major(status.st_rdev), os.minor(status.st_rdev)
    if stat.S_ISREG(status.st_mode) and (known := known_numbers(proc, name)):
        return known
    raise DeviceError(
        f"{path} is not a character device; remove it and let nvidia-modprobe or"
        " nvidia-persistenced make the device node again"
    )


def known_numbers(proc: Path, name: str) -> tuple[int, int] | None:
    """Return the numbers of the node with a name; None while no kernel module has them."""
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
    for line in text_of(f"{proc}/devices").partition("Block devices:")[0].splitlines():
        number, _, name = line.strip().partition(" ")
        if name == driver and number.isdecimal() and len(number) <= _MOST_DIGITS:
            return int(number)
    return None


def control_edits(roots: Roots, make_uvm_nodes: NodeMaker | None) -> Edits:
    """Return edits with the nodes all GPUs share. Raises DeviceError without a required one."""
    required = [_required(roots, name, make_uvm_nodes) for name in REQUIRED]
    return merged(*required, *(_optional(roots, name) for name in OPTIONAL))


def _required(roots: Roots, name: str, make_uvm_nodes: NodeMaker | None) -> Edits:
    edits = node_edits(roots, name)
    if edits is not None:
        return edits
    problem = None
    if name == UVM and make_uvm_nodes is not None:
        problem = make_uvm_nodes()
        edits = node_edits(roots, name)
        if edits is not None:
            log.info("device node made", node=roots.node_on_host(name))
            return edits
    numbers = known_numbers(roots.proc, name)
    if numbers is None:
        raise DeviceError(_missing(roots, name, problem))
    node = character_node(roots, name, *numbers, _ANYONE_MAY_OPEN)
    return Edits(device_nodes=(replace(node, host_path=None),))


def _missing(roots: Roots, name: str, problem: str | None) -> str:
    text = f"device node {roots.node_on_host(name)} is missing, without which no CUDA program runs"
    if name == UVM:
        tried = f", and it could not be made ({problem})" if problem else ""
        return (
            f"{text}{tried}; run `{BY_HAND}` on the node, or load the kernel module nvidia-uvm at"
            " boot"
        )
    return f"{text}; load the GPU driver (modprobe nvidia), and see dmesg if that fails"


def _optional(roots: Roots, name: str) -> Edits:
    try:
        return node_edits(roots, name) or Edits()
    except DeviceError as error:
        log.warning("device node left out", node=roots.node_on_host(name), reason=str(error))
        return Edits()
