"""MPS: the CUDA programs of a claim's containers run on its GPUs at the same time.

In: devices under configs with limits. Out: one MPS domain for all whole GPUs of the claim, and
edits that make containers its clients. Each MIG device has its own domain, because a process cannot
use two MIG devices, or one together with a whole GPU. The claim is the only member of these; the
domains of shares (sharing/shares.py) have more.

A process is a client of one daemon, so requests with different limits share one. The daemon keeps
memory limits for each GPU. It has the largest active thread percentage; containers of requests with
a lower one have that in their environment. The supervisor, which is asked for domains by files
(mps/requests.py), sets compute modes and restores them.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from msgspec import Struct

from dra_driver.cdi.model import Edits, Mount
from dra_driver.devices.device import Device, DeviceKey, Mig, memory_of
from dra_driver.devices.shares import LIMITS_SINCE, MIB, MPS_SINCE
from dra_driver.devices.versions import dotted
from dra_driver.errors import ConfigError
from dra_driver.mps.domain import DomainId, mig_domain
from dra_driver.mps.files import CONTAINER_PIPE_DIRECTORY, CONTAINER_SHM, DomainPaths
from dra_driver.mps.requests import DomainRequests
from dra_driver.sharing.base import Doer, Group, Unit, select_from
from dra_driver.sharing.steps import ALL_THREADS, ClientLimits, JoinDomain
from resource_nvidia_com.quantity import quantity_bytes

if TYPE_CHECKING:
    from resource_nvidia_com.v1beta1.sharing import MpsConfig

GONE_SECONDS = 15.0
"""How long to wait for a daemon to end: it is asked to, and killed if it does not answer."""

_OPTIONS = ("rw", "nosuid", "nodev", "bind")
# A client connects to a socket and writes to a FIFO, which needs no writable file system.
_READ_ONLY = ("ro", "nosuid", "nodev", "noexec", "bind")


class Mps(Doer[JoinDomain]):
    """The strategy MPS, and what carries out its steps and those of shares: it joins domains.

    A daemon may take `ready_seconds` to be ready, within a call's deadline.
    """

    def __init__(
        self, domains: DomainRequests, clock: Callable[[], float], *, ready_seconds: float
    ) -> None:
        self._domains = domains
        self._clock = clock
        self._ready_seconds = ready_seconds

    def plan(self, groups: Sequence[Group], deadline: float) -> tuple[JoinDomain, ...]:  # noqa: ARG002 (a Planner)
        """Return the step for all whole GPUs, and one for each MIG device."""
        wholes: dict[str, _Limited] = {}
        migs: list[_Limited] = []
        for group in groups:
            config = _config(group)
            _check_cards((*group.wholes, *group.migs), config)
            wholes |= {each.unit.uuid: each for each in _limited(group.wholes, config)}
            migs += _limited(group.migs, config)
        claim = groups[0].claim
        of_wholes = [wholes[uuid] for uuid in sorted(wholes)]
        steps = [_step(DomainId(claim), claim, of_wholes)] if of_wholes else []
        steps += [_step(mig_domain(claim, n), claim, [mig]) for n, mig in enumerate(migs)]
        return tuple(steps)

    def edits(self, step: JoinDomain) -> Mapping[DeviceKey, Edits]:
        """Return what makes containers clients, with limits where they are below the daemon's."""
        paths = self._domains.paths(step.domain)
        return {
            device.key: client_edits(
                paths,
                device,
                percentage=_below(limits.active_thread_percentage, step.active_thread_percentage),
                memory_mib=_below(limits.memory_mib, limits.daemon_memory_mib),
            )
            for device, limits in zip(step.devices, step.limits, strict=True)
        }

    def ensure(self, step: JoinDomain) -> None:
        """Make sure that the claim has joined."""
        self._domains.join(step.wanted, step.claim)

    def wait(self, step: JoinDomain, deadline: float, given_up: Callable[[], bool]) -> None:
        """Wait until the domain's daemon serves clients with these limits."""
        end = min(deadline, self._clock() + self._ready_seconds)
        self._domains.wait_ready(step.wanted, end, given_up)

    def undo(self, step: JoinDomain, deadline: float) -> None:
        """Leave the domain, and wait for its end if nobody else is in it."""
        self._leave([step.domain], step.claim, deadline)

    def claims(self, uuids: Collection[str] | None = None) -> frozenset[str]:
        """Return the claims that have joined a domain, of certain devices or any."""
        return self._domains.claims(uuids)

    def sweep(self, claim: str, deadline: float) -> None:
        """Leave all domains that a claim has joined."""
        self._leave(sorted(self._domains.joined(claim)), claim, deadline)

    def _leave(self, domains: Iterable[DomainId], claim: str, deadline: float) -> None:
        end = min(deadline, self._clock() + GONE_SECONDS)
        ending = [domain for domain in domains if self._domains.leave(domain, claim)]
        while ending:
            for domain in ending:
                self._domains.wait_gone(domain, end)
            ending = [domain for domain in ending if self._domains.leave(domain, claim)]


