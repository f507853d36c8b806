"""Sets a domain's limits in its daemon and reads them back: it ignores what it cannot parse.

Devices are named by ordinal, the position in the daemon's CUDA_VISIBLE_DEVICES, because drivers up
to R550 know no other name. The daemon answers `set` with nothing or the value in force. It writes
values of 1 GiB or more in whole GiB, rounded down: 10240M as 10G, and 8155M as 7G.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial

from msgspec import Struct

from dra_driver.errors import DeviceError
from dra_driver.mps.domain import Domain

ANSWERED = "get_default_active_thread_percentage"
"""A query that a daemon always answers; lists, and limits that are not set, may be empty."""

_MEMORY = re.compile(r"([0-9]+)([GM])B?")
_MIB_PER_GIB = 1024
_TOLERANCE = 0.05  # the daemon reports a percentage with one decimal


class LimitsError(DeviceError):
    """The daemon answers, but has other limits than the domain."""


Ask = Callable[[Sequence[str]], list[str]]
"""Sends commands to a daemon and returns the lines of its reply; raises DeviceError."""


class Limits(Struct, frozen=True, kw_only=True):
    """The limits that a daemon reports: percent, and MiB by UUID."""

    active_thread_percentage: float
    pinned_memory_mib: tuple[tuple[str, int], ...]


class _Setting(Struct, frozen=True, kw_only=True):
    """One of a domain's limits, in the words of the daemon's commands.

    `name` is what follows `set_default_`, `get_` and the like; `place` are their further arguments
    for a device.
    """

    name: str
    place: str = ""
    value: str
    subject: str
    is_right: Callable[[str], bool]


def set_limits(ask: Ask, domain: Domain) -> None:
    """Set the domain's limits in the daemon, for servers that it starts from now on."""
    ask([f"set_default_{each.name}{each.place} {each.value}" for each in _settings(domain)])


def read_limits(ask: Ask, domain: Domain) -> Limits:
    """Return the limits that the daemon reports; LimitsError if they are not the domain's."""
    settings = _settings(domain)
    said = ask([f"get_default_{setting.name}{setting.place}" for setting in settings])
    if len(said) != len(settings):
        raise LimitsError(
            f"the MPS control daemon did not take the limits: {len(settings)} queries have the "
            f"answers {said!r}"
        )
    for limit, text in zip(settings, said, strict=True):
        if not limit.is_right(text):
            raise LimitsError(
                f"the MPS control daemon has {limit.subject} of {text.strip()} where "
                f"{limit.value} was set"
            )
    limits = ((device.uuid, device.pinned_memory_mib) for device in domain.devices)
    memory = tuple((uuid, mib) for uuid, mib in limits if mib is not None)
    return Limits(active_thread_percentage=_percentage(said[0]), pinned_memory_mib=memory)


def restore_limits(ask: Ask, domain: Domain, servers: Iterable[int]) -> list[str]:
    """Set the limits of running servers to the domain's, for their next clients.

    A container's root can change them through its socket (R580). Limits that a server does not
    report are left as they are. Returns what was changed, for people.
    """
    settings, changed = _settings(domain), []
    for pid in servers:
        answers = ask([f"get_{setting.name} {pid}{setting.place}" for setting in settings])
        if len(answers) != len(settings):
            continue
        for limit, said in zip(settings, answers, strict=True):
            with suppress(LimitsError):
                if not limit.is_right(said):
                    ask([f"set_{limit.name} {pid}{limit.place} {limit.value}"])
                    wrong = f"server {pid} had {limit.name}{limit.place} {said}"
                    changed.append(f"{wrong} instead of {limit.value}")
    return changed


def _settings(domain: Domain) -> list[_Setting]:
    """Return the domain's limits, the percentage first."""
    percentage = domain.active_thread_percentage or 100
    percentages = _Setting(
        name="active_thread_percentage",
        value=str(percentage),
        subject="an active thread percentage",
        is_right=lambda said: abs(_percentage(said) - percentage) <= _TOLERANCE,
    )
    return [
        percentages,
        *(
            _Setting(
                name="device_pinned_mem_limit",
                place=f" {ordinal}",
                value=f"{limit}M",
                subject=f"a pinned memory limit for {device.uuid}",
                is_right=partial(_says, limit=limit),
            )
            for ordinal, device in enumerate(domain.devices)
            if (limit := device.pinned_memory_mib) is not None
        ),
    ]


def _percentage(text: str) -> float:
    try:
        return float(text)
    except ValueError as error:
        raise LimitsError(f"the MPS control daemon says {text!r} for a percentage") from error


def _says(text: str, limit: int) -> bool:
    """Tell whether the daemon's reply can mean a limit in MiB."""
    match = _MEMORY.fullmatch(text.strip())
    if match is None:
        raise LimitsError(f"the MPS control daemon says {text!r} for a memory limit")
    return int(match[1]) == (limit // _MIB_PER_GIB if match[2] == "G" else limit)
