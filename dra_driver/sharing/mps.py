"""MPS: the CUDA programs of a claim's containers run on its GPUs at the same time.

In: devices under configs with limits. Out: one MPS domain for all whole GPUs of the claim, which
the supervisor is asked for (mps/requests.py), and edits that make containers its clients. A process
is a client of one daemon, so requests with different limits share one. The daemon keeps memory
limits for each GPU. It has the largest active thread percentage; containers of requests with a
lower one have that in their environment. The supervisor sets compute modes and restores them. Each
MIG device has its own domain, because a process cannot use two MIG devices, or one together with a
whole GPU.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, TypeVar

from msgspec import Struct

from dra_driver.cdi.model import Edits, Mount
from dra_driver.devices.device import DeviceKey, memory_of
from dra_driver.devices.shares import LIMITS_SINCE, MIB, MPS_SINCE
from dra_driver.devices.versions import dotted
from dra_driver.errors import ConfigError
from dra_driver.mps.domain import Domain, DomainDevice, DomainId, claim_of, mig_domain
from dra_driver.mps.files import CONTAINER_PIPE_DIRECTORY, CONTAINER_SHM, DomainPaths
from dra_driver.mps.requests import DomainRequests
from dra_driver.sharing.base import Doer, Group, Unit, select_from
from dra_driver.sharing.steps import ALL_THREADS, JoinDomain, MpsDomain
from resource_nvidia_com.quantity import quantity_bytes

if TYPE_CHECKING:
    from resource_nvidia_com.v1beta1.sharing import MpsConfig

GONE_SECONDS = 15.0
"""How long to wait for a daemon to end: it is asked to, and killed if it does not answer."""

_OPTIONS = ("rw", "nosuid", "nodev", "bind")
# A client connects to a socket and writes to a FIFO, which needs no writable file system.
_READ_ONLY = ("ro", "nosuid", "nodev", "noexec", "bind")

D = TypeVar("D", MpsDomain, JoinDomain)


class DomainDoer(Doer[D]):
    """Carries out steps that need a daemon: waits until it is ready, and until it has ended.

    A daemon may take `ready_seconds` to be ready, within a call's deadline.
    """

    def __init__(
        self, requests: DomainRequests, clock: Callable[[], float], *, ready_seconds: float
    ) -> None:
        self._requests = requests
        self._clock = clock
        self._ready_seconds = ready_seconds

    def wait(self, step: D, deadline: float, given_up: Callable[[], bool]) -> None:
        """Wait until the domain's daemon serves clients with these limits."""
        end = min(deadline, self._clock() + self._ready_seconds)
        self._requests.wait_ready(step.domain, end, given_up)

    def _wait_gone(self, domains: Iterable[DomainId], deadline: float) -> None:
        end = min(deadline, self._clock() + GONE_SECONDS)
        for domain in domains:
            self._requests.wait_gone(domain, end)


class Mps(DomainDoer[MpsDomain]):
    """The strategy MPS: one step and domain for all whole GPUs, and one for each MIG device."""

    def plan(self, groups: Sequence[Group], deadline: float) -> tuple[MpsDomain, ...]:  # noqa: ARG002 (a Planner)
        """Return the step for all whole GPUs, and one for each MIG device."""
        wholes: dict[str, _Limited] = {}
        migs: list[_Limited] = []
        for group in groups:
            config = _config(group)
            _check_cards((*group.wholes, *group.migs), config)
            wholes |= {share.unit.uuid: share for share in _limited(group.wholes, config)}
            migs += _limited(group.migs, config)
        claim = groups[0].claim
        of_wholes = [wholes[uuid] for uuid in sorted(wholes)]
        steps = [_step(DomainId(claim), of_wholes)] if of_wholes else []
        steps += [_step(mig_domain(claim, number), [mig]) for number, mig in enumerate(migs)]
        return tuple(steps)

    def edits(self, step: MpsDomain) -> Mapping[DeviceKey, Edits]:
        """Return what makes containers clients, with limits where they are below the domain's."""
        paths = self._requests.paths(step.domain.id)
        most = step.domain.active_thread_percentage or ALL_THREADS
        return {
            uuid: client_edits(
                paths,
                active_thread_percentage=None if percentage == most else percentage,
            )
            for uuid, percentage in step.clients.items()
        }

    def ensure(self, step: MpsDomain) -> None:
        """Make sure that the domain is requested."""
        self._requests.write_desired(step.domain)

    def undo(self, step: MpsDomain, deadline: float) -> None:
        """Request the domain's end and wait for it."""
        self._end([step.domain.id], deadline)

    def claims(self) -> frozenset[str]:
        """Return the claims that have their own domain."""
        claims = map(claim_of, self._requests.list())
        return frozenset(claim for claim in claims if claim is not None)

    def sweep(self, claim: str, deadline: float) -> None:
        """Request the end of all domains of a claim, and wait for it."""
        self._end(sorted(own for own in self._requests.list() if claim_of(own) == claim), deadline)

    def _end(self, domains: Sequence[DomainId], deadline: float) -> None:
        for domain in domains:
            self._requests.remove(domain)
        self._wait_gone(domains, deadline)


