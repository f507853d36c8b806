"""The shares of this node: how the config divides devices, and what is offered of them.

In: the share config in use (shares/source.py), the inventory, and the claims. Out: the
divisions that are wanted, for claims/state/divisions.py; a `ShareOffer` for each publication; and
notes for commands. As long as no config has been read where one is wanted, no GPU is
offered: otherwise a pod that asks for a share would get a whole GPU.
"""

import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import structlog
from msgspec.structs import asdict, replace

from dra_driver.claims.state.divisions import Divisions
from dra_driver.devices.device import Base, Device, Whole, mig_of, name_of, place_of
from dra_driver.devices.mig.partitions import found_by_others
from dra_driver.devices.model import (
    Gpu,
    GpuUuid,
    Inventory,
    InventorySource,
    MigDevice,
    MigMode,
    Refusal,
)
from dra_driver.devices.names import gpu_name, in_order
from dra_driver.devices.shares import MIB, Division, ShareStrategy
from dra_driver.errors import DriverError, StateError
from dra_driver.host.worker import LogOnce
from dra_driver.kube.fields import at
from dra_driver.shares.layout import ShareLayout
from dra_driver.shares.notes import FILE, NotedConsumable, NotedDevice, ShareNotes, write_notes
from dra_driver.shares.source import ShareConfigs, ShareConfigState
from dra_driver.sharing.limiters import UNSEEN
from dra_driver.sharing.shares import ShareMemory
from dra_driver.slices.consumable import ALLOWS_MULTIPLE, MEMORY, NO_CONSUMABLES, SHARES, Consumable
from dra_driver.slices.offer.shares import ShareOffer
from resource_nvidia_com.quantity import quantity_bytes

if TYPE_CHECKING:
    from resource_nvidia_com.device_plugin import NodeConfig

log = structlog.get_logger()