class _Limited(Struct, frozen=True, kw_only=True):
    """A device, and the limits that a config sets for it."""

    unit: Unit
    limits: ClientLimits
    multi_user: bool


def client_edits(
    paths: DomainPaths, device: Device, *, percentage: int | None, memory_mib: int | None
) -> Edits:
    """Return the edits for a container whose processes are clients of the domain's daemon.

    A program that finds no daemon runs without MPS and without limits. So the variable for the
    daemon's folder is always set, and the folder is mounted over the default path, where a pipe
    directory of the host might be visible otherwise.

    Limits apply to each client process if they are below the domain's own. Threads are in percent,
    for all GPUs; memory is in MiB, for a device that the container sees: if CUDA finds the UUID of
    another one, it drops every limit, even the daemon's. A program can evade its limits: without
    the variables it has the daemon's, and with a bad CUDA_MPS_PINNED_DEVICE_MEM_LIMIT no memory
    limit (docs/hardware.md).
    """
    env = [f"CUDA_MPS_PIPE_DIRECTORY={CONTAINER_PIPE_DIRECTORY}"]
    if percentage is not None:
        env.append(f"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE={percentage}")
    if memory_mib is not None:
        env.append(f"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT={device.known_uuid}={memory_mib}M")
    return Edits(
        env=tuple(env),
        mounts=(
            Mount(host_path=str(paths.shm), container_path=CONTAINER_SHM, options=_OPTIONS),
            Mount(
                host_path=str(paths.pipe),
                container_path=CONTAINER_PIPE_DIRECTORY,
                options=_READ_ONLY,
            ),
        ),
    )


def _below(limit: int | None, of_daemon: int | None) -> int | None:
    """Return a limit if it is below the daemon's, which a client cannot raise; else None."""
    return limit if limit is not None and (of_daemon is None or limit < of_daemon) else None


def _limited(units: Sequence[Unit], config: "MpsConfig") -> list[_Limited]:
    """Return devices under one config. Raises ConfigError if it limits a device of another one."""
    if not units:
        return []
    ordered = sorted(units, key=_order)
    memory = pinned_memory_mib(config, [unit.device.uuid or unit.name for unit in ordered])
    return [
        _Limited(
            unit=unit,
            limits=ClientLimits(
                daemon_memory_mib=_held_mib(unit, mib),
                active_thread_percentage=active_thread_percentage(config),
            ),
            multi_user=bool(config.multi_user),
        )
        for unit, mib in zip(ordered, memory, strict=True)
    ]


def _order(unit: Unit) -> tuple[str, int, int]:
    """Return what devices under one config are numbered by: their GPU's UUID, then their place."""
    base = unit.device.base
    place = (base.placement.start, base.profile_id) if isinstance(base, Mig) else (0, 0)
    return base.gpu, *place