class _Limited(Struct, frozen=True, kw_only=True):
    """A device, and the limits that a config sets for it.

    `memory_mib` limits pinned memory (None: no limit), `percentage` limits active threads.
    """

    unit: Unit
    memory_mib: int | None
    percentage: int
    multi_user: bool

    @property
    def wanted(self) -> DomainDevice:
        """The device as its domain describes it."""
        kind = self.unit.device.kind
        return DomainDevice(uuid=self.unit.uuid, kind=kind, pinned_memory_mib=self.memory_mib)


def client_edits(
    paths: DomainPaths,
    *,
    active_thread_percentage: int | None = None,
    pinned_memory_mib: Mapping[str, int] | None = None,
) -> Edits:
    """Return the edits for a container whose processes are clients of the domain's daemon.

    A program that finds no daemon runs without MPS and without limits. So the variable for the
    daemon's folder is always set, and the folder is mounted over the default path, where a pipe
    directory of the host might be visible otherwise.

    Limits apply to each client process if they are below the domain's own. Threads are in percent,
    for all GPUs; memory is in MiB, by the GPU's UUID. Set memory only for GPUs that the container
    sees: if CUDA finds the UUID of another GPU, it drops every limit, even the daemon's. A program
    can evade its limits: without the variables it has the daemon's, and with a bad
    CUDA_MPS_PINNED_DEVICE_MEM_LIMIT no memory limit (docs/hardware.md).
    """
    env = [f"CUDA_MPS_PIPE_DIRECTORY={CONTAINER_PIPE_DIRECTORY}"]
    if active_thread_percentage is not None:
        env.append(f"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE={active_thread_percentage}")
    if pinned_memory_mib:
        limits = ",".join(f"{uuid}={mib}M" for uuid, mib in sorted(pinned_memory_mib.items()))
        env.append(f"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT={limits}")
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


def _limited(units: Sequence[Unit], config: "MpsConfig") -> list[_Limited]:
    """Return devices under one config. Raises ConfigError if it limits a device of another one."""
    if not units:
        return []
    memory = pinned_memory_mib(config, [unit.uuid for unit in units])
    return [
        _Limited(
            unit=unit,
            memory_mib=_held_mib(unit, memory[unit.uuid]),
            percentage=active_thread_percentage(config) or ALL_THREADS,
            multi_user=bool(config.multi_user),
        )
        for unit in units
    ]


def _held_mib(unit: Unit, asked_mib: int | None) -> int | None:
    """Return a memory limit as it holds: not more than the device has."""
    total = None if asked_mib is None else memory_of(unit.gpu, unit.device.base)
    return asked_mib if asked_mib is None or total is None else min(asked_mib, total // MIB)


def pinned_memory_mib(config: "MpsConfig", uuids: Sequence[str]) -> Mapping[str, int | None]:
    """Return the limit of each device in whole MiB, in the order of the UUIDs; None is no limit.

    The rules are those of NVIDIA's DRA driver: the default is for all devices, entries of the map
    override it, and a key is a UUID or an index among the UUIDs in alphabetical order, which is not
    NVML's index. Limits are rounded down. Raises ConfigError if a key names no device, or a device
    that another key names as well.
    """
    default = config.default_pinned_device_memory_limit
    limits: dict[str, int | None] = dict.fromkeys(
        sorted(uuids), None if default is None else quantity_bytes(default) // MIB
    )
    keys: dict[str, str] = {}
    for key, limit in (config.default_per_device_pinned_memory_limit or {}).items():
        uuid = _device(key, list(limits))
        if uuid in keys:
            raise ConfigError(
                f"invalid device: {keys[uuid]} and {key} are the same device of "
                "defaultPerDevicePinnedMemoryLimit, which can have only one limit"
            )
        keys[uuid] = key
        limits[uuid] = quantity_bytes(limit) // MIB
    return limits


def active_thread_percentage(config: "MpsConfig") -> int | None:
    """Return the percentage, None for no limit; NVIDIA's daemon takes 0 for none too."""
    return config.default_active_thread_percentage or None


def _device(key: str, uuids: Sequence[str]) -> str:
    if key in uuids:
        return key
    known = f"the devices under this config are {', '.join(uuids)}"
    # int() alone would also accept a sign, spaces and digits of other scripts.
    if not (key.isascii() and key.isdecimal()):
        raise ConfigError(f"invalid device: unable to parse key as an integer: {key}; {known}")
    if int(key) >= len(uuids):
        raise ConfigError(f"invalid device: invalid device index: {key}; {known}, from index 0")
    return uuids[int(key)]


def _step(domain: DomainId, devices: Sequence[_Limited]) -> MpsDomain:
    largest = max(device.percentage for device in devices)
    wanted = Domain(
        id=domain,
        devices=tuple(device.wanted for device in devices),
        active_thread_percentage=None if largest == ALL_THREADS else largest,
        multi_user=any(device.multi_user for device in devices),
    )
    return MpsDomain(
        devices=tuple(device.unit.device for device in devices),
        domain=wanted,
        clients={device.unit.key: device.percentage for device in devices},
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
