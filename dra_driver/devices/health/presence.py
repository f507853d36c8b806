"""Which MIG devices of claims are gone: those that a look should have found but did not.

If a prepared claim's record is valid before a look begins and still valid after it, the driver has
left the claim's device alone in between. So if that look does not find the device, it is lost. Once
the claim is unprepared or prepared again, what was known about its devices is dropped, because a
MIG device that is made again at the same place has the same UUID. What was known is kept while the
MIG devices of a GPU cannot be listed, and while the GPU itself is away.

A GPU that is reset loses its MIG devices, and anyone who may run nvidia-smi as root can destroy
those that no process uses.
"""

import threading
from collections.abc import Callable
from typing import Any

import structlog
from msgspec import Struct

from dra_driver.devices.model import GpuUuid, Inventory, MigDevice, MigUuid

log = structlog.get_logger()


class _Asked(Struct, kw_only=True):
    """A MIG device that somebody has asked about.

    `record` belongs to the claim that has it, and `after` is how many looks had begun when it was
    first asked about. `is_gone`: the latest look that could have found it did not.
    """

    record: object
    gpu: GpuUuid
    after: int
    is_gone: bool = False


class Presence:
    """Remembers which MIG devices looks have found. Methods may be called from any thread."""

    def __init__(self, still_holds: Callable[[Any], bool]) -> None:
        """Take a function that tells whether a claim's record is still valid.

        It is if the claim was neither unprepared nor prepared again after the record was read.
        """
        self._still_holds = still_holds
        self._lock = threading.Lock()
        self._begun = 0
        self._asked: dict[tuple[str, MigUuid], _Asked] = {}

    def begin(self) -> int:
        """Note that a look begins; return its number, for `end`."""
        with self._lock:
            self._begun += 1
            return self._begun

    def end(self, number: int, inventory: Inventory) -> list[tuple[Any, MigUuid]]:
        """Take what the look with this number found; return which records' devices are gone now."""
        listed, present = set(), set()
        for gpu in inventory.gpus:
            if gpu.mig is None or gpu.mig.problem is None:
                listed.add(gpu.uuid)
                present |= {
                    instance.uuid
                    for instance in gpu.mig_instances
                    if isinstance(instance, MigDevice)
                }
        with self._lock:
            held = {key: ask for key, ask in self._asked.items() if self._still_holds(ask.record)}
            self._asked = held
            changed = {}
            for (claim, uuid), asked in held.items():
                is_gone = uuid not in present
                if asked.gpu in listed and asked.after < number and is_gone != asked.is_gone:
                    asked.is_gone = is_gone
                    changed[claim, uuid] = asked
        for (_, uuid), asked in changed.items():
            if asked.is_gone:
                log.warning("mig device of a claim is gone", mig_device=uuid, gpu=asked.gpu)
            else:
                log.info("mig device of a claim is back", mig_device=uuid, gpu=asked.gpu)
        return [(asked.record, uuid) for (_, uuid), asked in changed.items() if asked.is_gone]

    def is_gone(self, device: MigUuid, gpu: GpuUuid, *, claim: str, record: object) -> bool:
        """Tell whether a prepared claim's MIG device is gone.

        `claim` is the claim's UID, and `record` is its record as it was read.
        """
        with self._lock:
            asked = self._asked.get((claim, device))
            if asked is None or asked.record is not record:
                asked = _Asked(record=record, gpu=gpu, after=self._begun)
                self._asked[claim, device] = asked
            return asked.is_gone
