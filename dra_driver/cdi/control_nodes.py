"""The device nodes that all GPUs share: nvidiactl, nvidia-uvm and their like.

In: the roots. Out: edits with the nodes. Without nvidiactl and nvidia-uvm no CUDA program runs, so
a container gets them in any case: nodes that are missing are made, or given by number, which needs
none on the host, or their absence is an error. The others are for graphics and tools; one that is
missing or no device is left out.
"""

from collections.abc import Callable

import structlog

from dra_driver.cdi.model import DeviceNode, Edits, merged
from dra_driver.cdi.nodes import known_numbers, node_edits
from dra_driver.cdi.roots import Roots
from dra_driver.devices.driver_root.modprobe import BY_HAND
from dra_driver.errors import DeviceError

UVM = "nvidia-uvm"
REQUIRED = ("nvidiactl", UVM)
OPTIONAL = ("nvidia-modeset", "nvidia-uvm-tools")
CONTROL_NODES = (*REQUIRED, *OPTIONAL)

_ANYONE_MAY_OPEN = 0o666  # as the driver makes them, unless its module parameters say otherwise

NodeMaker = Callable[[], str | None]

log = structlog.get_logger()


def control_edits(roots: Roots, make_uvm_nodes: NodeMaker | None) -> Edits:
    """Return the edits with the control nodes.

    Args:
        roots: where the nodes are.
        make_uvm_nodes: has nvidia-uvm made on the node; returns why that is not possible. None:
            nothing is to be changed.

    Raises:
        DeviceError: a node that every CUDA program needs cannot be had.
    """
    required = [_required(roots, name, make_uvm_nodes) for name in REQUIRED]
    return merged(*required, *(_optional(roots, name) for name in OPTIONAL))


def _required(roots: Roots, name: str, make_uvm_nodes: NodeMaker | None) -> Edits:
    found = node_edits(roots, name)
    if found is not None:
        return found
    problem = None
    if name == UVM and make_uvm_nodes is not None:
        problem = make_uvm_nodes()
        found = node_edits(roots, name)
        if found is not None:
            log.info("device node made", node=roots.node_on_host(name))
            return found
    numbers = known_numbers(roots.proc, name)
    if numbers is None:
        raise DeviceError(_missing(roots, name, problem))
    major, minor = numbers
    node = DeviceNode(
        path=f"/dev/{name}",
        type="c",
        major=major,
        minor=minor,
        file_mode=_ANYONE_MAY_OPEN,
        permissions="rwm",
    )
    return Edits(device_nodes=(node,))


def _missing(roots: Roots, name: str, problem: str | None) -> str:
    text = f"device node {roots.node_on_host(name)} is missing, without which no CUDA program runs"
    if name == UVM:
        tried = f", and it could not be made ({problem})" if problem else ""
        return (
            f"{text}{tried}; run `{BY_HAND}` on the node, or load the kernel module nvidia-uvm at"
            " boot"
        )
    return f"{text}; load the NVIDIA kernel driver (modprobe nvidia), and see dmesg if that fails"


def _optional(roots: Roots, name: str) -> Edits:
    try:
        return node_edits(roots, name) or Edits()
    except DeviceError as error:
        log.warning("device node left out", node=roots.node_on_host(name), reason=str(error))
        return Edits()
