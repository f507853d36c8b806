"""Computes what each request of a claim may use of the shares that it got. Pure.

In: the shares of a claim, request by request, and the configs that apply to them. Out: for each
share the limits of a process that uses its request.

- Several shares of one request are one larger share.
- For a consumable share, the consumed amounts are the limits; an amount of 0 is no limit.
- A claim's config sets no limits of its own: the size of a share does, and strategy and time-slice
  apply to every tenant of the device.
- Under MPS, no container can have shares of two requests, or of two devices: its processes are
  clients of one MPS daemon, which serves one device, and its environment has one set of limits. If
  the scheduler made the claim for container limits, the name of a request says which container it
  belongs to (KEP-5004). Otherwise a container may use all requests.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from msgspec.structs import replace

from dra_driver.devices.device import DeviceKey, DeviceUuid, memory_of
from dra_driver.devices.shares import (
    LIMITS_SINCE,
    MIB,
    ConsumedShare,
    EqualShare,
    Share,
    ShareStrategy,
    memory_mib,
    percentage,
)
from dra_driver.errors import ConfigError, StateError
from dra_driver.sharing.base import Group, Unit
from dra_driver.sharing.limiters import Limiter
from dra_driver.sharing.steps import ALL_THREADS, ShareLimits
from resource_nvidia_com.v1beta1.names import Interval

if TYPE_CHECKING:
    from resource_nvidia_com.decode import Config


_OF_CONTAINER = re.compile(r"(container-[0-9]+)-request-[0-9]+")


def share_of(unit: Unit) -> Share:
    """Return which share a unit is. Raises StateError if it is not a share."""
    if unit.device.share is None:
        raise StateError(f'device "{unit.name}" is not a share')
    return unit.device.share


def limits_of(groups: Sequence[Group]) -> dict[DeviceKey, ShareLimits]:
    """Return the limits for all shares of a claim, whether or not something enforces them.

    Raises ConfigError if a request has several shares but may have only one, or if a config asks
    for something that tenants of a shared device cannot have separately.
    """
    limits: dict[DeviceKey, ShareLimits] = {}
    units = [unit for group in groups for unit in group.shares]
    _check_one_strategy(units)
    _check_one_daemon(units)
    for group in groups:
        for unit in group.shares:
            _check_config(unit, group.config)
        for request in grouped(group.shares, lambda unit: unit.request):
            _check_request(request)
            for members in grouped(request, lambda unit: unit.uuid):
                limits |= dict.fromkeys((unit.key for unit in members), _of_device(members))
    return limits


def memory_of_claim(
    units: Sequence[Unit], limits: Mapping[DeviceKey, ShareLimits], limiter: Limiter
) -> int | None:
    """Return the MiB of a device that a claim may have in all its requests; None is no limit."""
    if limiter is Limiter.NOTHING:
        return None
    # Pods without any limit get no memory of a GPU that control groups limit.
    total = units[0].gpu.memory_bytes if limiter is Limiter.CONTROL_GROUPS else None
    whole = None if total is None else total // MIB
    requests = {unit.request: limits[unit.key].memory_mib for unit in units}
    amounts = [whole if amount is None else amount for amount in requests.values()]
    known = [amount for amount in amounts if amount is not None]
    if len(known) < len(amounts):
        return None
    return sum(known) if whole is None else min(whole, sum(known))


def grouped(units: Iterable[Unit], what: Callable[[Unit], str]) -> Iterable[list[Unit]]:
    """Return the units in groups, for each of which `what` is the same."""
    found: dict[str, list[Unit]] = {}
    for unit in units:
        found.setdefault(what(unit), []).append(unit)
    return found.values()


def _of_device(units: Sequence[Unit]) -> ShareLimits:
    """Return the limits of a request's shares of one device, together."""
    shares = [share_of(unit) for unit in units]
    equal = [share for share in shares if isinstance(share, EqualShare)]
    if equal:
        division, total = equal[0].division, memory_of(units[0].gpu, units[0].device.base)
        taken, count = len(equal), division.count
        percent = ALL_THREADS if division.free_compute else percentage(taken, count)
        memory = None if total is None else memory_mib(total, taken, count)
        limits = ShareLimits(taken=taken, count=count)
    else:
        consumed = [share for share in shares if isinstance(share, ConsumedShare)]
        memory_mibs, cores = [use.memory_mib for use in consumed], [use.cores for use in consumed]
        limits = ShareLimits(
            taken=len(consumed),
            count=None,
            consumed_memory_mib=sum(memory_mibs),
            consumed_cores=sum(cores),
        )
        # If one share has no limit, the limit of the others would be less than was allocated.
        percent = sum(cores) if all(cores) else ALL_THREADS
        memory = sum(memory_mibs) if all(memory_mibs) else None
    return replace(
        limits,
        active_thread_percentage=percent
        if percent < ALL_THREADS and _has_limits(units[0])
        else None,
        memory_mib=memory,
    )


