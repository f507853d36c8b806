"""Which GPUs no MIG device can be made on at present, and when it makes sense to try again.

A card changes its mode only while nobody else has it open. A process that has it open may end after
half a second or never, and nobody can know which. So a `Refusal`

- does not exist yet for a GPU that has refused for less than a few seconds;
- then lasts for as long again as the GPU has refused so far, within bounds; a claim with a MIG
  device on the GPU keeps trying, and each refusal counts again;
- ends once the GPU is in MIG mode, or once nobody has it open, if that can be seen.

If NVML lets nobody make a device on a GPU in MIG mode (a guest's vGPU, missing permissions), the
first refusal counts at once; the waiting times are the same.

Refusals are kept in memory: after a restart, one try brings them back.
"""

import threading
from collections.abc import Callable, Mapping, Sequence

import structlog
from msgspec import Struct, field

from dra_driver.devices.holders import Holder
from dra_driver.devices.model import GpuUuid, Inventory, MigMode, MigSlot, Refusal
from dra_driver.errors import BarredError, HeldError
from dra_driver.host.worker import Worker

log = structlog.get_logger()

_IDLE_SECONDS = 600.0


class RefusalTiming(Struct, frozen=True, kw_only=True):
    """Times in seconds. Only tests need values other than the defaults."""

    patience: float = 5.0
    """The time after a first refusal from which another one withdraws the GPU's partitions."""

    shortest: float = 120.0
    longest: float = 600.0
    """Bounds of the time from the last refusal until partitions are offered again. The kubelet
    tries again after 60 to 90 s, and while a claim waits, nothing else should be placed there."""

    check: float = 5.0
    """The time between checks whether anybody still has the GPU open."""


class _Refusing(Struct, kw_only=True):
    """A GPU that has refused, with the times of its first and its last refusal.

    With a reason, its partitions are not offered at present. `seen`: somebody was seen to have it
    open. Without a minor number, it does not matter who has it open or which MIG mode it is in.
    """

    minor: int | None
    first: float
    last: float
    reason: str | None = None
    seen: bool = False
    waiting: dict[MigSlot, str] = field(default_factory=dict)

    def pause(self, timing: RefusalTiming) -> float:
        """Return the seconds from the last refusal until trying again makes sense."""
        return min(max(self.last - self.first, timing.shortest), timing.longest)

    def end(self, timing: RefusalTiming) -> float:
        """Return the time on the clock at which trying again makes sense."""
        return self.last + self.pause(timing)

    def is_over(self, timing: RefusalTiming, now: float) -> bool:
        """Tell whether a refusal now counts as a first one: another pause has gone by without."""
        return now > self.end(timing) + self.pause(timing)


class Refusals(Worker):
    """Remembers refusals. For any thread; `start` begins to check who has a GPU open.

    `holders` takes a GPU's minor number, and returns nobody if processes cannot be seen.
    `on_change` is called when `current` has changed. The clock is monotonic, in seconds.
    """

    def __init__(
        self,
        holders: Callable[[int], Sequence[Holder]],
        clock: Callable[[], float],
        on_change: Callable[[], None],
        timing: RefusalTiming = RefusalTiming(),
    ) -> None:
        super().__init__("mig-refusals")
        self._holders = holders
        self._clock = clock
        self._on_change = on_change
        self._timing = timing
        self._lock = threading.Lock()
        self._gpus: dict[GpuUuid, _Refusing] = {}
        self._current: Mapping[GpuUuid, Refusal] = {}

    def current(self) -> Mapping[GpuUuid, Refusal]:
        """Return the GPUs on which no MIG devices should be made now. Never blocks."""
        return self._current

    def refused(self, slot: MigSlot, user: str, error: HeldError) -> None:
        """Record that a GPU was not switched to MIG mode for a device of `user`.

        `user` may be any text; `given_up` takes the same.
        """
        self._note(slot, user, str(error), minor=error.minor)

    def barred(self, slot: MigSlot, user: str, error: BarredError) -> None:
        """Record that NVML made no device on a GPU in MIG mode, and would not for anybody."""
        self._note(slot, user, str(error), minor=None)

    def _note(self, slot: MigSlot, user: str, reason: str, *, minor: int | None) -> None:
        now, is_barred = self._clock(), minor is None
        with self._lock:
            known = self._gpus.get(slot.gpu)
            is_news = known is None or (is_barred and known.minor is not None)
            if known is None or is_news or known.is_over(self._timing, now):
                known = self._gpus[slot.gpu] = _Refusing(minor=minor, first=now, last=now)
            known.last = now
            known.waiting[slot] = user
            lasts = is_barred or now - known.first >= self._timing.patience
            if known.reason is None and lasts:
                known.reason = reason
                until = {} if is_barred else {"seconds": round(known.end(self._timing) - now)}
                log.warning("mig partitions withdrawn", gpu=slot.gpu, reason=reason, **until)
                self.ring()
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
        """Forget the GPUs that are in MIG mode, and those that are gone."""
        off = {gpu.uuid for gpu in inventory.gpus if gpu.mig_mode is not MigMode.ENABLED}
        there = {gpu.uuid for gpu in inventory.gpus}
        with self._lock:
            refusing = self._gpus.items()
            over = [
                uuid for uuid, why in refusing if uuid not in (there if why.minor is None else off)
            ]
        for uuid in over:
            self._forget(uuid, "it is in MIG mode, or gone")

    def check(self) -> float:
        """Offer GPUs again that are due or that nobody has open; return the seconds to wait."""
        with self._lock:
            held = {uuid: known for uuid, known in self._gpus.items() if known.reason is not None}
        now, wait = self._clock(), _IDLE_SECONDS
        for uuid, known in held.items():
            is_open = known.minor is not None and bool(self._holders(known.minor))
            left = known.end(self._timing) - now
            if known.seen and not is_open:
                self._forget(uuid, "nobody has it open any more")
            elif left <= 0:
                self._offer_again(uuid, known)
            else:
                known.seen = known.seen or is_open
                wait = min(wait, left, self._timing.check)
        return wait

    def _run(self) -> None:
        while not self._stop.is_set():
            self._wait(self.check())

    def _forget(self, uuid: GpuUuid, why: str) -> None:
        with self._lock:
            known = self._gpus.pop(uuid, None)
        if known is not None and known.reason is not None:
            log.info("mig partitions offered again", gpu=uuid, why=why)
        self._tell()

    def _offer_again(self, uuid: GpuUuid, known: _Refusing) -> None:
        """Offer a GPU's partitions until the next refusal, which then counts at once."""
        with self._lock:
            known.reason = None
            known.waiting = {}
        log.info("mig partitions offered again", gpu=uuid, why="it is time to try again")
        self._tell()

    def _tell(self) -> None:
        with self._lock:
            current = {
                uuid: Refusal(
                    reason=known.reason,
                    waiting=frozenset(known.waiting),
                    is_of_mode=known.minor is not None,
                )
                for uuid, known in self._gpus.items()
                if known.reason is not None
            }
            is_same = current == self._current
            self._current = current
        if not is_same:
            self._on_change()