class NodeShares:
    """The shares of this node. Methods may be called from any thread."""

    def __init__(
        self,
        configs: ShareConfigs,
        inventory: InventorySource,
        *,
        memory: ShareMemory,
        directory: Path,
        consumable: Consumable = NO_CONSUMABLES,
    ) -> None:
        self._configs = configs
        self._inventory = inventory
        self._memory = memory
        self._directory = directory
        self._consumable = consumable
        self._lock = threading.Lock()
        self._divided: tuple[NodeConfig | None, Inventory, ShareLayout] | None = None
        self._noted: ShareNotes | None = None
        self._notes = ShareNotes()
        self._once = LogOnce()

    def gpus(self) -> frozenset[GpuUuid]:
        """Return the GPUs of this node."""
        return frozenset(gpu.uuid for gpu in self._inventory.current().gpus)

    def wanted(self) -> Mapping[Base, Division]:
        """Return how the config wants the devices of this node to be divided."""
        return self._of(self._inventory.current()).divisions

    def over_limit(self, served_as: str) -> str | None:
        """Return the config's action for containers above their share; None if it sets none."""
        config = self._configs.current().config
        for resource in config.resources if config else ():
            if resource.served_as == served_as and resource.over_limit is not None:
                return str(resource.over_limit)
        return None

    def why_unknown(self) -> str | None:
        """Return why it is not known how to divide devices; None if it is known."""
        state = self._configs.current()
        return None if state.is_known else state.problem

    def offer(
        self,
        inventory: Inventory,
        divisions: Divisions,
        *,
        with_counters: bool,
        alone: str | None = None,
    ) -> ShareOffer:
        """Return what to offer of an inventory, and note it. Raises StateError as records do.

        `with_counters` says whether the API server stores counters, and `alone` why divided devices
        are offered as their shares alone; None if they are not.
        """
        with_counters = with_counters and alone is None  # for all that concerns shares
        state = self._configs.current()
        divided = self._of(inventory)
        gpus = frozenset(gpu.uuid for gpu in inventory.gpus)
        offered = divisions.offer(gpus, with_counters=with_counters)
        refused = {part: why for part, why in divided.refused.items() if part not in offered}
        waiting = divisions.waiting(gpus)
        self._note(state, divided, inventory, offered, waiting)
        now = replace(divided, divisions=offered, refused=refused)
        offer = ShareOffer(**asdict(now), consumable=self._consumable, waiting=waiting, alone=alone)
        if state.is_known:
            return offer
        return offer.refusing_all(
            inventory, f"it is not known how it is to be shared: {state.problem}"
        )

    def published(
        self, devices: Iterable[Mapping[str, object]], refused: Mapping[GpuUuid, Refusal]
    ) -> None:
        """Note which devices are published to be consumed in parts, and GPUs that refuse MIG."""
        consumables = tuple(_noted(device) for device in devices if device.get(ALLOWS_MULTIPLE))
        self._write(replace(self._notes, consumables=consumables, refused=refused))

    def _of(self, inventory: Inventory) -> ShareLayout:
        config = self._configs.current().config
        with self._lock:
            known = self._divided
            if known is None or known[0] is not config or known[1] is not inventory:
                known = self._divided = (config, inventory, _divided(config, inventory))
                self._log_new("share config does not fit this node", known[2].remarks)
            return known[2]

    def _log_new(self, event: str, texts: Sequence[str]) -> None:
        """Log all texts if any of them has changed since the last time."""
        if self._once.is_new("; ".join(texts), event):
            for text in texts:
                log.warning(event, reason=text)

    def _note(
        self,
        state: ShareConfigState,
        divided: ShareLayout,
        inventory: Inventory,
        offered: Mapping[Base, Division],
        waiting: frozenset[Base],
    ) -> None:
        names = _names(inventory)
        gpus = {gpu.uuid: gpu for gpu in inventory.gpus}
        remarks = [*(state.config.warnings if state.config else ()), *divided.remarks]
        remarks += self._unwatched(state)
        remarks += [f"{names.get(part)}: {why}" for part, why in divided.refused.items()]
        cautions = list(self._cautions(inventory, offered))
        self._log_new("memory limits can be lost", cautions)
        remarks += cautions
        notes = replace(
            self._notes,
            origin=state.origin,
            problem=state.problem,
            remarks=tuple(remarks),
            devices=tuple(
                self._device(part, division, gpus[part.gpu], names)
                for part, division in offered.items()
            ),
            waiting=tuple(sorted((names[part] for part in waiting if part in names), key=in_order)),
        )
        self._write(notes)

    def _unwatched(self, state: ShareConfigState) -> Iterator[str]:
        """Yield an error for each resource with an `overLimit` that has no effect."""
        for resource in state.config.resources if state.config else ():
            if resource.over_limit is not None and not self._memory.sees_processes:
                yield f"{resource.served_as}: overLimit has no effect: {UNSEEN}"

    def _cautions(self, inventory: Inventory, divisions: Mapping[Base, Division]) -> Iterator[str]:
        """Yield what may remove the memory limits of shares, each text once."""
        cautions: dict[str, list[str]] = {}
        for gpu in inventory.gpus:
            whole = Whole(gpu=gpu.uuid)
            is_shared = whole in divisions or self._consumable.is_enabled
            if gpu.mig_mode is MigMode.ENABLED or not is_shared:
                continue
            with suppress(DriverError):  # `_device` and prepare say why
                limited = self._memory.limited(gpu, whole, ShareStrategy.TIME_SLICING)
                if limited.caution:
                    cautions.setdefault(limited.caution, []).append(gpu_name(gpu.minor))
        for caution, names in cautions.items():
            yield f"{', '.join(names)}: {caution}"

    def _write(self, notes: ShareNotes) -> None:
        self._notes = notes
        is_nothing = replace(notes, origin="") == ShareNotes()
        if notes == self._noted or (is_nothing and not (self._directory / FILE).exists()):
            return
        try:
            write_notes(self._directory, notes)
            self._noted = notes
        except StateError as error:
            log.warning("shares not noted", reason=str(error))

    def _device(
        self, part: Base, division: Division, gpu: Gpu, names: Mapping[Base, str]
    ) -> NotedDevice:
        try:
            limited = self._memory.limited(
                gpu, part, division.strategy, has_size=division.has_memory
            )
            by, why = limited.with_condition(), limited.why
        except DriverError as error:
            by, why = None, f"not known: {error}"
        return NotedDevice(
            name=names.get(part, str(part.gpu)),
            served_as=division.served_as,
            count=division.count,
            strategy=str(division.strategy),
            limited_by=by,
            why=why,
        )


def _divided(config: "NodeConfig | None", inventory: Inventory) -> ShareLayout:
    if config is None:
        return ShareLayout()
    # Only nodes with a share config load what divides devices.
    from dra_driver.shares.divide import divide  # noqa: PLC0415

    return divide(config, inventory)


def _names(inventory: Inventory) -> dict[Base, str]:
    names: dict[Base, str] = {}
    for gpu in inventory.gpus:
        names[Whole(gpu=gpu.uuid)] = gpu_name(gpu.minor)
        for instance in found_by_others(gpu):
            if isinstance(instance, MigDevice):
                mig = mig_of(instance)
                names[place_of(mig)] = name_of(gpu, Device(base=mig))
    return names


def _noted(device: Mapping[str, object]) -> NotedConsumable:
    return NotedConsumable(
        name=str(device["name"]),
        memory_mib=_amount(device, MEMORY) // MIB,
        shares=_amount(device, SHARES),
    )


def _amount(device: Mapping[str, object], name: str) -> int:
    """Return how much a published device has of a capacity; 0 if it lacks that one."""
    amount = at(device, "capacity", name)
    return quantity_bytes(str(amount["value"])) if isinstance(amount, Mapping) else 0
