"""MIG mode as an admin changes it: by a reset (A100, A30), or immediately (Hopper and newer).

For a reset the driver keeps running, and closes its GPUs. For an immediate switch it is stopped,
because a GPU that another program has open refuses it.
"""

from collections.abc import Sequence
from functools import partial

from testbed.commands import TestbedError, wait_until
from testbed.node import GpuNode


def switch_by_reset(node: GpuNode, minors: Sequence[int], *, on: bool, timeout: float = 60) -> None:
    """Change the MIG mode of GPUs, by minor number, and wait until the offered devices change.

    Args:
        node: where the GPUs are; nothing may be on them.
        minors: the GPUs.
        on: the new mode.
        timeout: in seconds, for each step; the driver's rescan interval has to be well below it.

    Raises TestbedError if a GPU is in use, or the driver did not follow in time.
    """
    for minor in minors:
        node.machine.mig("on" if on else "off", "--gpu", f"minor:{minor}")
    for minor in minors:
        wait_until(
            partial(_is_reset, node, f"minor:{minor}"),
            f"the GPU with minor number {minor} to be reset",
            timeout=timeout,
        )
    _wait_followed(node, minors, on=on, timeout=timeout)


def switch_at_once(node: GpuNode, minors: Sequence[int], *, on: bool, timeout: float = 60) -> None:
    """The same on cards that need no reset, with a restart of the driver.

    Raises TestbedError if a GPU is in use, or the driver did not follow in time.
    """

    def switch() -> None:
        for minor in minors:
            node.machine.mig("on" if on else "off", "--gpu", f"minor:{minor}")

    node.without_driver(switch, detached=True)
    _wait_followed(node, minors, on=on, timeout=timeout)


def _wait_followed(node: GpuNode, minors: Sequence[int], *, on: bool, timeout: float) -> None:
    """Wait until GPUs are no longer offered as a whole, or are again."""

    def followed() -> bool:
        names = node.devices()
        return all((f"gpu-{minor}" in names) is not on for minor in minors)

    words = f"MIG mode {'on' if on else 'off'} to be published of minor numbers {minors}"
    wait_until(followed, words, timeout=timeout)
    node.wait_published()


def _is_reset(node: GpuNode, gpu: str) -> bool:
    """Reset a GPU; return False while the driver, which reads it now and then, has it open."""
    try:
        node.machine.reset(gpu)
    except TestbedError as error:
        if "another process has NVML open" not in str(error):
            raise
        return False
    return True
