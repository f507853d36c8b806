"""A domain's limits: set in its daemon and read back, because it ignores what it cannot parse.

In: a way to ask the daemon, and the domain. Out: commands, and the limits that the daemon reports.
Devices are named by ordinal, the position in the daemon's CUDA_VISIBLE_DEVICES: drivers up to R550
know no other name. The daemon replies to `set` with nothing, or with the value that is in force,
and writes what is 1 GiB or more in whole GiB, rounded down: 10240M as 10G, and 8155M as 7G.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from dra_driver.errors import DeviceError
from dra_driver.mps.domain import Domain

_MEMORY = re.compile(r"([0-9]+)([GM])B?")
_MIB_PER_GIB = 1024
_TOLERANCE = 0.05  # the daemon reports a percentage with one decimal


class LimitsError(DeviceError):
    """The daemon answers, and has other limits than the domain."""


Ask = Callable[[Sequence[str]], list[str]]
"""Sends commands to a daemon and returns the lines of its reply; raises DeviceError."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The limits that a daemon reports: percent, and MiB by UUID."""

    active_thread_percentage: float
    pinned_memory_mib: tuple[tuple[str, int], ...]


def set_limits(ask: Ask, domain: Domain) -> None:
    """Set the domain's limits in the daemon. They apply to servers that it starts from now on.

    Raises:
        DeviceError: the daemon does not answer.
    """
    percentage = domain.active_thread_percentage or 100
    commands = [f"set_default_active_thread_percentage {percentage}"]
    commands += [
        f"set_default_device_pinned_mem_limit {ordinal} {device.pinned_memory_mib}M"
        for ordinal, device in enumerate(domain.devices)
        if device.pinned_memory_mib is not None
    ]
    ask(commands)


def read_limits(ask: Ask, domain: Domain) -> Limits:
    """Return the limits that the daemon reports, once they are the domain's.

    Raises:
        LimitsError: the daemon has other limits than the domain.
        DeviceError: it does not answer.
    """
    limited = [
        (ordinal, device.uuid, device.pinned_memory_mib)
        for ordinal, device in enumerate(domain.devices)
        if device.pinned_memory_mib is not None
    ]
    commands = ["get_default_active_thread_percentage"]
    commands += [f"get_default_device_pinned_mem_limit {ordinal}" for ordinal, _, _ in limited]
    said = ask(commands)
    if len(said) != len(commands):
        raise LimitsError(
            f"the MPS control daemon did not take the limits: {len(commands)} questions have the "
            f"answers {said!r}"
        )
    percentage = _percentage(said[0])
    wanted = domain.active_thread_percentage or 100
    if abs(percentage - wanted) > _TOLERANCE:
        raise _mismatch("an active thread percentage", said[0], str(wanted))
    for (_, uuid, limit), text in zip(limited, said[1:], strict=True):
        if not _says(text, limit):
            raise _mismatch(f"a pinned memory limit for {uuid}", text.strip(), f"{limit}M")
    memory = tuple((uuid, limit) for _, uuid, limit in limited)
    return Limits(active_thread_percentage=percentage, pinned_memory_mib=memory)


def put_back(ask: Ask, domain: Domain, servers: Iterable[int]) -> list[str]:
    """Set the limits of servers that run to the domain's, for their next clients.

    A container's root can change them by its socket (R580). What a server does not tell is left.

    Returns:
        What was changed, for people.

    Raises:
        DeviceError: the daemon does not answer.
    """
    percentage = domain.active_thread_percentage or 100
    kept: list[tuple[str, str, str, Callable[[str], bool]]] = [
        (
            "active_thread_percentage",
            "",
            str(percentage),
            lambda said: abs(_percentage(said) - percentage) <= _TOLERANCE,
        )
    ]
    for ordinal, device in enumerate(domain.devices):
        if (limit := device.pinned_memory_mib) is not None:
            kept.append(
                ("device_pinned_mem_limit", f" {ordinal}", f"{limit}M", partial(_says, limit=limit))
            )
    changed = []
    for pid in servers:
        answers = ask([f"get_{name} {pid}{place}" for name, place, _, _ in kept])
        if len(answers) != len(kept):
            continue
        for (name, place, value, is_right), said in zip(kept, answers, strict=True):
            with suppress(LimitsError):
                if not is_right(said):
                    ask([f"set_{name} {pid}{place} {value}"])
                    changed.append(f"server {pid} had {name}{place} {said} instead of {value}")
    return changed


def _percentage(text: str) -> float:
    try:
        return float(text)
    except ValueError as error:
        raise LimitsError(f"the MPS control daemon says {text!r} for a percentage") from error


def _says(text: str, limit: int) -> bool:
    """Tell whether the daemon's words can mean a limit in MiB."""
    match = _MEMORY.fullmatch(text.strip())
    if match is None:
        raise LimitsError(f"the MPS control daemon says {text!r} for a memory limit")
    return int(match[1]) == (limit // _MIB_PER_GIB if match[2] == "G" else limit)


def _mismatch(what: str, found: str, wanted: str) -> LimitsError:
    return LimitsError(f"the MPS control daemon has {what} of {found} where {wanted} was set")