def _held_mib(unit: Unit, asked_mib: int | None) -> int | None:
    """Return a memory limit as it holds: not more than the device has."""
    total = None if asked_mib is None else memory_of(unit.gpu, unit.device.base)
    return asked_mib if asked_mib is None or total is None else min(asked_mib, total // MIB)


def pinned_memory_mib(config: "MpsConfig", devices: Sequence[str]) -> tuple[int | None, ...]:
    """Return the limit of each device in whole MiB, in their order; None is no limit.

    `devices` are UUIDs, or names of MIG devices that are still to be made, in the order by which
    they are numbered. The default is for all devices, and entries of the map override it; a key is
    one of `devices`, or a number. Limits are rounded down. Raises ConfigError if a key names no
    device, or a device that another key names as well.
    """
    default = config.default_pinned_device_memory_limit
    limits: dict[str, int | None] = dict.fromkeys(
        devices, None if default is None else quantity_bytes(default) // MIB
    )
    keys: dict[str, str] = {}
    for key, limit in (config.default_per_device_pinned_memory_limit or {}).items():
        device = _device(key, list(limits))
        if device in keys:
            raise ConfigError(
                f"invalid device: {keys[device]} and {key} are the same device of "
                "defaultPerDevicePinnedMemoryLimit, which can have only one limit"
            )
        keys[device] = key
        limits[device] = quantity_bytes(limit) // MIB
    return tuple(limits[device] for device in devices)


def active_thread_percentage(config: "MpsConfig") -> int | None:
    """Return the percentage, None for no limit; NVIDIA's daemon takes 0 for none too."""
    percentage = config.default_active_thread_percentage or ALL_THREADS
    return None if percentage == ALL_THREADS else percentage


def _device(key: str, devices: Sequence[str]) -> str:
    if key in devices:
        return key
    known = f"the devices under this config are {', '.join(devices)}"
    # int() alone would also accept a sign, spaces and digits of other scripts.
    if not (key.isascii() and key.isdecimal()):
        raise ConfigError(f"invalid device: unable to parse key as an integer: {key}; {known}")
    if int(key) >= len(devices):
        raise ConfigError(f"invalid device: invalid device index: {key}; {known}, from index 0")
    return devices[int(key)]


def _step(domain: DomainId, claim: str, devices: Sequence[_Limited]) -> JoinDomain:
    percentages = [each.limits.active_thread_percentage for each in devices]
    known = [percentage for percentage in percentages if percentage is not None]
    return JoinDomain(
        devices=tuple(each.unit.device for each in devices),
        domain=domain,
        claim=claim,
        limits=tuple(each.limits for each in devices),
        active_thread_percentage=max(known) if len(known) == len(percentages) else None,
        multi_user=any(each.multi_user for each in devices),
    )


def _config(group: Group) -> "MpsConfig":
    # Imported here, because a process without MPS claims does not need it.
    from resource_nvidia_com.v1beta1.sharing import MpsConfig  # noqa: PLC0415

    sharing = group.config.sharing if group.config else None
    return (sharing.mps_config if sharing else None) or MpsConfig()


def _check_cards(units: Sequence[Unit], config: "MpsConfig") -> None:
    asked = {
        "multiuser mode": config.multi_user,
        "defaultActiveThreadPercentage": active_thread_percentage(config),
        "defaultPinnedDeviceMemoryLimit": config.default_pinned_device_memory_limit,
        "defaultPerDevicePinnedMemoryLimit": config.default_per_device_pinned_memory_limit,
    }
    needed = {"MPS": MPS_SINCE} | {what: LIMITS_SINCE for what, value in asked.items() if value}
    for what, least in needed.items():
        for gpu in (unit.gpu for unit in units):
            if gpu.cuda_compute_capability < least:
                raise ConfigError(
                    f"{what} was requested but is not supported: {gpu.uuid} "
                    f"({gpu.product_name}) has insufficient cudaComputeCapability "
                    f'"{dotted(gpu.cuda_compute_capability)}", wanted >= "{dotted(least)}"; '
                    f"leave that out of the config, or {select_from(least)}"
                )
