"""Whether a device plugin gives out this node's GPUs too, in which case nothing of them is offered.

In: the Node's `status.allocatable`, as it changes. Out: why GPUs are withheld, and a call when that
has become another. Rule: Kubernetes counts what a device plugin has and what ResourceSlices have
apart from each other, and takes an extended resource from the plugin as long as its count on the
node is above zero (KEP-5004): whoever offered the same GPUs beside it would have them given out
twice.
"""

import re
import threading
from collections.abc import Callable
from typing import Protocol

import structlog

from dra_driver.kube.own_node import Allocatable
from resource_nvidia_com.quantity import quantity_bytes

log = structlog.get_logger()

_OF_GPUS = re.compile(r"nvidia\.com/(gpu|mig-).*")
"""What NVIDIA's device plugin calls GPUs and their parts."""


class Node(Protocol):
    """Follows this driver's Node (kube/own_node.py)."""

    def listen_allocatable(self, listener: Callable[[Allocatable], object]) -> None:
        """Have a listener called at the start and at each change."""
        ...

    def allocatable(self) -> Allocatable:
        """Return what is allocatable now. Raises DriverError."""
        ...


class DevicePlugin:
    """The device plugin beside this driver. `on_change` is called when it came or went."""

    def __init__(self, node: Node, *, heed: bool, on_change: Callable[[], None]) -> None:
        """Take where to look, and listen if it is to be heeded; nothing is asked yet."""
        self._node = node
        self._heed = heed
        self._on_change = on_change
        self._lock = threading.Lock()
        self._reason: str | None = None
        self._is_known = not heed
        if heed:
            node.listen_allocatable(self._take)

    def why_withheld(self) -> str | None:
        """Return why GPUs are withheld; None if they are not.

        Raises:
            DriverError: nothing is known yet, and the API server does not answer.
        """
        if not self._is_known:
            self._take(self._node.allocatable())
        return self._reason

    def _take(self, allocatable: Allocatable) -> None:
        counted = counted_by_plugin(allocatable)
        reason = None
        if counted:
            what = ", ".join(f"{name}: {count}" for name, count in counted.items())
            reason = (
                f"a device plugin gives out this node's GPUs ({what}), and they would be given out"
                " twice: remove its pod from this node, or start this driver with"
                " --beside-device-plugin publish if the two have different GPUs"
            )
        with self._lock:
            is_new, was_known = reason != self._reason, self._is_known
            self._reason, self._is_known = reason, True
        if is_new and was_known:
            log.info("device plugin noticed" if reason else "device plugin gone")
            self._on_change()


def counted_by_plugin(allocatable: Allocatable) -> dict[str, str]:
    """Return what a device plugin gives out of GPUs: how many, by resource name."""
    return {
        name: count
        for name, count in sorted(allocatable.items())
        if _OF_GPUS.fullmatch(name) and _is_some(count)
    }


def _is_some(count: str) -> bool:
    try:
        return quantity_bytes(count) > 0
    except ValueError:
        return True  # something that is not understood is not nothing
