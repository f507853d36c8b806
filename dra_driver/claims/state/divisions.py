"""How the devices of this node are divided into shares.

In: the divisions that the share config wants, and the records of claims. Out: the division that
holds for each device: the one that prepared claims use, else the wanted one. So what a container
was started with does not change under it. A claim that was allocated before a change, but is not
prepared, does not keep the old division. It is prepared by the one that holds when the kubelet
asks, or refused if its device no longer exists or is in use otherwise
(docs/decisions/0024-only-prepared-claims-keep-a-division.md).
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Protocol

from msgspec import Struct

from dra_driver.claims.model.claim import ClaimRef
from dra_driver.claims.model.record import DeviceRecord
from dra_driver.claims.state.holdings import Holdings
from dra_driver.devices.device import Base, Mig, Whole
from dra_driver.devices.model import GpuUuid
from dra_driver.devices.shares import ConsumedShare, Division
from dra_driver.errors import TransientError

_MOST_NAMED = 3
"""The number of claims that one sentence names."""


class WantedDivisions(Protocol):
    """Knows what the share config of this node asks for (node/shares.py)."""

    def gpus(self) -> frozenset[GpuUuid]:
        """Return the GPUs of this node."""
        ...

    def wanted(self) -> Mapping[Base, Division]:
        """Return how the share config wants devices to be divided."""
        ...

    def why_unknown(self) -> str | None:
        """Return why the wanted divisions are not known; None if they are."""
        ...


class _Offered(Struct, frozen=True, kw_only=True):
    """The divisions by which shares were last offered, and whether counters are stored."""

    divisions: Mapping[Base, Division]
    with_counters: bool


class Divisions:
    """The divisions of this node's devices. Methods may be called from any thread.

    Those that read records raise StateError if they cannot be read.

    Without counters, or where GPUs are served together, counters do not keep shares of a GPU apart
    from other uses of it. So such a GPU is divided only after claims that use it otherwise have
    ended. Any device waits for claims that consume a part of it, as no counter includes these.
    """

    def __init__(self, holdings: Holdings, config: WantedDivisions) -> None:
        self._holdings = holdings
        self._config = config
        self._offered: _Offered | None = None

    def of(self, device: Base) -> Division | None:
        """Return the division that holds for a device now; None: it is not divided.

        Raises TransientError if no claim has a share of it and the share config is not read yet.
        """
        division = self._holding([device.gpu], with_counters=True).get(device)
        reason = None if division else self._config.why_unknown()
        if reason is not None:
            raise TransientError(f"it is not known yet how {device.gpu} is shared: {reason}")
        return division

    def on(self, gpus: Iterable[GpuUuid], *, with_counters: bool = True) -> Mapping[Base, Division]:
        """Return the divisions by which shares of devices on some GPUs may be offered now."""
        divided = self._holding(gpus, with_counters=with_counters)
        return {part: how for part, how in divided.items() if not self._is_consumed(part)}

    def waiting(self, gpus: Iterable[GpuUuid]) -> Mapping[Base, str]:
        """Return the devices that are not divided as wanted, and the claims that prevent it."""
        chosen = set(gpus)
        last = self._offered
        now = self.on(chosen, with_counters=last is None or last.with_counters)
        wanted = {part: how for part, how in self._config.wanted().items() if part.gpu in chosen}
        return {
            part: self._holders_named(part, wanted.get(part), now.get(part))
            for part in sorted(now.keys() | wanted.keys(), key=_order)
            if now.get(part) != wanted.get(part)
        }

    def offer(self, gpus: Iterable[GpuUuid], *, with_counters: bool) -> Mapping[Base, Division]:
        """Return the divisions on some GPUs that are about to be published, and remember them.

        `with_counters` says whether the API server stores counters.
        """
        divisions = self.on(gpus, with_counters=with_counters)
        self._offered = _Offered(divisions=divisions, with_counters=with_counters)
        return divisions

    def is_outdated(self) -> bool:
        """Tell whether the divisions that hold now differ from those that were offered last."""
        last = self._offered
        if last is None or not (last.divisions or self._config.wanted()):
            return False
        return last.divisions != self.on(self._config.gpus(), with_counters=last.with_counters)

    def _holding(self, gpus: Iterable[GpuUuid], *, with_counters: bool) -> Mapping[Base, Division]:
        """Return the divisions that claims use on some GPUs, and the wanted ones that are free."""
        wanted = self._config.wanted()
        chosen = set(gpus)
        concerned = chosen | {gpu for division in wanted.values() for gpu in division.together}
        in_use = dict(self._in_use(concerned))

        def is_free(part: Base, division: Division) -> bool:
            served = {part.gpu, *division.together}
            for there, other in in_use.items():
                if (
                    there.gpu in served
                    and other != division
                    and (division.together or other.together)
                ):
                    return False  # another division's server has one of these GPUs
            if division.together or not with_counters:
                return not any(map(self._is_held_otherwise, served))
            return True

        free = {part: how for part, how in wanted.items() if is_free(part, how)}
        divisions = free | in_use
        return {part: division for part, division in divisions.items() if part.gpu in chosen}

    def _in_use(self, gpus: Iterable[GpuUuid]) -> Iterator[tuple[Base, Division]]:
        """Yield each device that has shares of claims, and its division."""
        for gpu in sorted(gpus):
            for _, entry in self._entries_on(gpu):
                division = entry.device.division
                if division is not None:
                    yield entry.device.place, division
                    for other in division.together:
                        yield Whole(gpu=other), division

    def _is_held_otherwise(self, gpu: GpuUuid) -> bool:
        """Tell whether a claim holds something of a GPU that is not part of a division."""
        return any(
            entry.device.gpu == gpu and entry.device.division is None
            for _, entry in self._entries_on(gpu)
        )

    def _is_consumed(self, part: Base) -> bool:
        """Tell whether a claim consumes a part of a device."""
        return any(
            entry.device.place == part and isinstance(entry.device.share, ConsumedShare)
            for _, entry in self._entries_on(part.gpu)
        )

    def _holders_named(self, part: Base, *divisions: Division | None) -> str:
        """Name the claims with something of a device, or of what is served with it, for people."""
        served = {
            part.gpu,
            *(gpu for division in divisions if division for gpu in division.together),
        }
        refs = {str(ref) for gpu in served for ref, _ in self._entries_on(gpu)}
        named = ", ".join(sorted(refs)[:_MOST_NAMED])
        if len(refs) == 1:
            return f"claim {named} is prepared with some of it"
        return f"{len(refs)} claims are prepared with some of it, such as {named}"

    def _entries_on(self, gpu: GpuUuid) -> Iterator[tuple[ClaimRef, DeviceRecord]]:
        """Yield the devices of the claims on a GPU, except those with admin access."""
        for record in self._holdings.users_of(gpu):
            yield from (
                (record.ref, device) for device in record.devices if not device.admin_access
            )


def _order(part: Base) -> tuple[str, int]:
    return part.gpu, part.placement.start if isinstance(part, Mig) else -1
