"""MIG mode as an admin changes it on cards that take a reset for it (A100, A30).

The driver runs meanwhile: it lets go of its GPUs while one waits for its reset.
"""

from collections.abc import Sequence
from functools import partial

from testbed.commands import TestbedError, wait_until
from testbed.node import GpuNode


def switch_by_reset(node: GpuNode, minors: Sequence[int], *, on: bool, timeout: float = 60) -> None:
    """Change the MIG mode of GPUs, by minor number, and wait until what is offered has followed.

    Args:
        node: where the GPUs are; nothing may be on them.
        minors: the GPUs.
        on: the mode to be.
        timeout: in seconds, for each step; the driver's rescan interval has to be well below it.

    Raises:
        TestbedError: A GPU is in use, or the driver did not follow in time.
    """
    for minor in minors:
        node.machine.mig("on" if on else "off", "--gpu", f"minor:{minor}")
    for minor in minors:
        wait_until(
            partial(_is_reset, node, f"minor:{minor}"),
            f"the GPU with minor number {minor} to be reset",
            timeout=timeout,
        )
    wait_until(
        lambda: all(_is_divided(node, minor) is on for minor in minors),
        f"MIG mode {'on' if on else 'off'} to be published of minor numbers {minors}",
        timeout=timeout,
    )
    node.wait_published()


def _is_reset(node: GpuNode, gpu: str) -> bool:
    """Reset a GPU; False while the driver, which looks at it now and then, has it open."""
    try:
        node.machine.reset(gpu)
    except TestbedError as error:
        if "another process has NVML open" not in str(error):
            raise
        return False
    return True


def _is_divided(node: GpuNode, minor: int) -> bool | None:
    """Tell whether a GPU's parts are published or the whole of it; None while neither is so."""
    names = node.devices()
    parts = any(name.startswith(f"gpu-{minor}-mig-") for name in names)
    return None if parts is (f"gpu-{minor}" in names) else parts
