"""Consumable capacity: lets the scheduler give parts of one device to several claims. Pure.

In: the setting `--consumable-shares`, and a device's capacities. Out: the same capacities, each
with a request policy. Names, limits and defaults are the same as in NVIDIA's driver. Only `cores`,
in percent of the SMs, is this driver's own. Rules (KEP-5075): a claim that does not ask for a
capacity consumes the default of its policy. Without a policy it would consume all of it, so every
capacity has a policy. A requested amount is rounded up to the next step.
"""

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType

from msgspec import Struct

from dra_driver.devices.shares import MIB
from resource_nvidia_com.quantity import Quantity

ALLOWS_MULTIPLE = "allowMultipleAllocations"
"""The field that says that the scheduler can give a device to several claims."""

REQUEST_POLICY = "requestPolicy"
"""The field of a capacity that says how much of it a claim consumes."""

GATED_FIELDS = frozenset({ALLOWS_MULTIPLE, REQUEST_POLICY})
"""The fields that an API server drops if its feature gate DRAConsumableCapacity is off."""

MEMORY = "memory"
CORES = "cores"
SHARES = "shares"

MOST_ADDED = 2
"""How many capacities a device gets in addition if several claims can have it."""

_PERCENT = 100


class ConsumableMode(StrEnum):
    """What a claim consumes if it asks for no amount."""

    DISABLED = "disabled"
    """The whole device, because devices have no consumable capacity."""

    MEMORY = "memory"
    """All of the memory: claims share a device only if each says how much memory it needs."""

    UNLIMITED = "unlimited"
    """Nothing: any number of claims can share a device."""

    COUNT = "count"
    """One share of a fixed number."""


class Consumable(Struct, frozen=True, kw_only=True):
    """The setting `--consumable-shares`. `count` is the number of shares in mode COUNT, else 0."""

    mode: ConsumableMode = ConsumableMode.DISABLED
    count: int = 0

    @classmethod
    def of(cls, text: str, *, gate: bool | None = None) -> "Consumable":
        """Parse the setting; if the feature gate ConsumableShares is false, return DISABLED."""
        if gate is False:
            return cls()
        if text.isdecimal():
            return cls(mode=ConsumableMode.COUNT, count=int(text))
        return cls(mode=ConsumableMode(text))

    def __str__(self) -> str:
        """Return the setting as the user writes it."""
        return str(self.count) if self.mode is ConsumableMode.COUNT else self.mode.value

    @property
    def is_enabled(self) -> bool:
        """Whether several claims can have one device."""
        return self.mode is not ConsumableMode.DISABLED


NO_CONSUMABLES = Consumable()

_NONE_KNOWN: Mapping[str, object] = MappingProxyType(
    {"value": "0", REQUEST_POLICY: {"default": "0"}}
)


def consumable(
    capacity: Mapping[str, object], memory: int | None, setting: Consumable
) -> dict[str, object]:
    """Turn a device's capacities for one claim into those for several; `memory` is in bytes."""
    capacities: dict[str, object] = {
        name: {**value, REQUEST_POLICY: {"default": "0"}}
        for name, value in capacity.items()
        if isinstance(value, Mapping) and name != MEMORY
    }
    mib = 0 if memory is None else memory // MIB
    capacities[MEMORY] = _memory(mib * MIB, setting.mode) if mib else _NONE_KNOWN
    if setting.mode is ConsumableMode.COUNT:
        capacities[SHARES] = _ranged(str(setting.count), default="1", least="1", step="1")
    capacities[CORES] = _ranged(str(_PERCENT), default="0", least="0", step="1")
    return capacities


def _memory(usable: int, mode: ConsumableMode) -> dict[str, object]:
    value, step = str(Quantity.of_bytes(usable)), str(Quantity.of_bytes(MIB))
    if mode is ConsumableMode.MEMORY:
        return _ranged(value, default=value, least=step, step=step)
    return _ranged(value, default="0", least="0", step=step)


def _ranged(value: str, *, default: str, least: str, step: str) -> dict[str, object]:
    within: dict[str, object] = {"min": least, "max": value}
    if value not in (step, least):  # a range of one value has no room for a step
        within["step"] = step
    return {"value": value, REQUEST_POLICY: {"default": default, "validRange": within}}
