"""Defines what a sharing strategy is, and what carries out its steps.

A strategy plans first, which changes nothing that is in use. Its steps (sharing/steps.py) hold
everything that is needed to do and to undo them, and are done once all devices exist, of which
claims/prepare/mig.py makes those that do not exist yet.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from msgspec import Struct, field

from dra_driver.cdi.model import Edits
from dra_driver.devices.device import Base, Device, DeviceKey, DeviceUuid, Mig, Whole
from dra_driver.devices.model import Gpu
from dra_driver.sharing.steps import SharingStep, Step

if TYPE_CHECKING:
    from resource_nvidia_com.decode import Config

S = TypeVar("S", bound=Step)

EXCLUSIVE = "Exclusive"
"""Name of the strategy for configs that do not name one."""


class Unit(Struct, frozen=True, kw_only=True):
    """A device that a request of a claim got: its name, its GPU, and the device itself."""

    name: str
    request: str
    gpu: Gpu
    device: Device

    @property
    def uuid(self) -> DeviceUuid:
        """Its UUID, or a share's device's UUID. Raises StateError if the device does not exist."""
        return self.device.known_uuid

    @property
    def key(self) -> DeviceKey:
        """The device's key. Raises StateError if the device does not exist."""
        return self.device.key


class Group(Struct, frozen=True, kw_only=True):
    """The devices of one claim to which one config applies.

    `claim` is the claim's UID. A config is for whole GPUs and their shares, or for MIG devices and
    their shares; it is None for devices without one. `name` is the claim's namespace and name;
    `pods` are the names of the pods that it is reserved for, by UID, and `pod_groups` those of
    PodGroups. `owed` are steps of earlier claims, on these or other GPUs, that could not be undone
    yet.
    """

    claim: str
    config: "Config | None"
    units: tuple[Unit, ...] = ()
    owed: tuple[SharingStep, ...] = ()
    name: str = ""
    pods: Mapping[str, str] = field(default_factory=dict)
    pod_groups: tuple[str, ...] = ()

    @property
    def wholes(self) -> tuple[Unit, ...]:
        """The whole GPUs."""
        return self._unshared(Whole)

    @property
    def migs(self) -> tuple[Unit, ...]:
        """The MIG devices."""
        return self._unshared(Mig)

    @property
    def shares(self) -> tuple[Unit, ...]:
        """The shares of whole GPUs and MIG devices."""
        return tuple(unit for unit in self.units if unit.device.share is not None)

    def _unshared(self, kind: type[Base]) -> tuple[Unit, ...]:
        devices = ((unit, unit.device) for unit in self.units)
        return tuple(unit for unit, it in devices if it.share is None and isinstance(it.base, kind))


class ComputeModes(Protocol):
    """Reads and sets compute modes, by NVML's numbers; devices/session.py implements it.

    Strategies use this protocol, because modules that describe steps may not import NVML.
    """

    def compute_mode(self, uuid: str) -> int | None:
        """Return a GPU's mode; None if it has none. Raises DeviceError, TransientError."""
        ...

    def set_compute_mode(self, uuid: str, mode: int) -> None:
        """Set a GPU's mode. Raises DeviceError, TransientError."""
        ...


class Planner(Protocol):
    """A sharing strategy."""

    def plan(self, groups: Sequence[Group], deadline: float) -> tuple[SharingStep, ...]:
        """Return the steps for all groups of a claim, or refuse what is not possible.

        Nobody else has the GPUs meanwhile. It changes nothing. If only setting a value shows what
        a GPU can do, the present value is set again, or the default if the present one is unknown.

        Raises ConfigError if a config asks for something that these devices or this driver cannot
        do, and DeviceError or TransientError if a GPU does not report how it is set.
        """
        ...


class Doer(Generic[S]):
    """Carries out steps of one kind. By default it does nothing, and `ensure` calls `do`.

    Verbs that touch hardware are called with the step's GPUs locked, so they do not wait for a
    daemon. Only `wait`, and `undo` of something that runs by itself, wait; then no GPU is locked.
    Steps of one claim for different GPUs are carried out in parallel, each on its own thread, and
    any verb may be repeated. Deadlines are values of the driver's monotonic clock, in seconds.

    What cannot be done now raises DeviceError or TransientError. If `undo` cannot finish by the
    deadline, it is tried again later.
    """

    def edits(self, step: S) -> Mapping[DeviceKey, Edits]:  # noqa: ARG002
        """Return what containers get for the step, by the device they use. Touches nothing."""
        return {}

    def do(self, step: S, deadline: float) -> None:  # noqa: ARG002 (some need the deadline)
        """Carry out the step. Raises ConflictError while claims use the device in another way."""
        self.ensure(step)

    def ensure(self, step: S) -> None:
        """Make sure that the step still has its effect."""

    def wait(self, step: S, deadline: float, given_up: Callable[[], bool]) -> None:
        """Wait until containers can start with it, but not long after `given_up` is True."""

    def undo(self, step: S, deadline: float) -> None:
        """Undo whatever part of the step was done."""

    def claims(self, uuids: Collection[str] | None = None) -> frozenset[str]:  # noqa: ARG002
        """Return the UIDs of the claims for which something runs by itself, on devices or all."""
        return frozenset()

    def sweep(self, claim: str, deadline: float) -> None:
        """Undo everything that exists for a claim without a record, and so without steps."""


def strategy_name(config: "Config | None") -> str:
    """Return the name of the strategy a config asks for."""
    if config is None or config.sharing is None:
        return EXCLUSIVE
    return str(config.sharing.strategy)


def select_from(least: tuple[int, int]) -> str:
    """Return advice to select GPUs from a compute capability on, as a CEL expression."""
    version = ".".join(map(str, (*least, 0)))
    return (
        "select a GPU that can: device.attributes['gpu.nvidia.com'].cudaComputeCapability"
        f".compareTo(semver('{version}')) >= 0"
    )
