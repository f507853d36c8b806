"""Which MIG devices of claims are gone: those that a look did not find, and should have.

In: who asks for a MIG device of a prepared claim, which is there by then; the beginning and end of
each look. Out: whether it is gone. A look says nothing of a device that may have been made after it
began, so it counts for devices that had been asked for before. While MIG devices of a GPU cannot be
listed, and while the GPU itself is away, what was known of them stays.

A GPU that is reset loses its MIG devices, and who may run nvidia-smi as root can destroy those that
no process uses.
"""

import threading
from collections import OrderedDict
from dataclasses import dataclass

import structlog

from dra_driver.devices.model import GpuUuid, Inventory, MigUuid

MOST_DEVICES = 4096
"""Remembered; far more than a node has at a time, so that only what nobody asks for is dropped."""

log = structlog.get_logger()


@dataclass(slots=True, kw_only=True)
class _Asked:
    """A MIG device that is asked for.

    Attributes:
        gpu: the GPU that it is on.
        after: how many looks had begun when it was first asked for.
        is_gone: whether the latest look that can tell did not find it.
    """

    gpu: GpuUuid
    after: int
    is_gone: bool = False


class Sightings:
    """Remembers which MIG devices looks have found. Methods may be called from any thread."""

    def __init__(self) -> None:
        """Begin with no look and no device."""
        self._lock = threading.Lock()
        self._begun = 0
        self._asked: OrderedDict[MigUuid, _Asked] = OrderedDict()

    def begin(self) -> int:
        """Note that a look begins; return its number, for `end`."""
        with self._lock:
            self._begun += 1
            return self._begun

    def end(self, number: int, inventory: Inventory) -> None:
        """Take what the look of that number has found."""
        listed, found = set(), set()
        for gpu in inventory.gpus:
            if gpu.mig is None or gpu.mig.problem is None:
                listed.add(gpu.uuid)
                found |= {one.uuid for one in (gpu.mig.devices if gpu.mig else ())}
        with self._lock:
            changed = []
            for uuid, one in self._asked.items():
                is_gone = uuid not in found
                if one.gpu in listed and one.after < number and is_gone != one.is_gone:
                    one.is_gone = is_gone
                    changed.append((uuid, one.gpu, is_gone))
        for uuid, on, is_gone in changed:
            if is_gone:
                log.warning("mig device of a claim is gone", mig_device=uuid, gpu=on)
            else:
                log.info("mig device of a claim is back", mig_device=uuid, gpu=on)

    def is_gone(self, device: MigUuid, gpu: GpuUuid) -> bool:
        """Tell whether a MIG device that a prepared claim has is not there any more."""
        with self._lock:
            one = self._asked.setdefault(device, _Asked(gpu=gpu, after=self._begun))
            self._asked.move_to_end(device)
            if len(self._asked) > MOST_DEVICES:
                self._asked.popitem(last=False)
            return one.is_gone
