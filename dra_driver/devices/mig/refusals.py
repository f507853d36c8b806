"""Which GPUs no MIG device can be made on at present, and until when.

A card changes its mode only while nobody else has it open, and NVML may let nobody make a device on
a GPU in MIG mode (a guest's vGPU, missing permissions). Nobody can know when that ends. So a
`Refusal` lasts for two minutes from the last one: a claim with a MIG device on the GPU keeps
trying, and each refusal counts again. It ends earlier once a device was made on the GPU, and, if
its mode was the reason, once the GPU is in MIG mode.

Refusals are kept in memory: after a restart, one try brings them back.
"""

import threading
from collections.abc import Callable, Mapping

import structlog
from msgspec import Struct, field

from dra_driver.devices.model import GpuUuid, Inventory, MigMode, MigSlot, Refusal
from dra_driver.errors import BarredError, HeldError
from dra_driver.host.worker import Worker

log = structlog.get_logger()

PAUSE_SECONDS = 120.0
"""The time from the last refusal until partitions are offered again. The kubelet tries again after
60 to 90 s, and while a claim waits, nothing else should be placed there."""


class _Refusing(Struct, kw_only=True):
    """A GPU that has refused: why, who waits for what, and until when on the clock."""

    reason: str
    is_of_mode: bool
    until: float = 0.0
    waiting: dict[MigSlot, str] = field(default_factory=dict)


class Refusals(Worker):
    """Remembers refusals. For any thread; `start` begins to end those that are due.

    `on_change` is called when `current` has changed. The clock is monotonic, in seconds.
    """

    def __init__(self, clock: Callable[[], float], on_change: Callable[[], None]) -> None:
        super().__init__("mig-refusals")
        self._clock = clock
        self._on_change = on_change
        self._lock = threading.Lock()
        self._gpus: dict[GpuUuid, _Refusing] = {}
        self._current: Mapping[GpuUuid, Refusal] = {}

    def current(self) -> Mapping[GpuUuid, Refusal]:
        """Return the GPUs on which no MIG devices should be made now. Never blocks."""
        return self._current

    def refused(self, slot: MigSlot, user: str, error: HeldError | BarredError) -> None:
        """Record that no MIG device was made for `user`, any text that `given_up` takes as well.

        HeldError: the GPU was not switched to MIG mode. BarredError: NVML made no device on a GPU
        in MIG mode, and would not for anybody.
        """
        is_of_mode = isinstance(error, HeldError)
        with self._lock:
            known = self._gpus.get(slot.gpu)
            if known is None or known.is_of_mode is not is_of_mode:
                known = _Refusing(reason=str(error), is_of_mode=is_of_mode)
                self._gpus[slot.gpu] = known
                log.warning("mig partitions withdrawn", gpu=slot.gpu, reason=known.reason)
            known.until = self._clock() + PAUSE_SECONDS
            known.waiting[slot] = user
        self._tell()

    def switched(self, gpu: GpuUuid) -> None:
        """Record that a GPU is in MIG mode, and that a device was made on it."""
        self._forget(gpu, "it is in MIG mode")

    def given_up(self, user: str) -> None:
        """Record that a user no longer wants any MIG devices."""
        with self._lock:
            for known in self._gpus.values():
                known.waiting = {slot: by for slot, by in known.waiting.items() if by != user}
        self._tell()

    def look_at(self, inventory: Inventory) -> None:
        """Forget the GPUs that are gone, and refused modes of those that are in MIG mode."""
        modes = {gpu.uuid: gpu.mig_mode for gpu in inventory.gpus}
        with self._lock:
            over = [
                uuid
                for uuid, known in self._gpus.items()
                if uuid not in modes or (known.is_of_mode and modes[uuid] is MigMode.ENABLED)
            ]
        for uuid in over:
            self._forget(uuid, "it is in MIG mode, or gone")

    def check(self) -> float:
        """Offer the partitions of GPUs again that are due; return the seconds to wait."""
        now = self._clock()
        with self._lock:
            due = [uuid for uuid, known in self._gpus.items() if known.until <= now]
            left = [known.until - now for known in self._gpus.values() if known.until > now]
        for uuid in due:
            self._forget(uuid, "it is time to try again")
        return min(left, default=PAUSE_SECONDS)

    def _run(self) -> None:
        while not self._stop.is_set():
            self._wait(self.check())

    def _forget(self, uuid: GpuUuid, why: str) -> None:
        with self._lock:
            known = self._gpus.pop(uuid, None)
        if known is not None:
            log.info("mig partitions offered again", gpu=uuid, why=why)
        self._tell()

    def _tell(self) -> None:
        with self._lock:
            current = {
                uuid: Refusal(
                    reason=known.reason,
                    waiting=frozenset(known.waiting),
                    is_of_mode=known.is_of_mode,
                )
                for uuid, known in self._gpus.items()
            }
            is_same = current == self._current
            self._current = current
        if not is_same:
            self._on_change()
