"""How the devices of this node are divided into shares.

In: the divisions that the share config wants, and the records of claims. Out: the division that
holds for each device: the one that prepared claims use, else the wanted one. So what a container
was started with does not change under it, and what claims have of one GPU decides about that GPU
alone. A claim that was allocated before a change, but is not
prepared, does not keep the old division. It is prepared by the one that holds when the kubelet
asks, or refused if its device no longer exists or is in use otherwise
(docs/decisions/0024-only-prepared-claims-keep-a-division.md).
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Protocol

from msgspec import Struct

from dra_driver.claims.state.ledger import Ledger
from dra_driver.devices.device import Base, Device, overlap
from dra_driver.devices.model import GpuUuid
from dra_driver.devices.shares import ConsumedShare, Division
from dra_driver.errors import TransientError


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

    Without counters, nothing keeps shares of a device apart from other uses of it, so the device is
    divided only after claims that use it otherwise have ended. Any device waits for claims that
    consume a part of it, as no counter includes these.
    """

    def __init__(self, ledger: Ledger, config: WantedDivisions) -> None:
        self._ledger = ledger
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

    def waiting(self, gpus: Iterable[GpuUuid]) -> frozenset[Base]:
        """Return the devices that claims keep from being divided as the config wants."""
        chosen = set(gpus)
        last = self._offered
        now = self.on(chosen, with_counters=last is None or last.with_counters)
        wanted = {part: how for part, how in self._config.wanted().items() if part.gpu in chosen}
        return frozenset(
            part for part in now.keys() | wanted.keys() if now.get(part) != wanted.get(part)
        )

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
        held = {gpu: tuple(self._held(gpu)) for gpu in gpus}
        in_use = {
            device.place: device.division
            for devices in held.values()
            for device in devices
            if device.division is not None
        }
        return {
            part: division
            for part, division in self._config.wanted().items()
            if part.gpu in held and (with_counters or not _is_held_otherwise(part, held[part.gpu]))
        } | in_use

    def _is_consumed(self, part: Base) -> bool:
        """Tell whether a claim consumes a part of a device."""
        return any(
            device.place == part and isinstance(device.share, ConsumedShare)
            for device in self._held(part.gpu)
        )

    def _held(self, gpu: GpuUuid) -> Iterator[Device]:
        """Yield what claims have of a GPU, except by admin access."""
        for record in self._ledger.users_of(gpu):
            yield from (device for device in record.held if device.gpu == gpu)


def _is_held_otherwise(part: Base, held: Iterable[Device]) -> bool:
    """Tell whether anything of a device is held that is not one of its equal shares."""
    return overlap([Device(base=part)], [device for device in held if device.division is None])
