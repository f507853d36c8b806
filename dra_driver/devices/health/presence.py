"""Which MIG devices of claims are gone: those that a look did not find, and should have.

A record of a prepared claim that held before a look began and still holds after it says that the
driver left the claim's device alone in between, so a look that did not find it tells of a loss.
Once the claim is unprepared or prepared again, what was known of its devices is dropped: the UUID
of a MIG device repeats when it is made again at the same place. While MIG devices of a GPU cannot
be listed, and while the GPU itself is away, what was known stays.

A GPU that is reset loses its MIG devices, and who may run nvidia-smi as root can destroy those that
no process uses.
"""

import threading
from collections.abc import Callable
from typing import Any

import structlog
from msgspec import Struct

from dra_driver.devices.model import GpuUuid, Inventory, MigDevice, MigUuid

log = structlog.get_logger()


class _Asked(Struct, kw_only=True):
    """A MIG device that is asked for.

    `record` is of the claim that has it, and `after` how many looks had begun when it was first
    asked for. `is_gone` says whether the latest look that can tell did not find it.
    """

    record: object
    gpu: GpuUuid
    after: int
    is_gone: bool = False


class Presence:
    """Remembers which MIG devices looks have found. Methods may be called from any thread."""

    def __init__(self, still_holds: Callable[[Any], bool]) -> None:
        """Take what tells of a claim's record that it still holds.

        The claim has then been neither unprepared nor prepared again since the record was read.
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

    def end(self, number: int, inventory: Inventory) -> None:
        """Take what the look of that number has found."""
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
            for (_, uuid), asked in held.items():
                is_gone = uuid not in present
                if asked.gpu in listed and asked.after < number and is_gone != asked.is_gone:
                    asked.is_gone = is_gone
                    changed[uuid] = asked
        for uuid, asked in changed.items():
            if asked.is_gone:
                log.warning("mig device of a claim is gone", mig_device=uuid, gpu=asked.gpu)
            else:
                log.info("mig device of a claim is back", mig_device=uuid, gpu=asked.gpu)

    def is_gone(self, device: MigUuid, gpu: GpuUuid, *, claim: str, record: object) -> bool:
        """Tell whether a MIG device that a prepared claim has is not there any more.

        `claim` is the claim's UID, `record` its record as it was read.
        """
        with self._lock:
            asked = self._asked.get((claim, device))
            if asked is None or asked.record is not record:
                asked = _Asked(record=record, gpu=gpu, after=self._begun)
                self._asked[claim, device] = asked
            return asked.is_gone
