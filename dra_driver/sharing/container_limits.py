"""Computes the limits of a claim's containers, whichever of its requests they use. Pure.

In: the shares of a claim that one MPS daemon serves, and the limits of each request. Out: for each
share, the limits in the environment of containers with it.

A container can have one request of a claim, several, or all, in any order. Each brings variables of
the same names, and the last one wins (CDI). So requests that a container may have together bring
the same values:

- several requests for shares of one GPU count as one larger share, as they do for a control group;
- for shares of several GPUs, no values suit all containers, because CUDA drops every limit if it
  finds a GPU there that the container does not see. That is refused.

If the scheduler made the claim for container limits, the name of a request says which container it
belongs to (KEP-5004), and each container has its own limits.
"""

import re
from collections.abc import Iterable, Mapping, Sequence

from msgspec.structs import replace

from dra_driver.devices.device import DeviceKey, DeviceUuid
from dra_driver.errors import ConfigError
from dra_driver.sharing.base import Unit
from dra_driver.sharing.steps import ALL_THREADS, ContainerLimits, ShareLimits

_OF_CONTAINER = re.compile(r"(container-[0-9]+)-request-[0-9]+")


def container_limits(
    units: Sequence[Unit],
    limits: Mapping[DeviceKey, ShareLimits],
    *,
    memory_in_environment: bool,
) -> dict[DeviceKey, ContainerLimits]:
    """Return the limits of containers with each share, for shares that one MPS daemon serves.

    Raises ConfigError if no environment is right for every container.
    """
    names = {unit.request for unit in units}
    by_container: dict[str, list[Unit]] = {}
    for unit in units:
        by_container.setdefault(_container(unit.request, names), []).append(unit)
    by_device: dict[DeviceKey, ContainerLimits] = {}
    for members in by_container.values():
        requests: dict[str, list[Unit]] = {}
        for unit in members:
            requests.setdefault(unit.request, []).append(unit)
        each = {
            name: _of_request(limits[own[0].key], memory_in_environment=memory_in_environment)
            for name, own in requests.items()
        }
        _check_same_devices(requests, each)
        together = _together(each.values())
        for unit in members:
            is_alone = together == each[unit.request]
            by_device[unit.key] = replace(together, is_of_several=not is_alone)
    return by_device


def _container(request: str, all_requests: Iterable[str]) -> str:
    """Return the container that the request belongs to; empty if containers may have several."""
    matches = {name: _OF_CONTAINER.fullmatch(name) for name in all_requests}
    match = matches[request]
    return match[1] if match and all(matches.values()) else ""


def _of_request(limits: ShareLimits, *, memory_in_environment: bool) -> ContainerLimits:
    return ContainerLimits(
        active_thread_percentage=limits.active_thread_percentage,
        memory_mib=limits.memory_mib if memory_in_environment else {},
    )


def _together(each: Iterable[ContainerLimits]) -> ContainerLimits:
    """Return the limits of several requests for the same devices, as if they were one request."""
    members = list(each)
    percents = [member.active_thread_percentage for member in members]
    known = [given for given in percents if given is not None]
    percent = min(ALL_THREADS, sum(known)) if len(known) == len(members) else ALL_THREADS
    uuids = [
        uuid
        for uuid in members[0].memory_mib
        if all(uuid in member.memory_mib for member in members)
    ]
    return ContainerLimits(
        active_thread_percentage=None if percent == ALL_THREADS else percent,
        memory_mib={uuid: sum(member.memory_mib[uuid] for member in members) for uuid in uuids},
    )


def _check_same_devices(
    requests: Mapping[str, Sequence[Unit]], each: Mapping[str, ContainerLimits]
) -> None:
    """Check that requests which a container may have together are for the same devices."""
    devices = {name: frozenset(device.uuid for device in own) for name, own in requests.items()}
    percents = {limit.active_thread_percentage for limit in each.values()}
    if len(set(devices.values())) == 1:
        return
    if len(percents) == 1 and not any(limit.memory_mib for limit in each.values()):
        return
    places = "; ".join(f"{name}: {_names(own)}" for name, own in sorted(requests.items()))
    raise ConfigError(
        f"requests of this claim got shares of different GPUs ({places}), and the same limits "
        "cannot fit a container with one of these requests and a container with all: ask for all "
        "shares of a container in one request (`count`), and give each container a claim of "
        "its own, or shares by `nvidia.com/gpu` in its limits"
    )


def _names(units: Sequence[Unit]) -> str:
    first: dict[DeviceUuid, str] = {}
    for unit in units:
        first.setdefault(unit.uuid, unit.name)
    return ", ".join(first.values())