def _has_limits(unit: Unit) -> bool:
    """Tell whether MPS limits what the tenants of a device use."""
    is_mps = share_of(unit).strategy is ShareStrategy.MPS
    return is_mps and unit.gpu.cuda_compute_capability >= LIMITS_SINCE


def _check_request(members: Sequence[Unit]) -> None:
    shares = (unit.device.share for unit in members)
    equal = [share.division for share in shares if isinstance(share, EqualShare)]
    if not equal:
        return
    if len(equal) < len(members):
        raise ConfigError(
            f"request {members[0].request} got shares of a device that is divided into equal ones, "
            "and a part of another device by capacity: ask for only one kind (deviceClassName)"
        )
    served_as = equal[0].served_as
    if len(members) > 1 and not all(division.combines for division in equal):
        raise ConfigError(
            f"request {members[0].request} asks for {len(members)} of {served_as}, and on this "
            "node a request may have only one: its share config sets failRequestsGreaterThanOne; "
            "ask for 1"
        )


def _check_one_daemon(units: Iterable[Unit]) -> None:
    """Check that no container gets shares under MPS of two devices, or of two requests."""
    by_mps = [unit for unit in units if share_of(unit).strategy is ShareStrategy.MPS]
    matches = [_OF_CONTAINER.fullmatch(unit.request) for unit in by_mps]
    containers: dict[str, Unit] = {}
    for unit, match in zip(by_mps, matches, strict=True):
        other = containers.setdefault(match[1] if match and all(matches) else "", unit)
        if other.request != unit.request:
            raise ConfigError(
                f"requests {other.request} and {unit.request} both got shares under MPS, and a "
                "container with both would have the limits of only one: ask for all shares of a "
                "container in one request (`count`), and give each container a claim of its own"
            )
        if other.uuid != unit.uuid:
            raise ConfigError(
                f"request {unit.request} got shares of two devices under MPS, "
                f'"{other.name}" and "{unit.name}", and an MPS daemon serves only one: use a claim '
                "with `constraints: [{matchAttribute: gpu.nvidia.com/uuid}]`; a request for "
                "several in a container's limits belongs on a node with one divided device"
            )


def _check_one_strategy(units: Sequence[Unit]) -> None:
    """Check that a claim uses a device in one way if it has several consumable shares of it."""
    first: dict[DeviceUuid, Unit] = {}
    for unit in units:
        other = first.setdefault(unit.uuid, unit)
        ways = [share_of(unit).strategy, share_of(other).strategy]
        if isinstance(unit.device.share, ConsumedShare) and ways[0] is not ways[1]:
            raise ConfigError(
                f"requests {other.request} and {unit.request} both got a part of device "
                f'"{unit.name}", one to be shared by {ways[1]} and one by {ways[0]}: write the '
                "same `sharing.strategy` in the configs of both"
            )


def _check_config(unit: Unit, config: "Config | None") -> None:
    if config is None or config.sharing is None:
        return
    strategy = share_of(unit).strategy
    if isinstance(unit.device.share, EqualShare) and str(config.sharing.strategy) != str(strategy):
        raise ConfigError(
            f'device "{unit.name}" is a share of a device that all its tenants use by {strategy}, '
            "as the node's share config says: the claim's config cannot change it to "
            f"{config.sharing.strategy}; remove `sharing` from the {config.kind} of request "
            f"{unit.request}"
        )
    _check_interval(unit, config)
    limits = config.sharing.mps_config
    if limits is not None and limits != type(limits)():
        raise ConfigError(
            f'mpsConfig has no effect on request {unit.request}: device "{unit.name}" is a share, '
            "and its size sets the limits; remove `mpsConfig`, and ask for less to have lower ones"
        )


def _check_interval(unit: Unit, config: "Config") -> None:
    if config.kind != "GpuConfig" or config.sharing is None:
        return
    settings = config.sharing.time_slicing_config
    if settings is not None and settings.interval not in (None, Interval.DEFAULT):
        raise ConfigError(
            f"interval {settings.interval} cannot be set for request {unit.request}: device "
            f'"{unit.name}" is a share, and a time-slice holds for all tenants of the GPU; remove '
            "`interval`, or ask for a whole GPU"
        )
