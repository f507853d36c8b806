"""What a sharing strategy is, and what carries out its steps.

A strategy shares devices that are there; that they exist is another's concern
(claims/prepare/mig.py). It first plans, which changes nothing that is in use, and says in its steps
(sharing/steps.py) everything it needs to do and to undo them.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from msgspec import Struct, field

from dra_driver.cdi.model import Edits
from dra_driver.devices.device import Base, Device, DeviceKey, DeviceUuid, Mig, Whole
from dra_driver.devices.model import Gpu
from dra_driver.errors import StateError
from dra_driver.sharing.steps import SharingStep, Step

if TYPE_CHECKING:
    from resource_nvidia_com.decode import Config

S = TypeVar("S", bound=Step)

EXCLUSIVE = "Exclusive"
"""Name of the strategy for configs that name none."""

LIMITS_SINCE = (7, 0)
"""Compute capability of Volta, the first whose MPS clients have limits of their own."""


class Unit(Struct, frozen=True, kw_only=True):
    """A device that a request of a claim got: its name, the GPU that it is on, itself."""

    name: str
    request: str
    gpu: Gpu
    device: Device

    @property
    def uuid(self) -> DeviceUuid:
        """Its UUID, or of a share that of its device. Raises StateError if that does not exist."""
        uuid = self.device.uuid
        if uuid is None:
            raise StateError(f'device "{self.name}" does not exist yet')
        return uuid

    @property
    def key(self) -> DeviceKey:
        """What steps name it by. Raises StateError if it does not exist."""
        return self.device.key or DeviceKey(self.uuid)


class Group(Struct, frozen=True, kw_only=True):
    """The devices of one claim that stand under one config. `claim` is the claim's UID.

    A config is for whole GPUs and their shares, or for MIG devices and theirs; it is None where
    they have none. `name` is the claim's namespace and name; `pods` are the names of the pods that
    it is reserved for, by UID, and `pod_groups` those of PodGroups. `owed` are steps of former
    claims on these GPUs, or others, that could not be undone yet.
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
        """The shares of either."""
        return tuple(unit for unit in self.units if unit.device.share is not None)

    def _unshared(self, kind: type[Base]) -> tuple[Unit, ...]:
        devices = ((unit, unit.device) for unit in self.units)
        return tuple(unit for unit, it in devices if it.share is None and isinstance(it.base, kind))


class ComputeModes(Protocol):
    """Reads and sets compute modes as NVML numbers them: devices/session.py, kept out of reach.

    A strategy describes its steps to modules that may not reach NVML.
    """

    def compute_mode(self, uuid: str) -> int | None:
        """Return a GPU's mode; None when it has none. Raises DeviceError, TransientError."""
        ...

    def set_compute_mode(self, uuid: str, mode: int) -> None:
        """Set a GPU's mode. Raises DeviceError, TransientError."""
        ...


class Planner(Protocol):
    """A sharing strategy."""

    def plan(self, groups: Sequence[Group], deadline: float) -> tuple[SharingStep, ...]:
        """Return what is to be done for all groups of a claim; refuse what cannot be had.

        While it runs nobody else has the GPUs. It changes nothing: a GPU whose abilities can only
        be tried out is set as it is already, or to a default where it does not say. Raises
        ConfigError for what a config asks for and these devices or this driver cannot do,
        DeviceError or TransientError if a GPU does not say how it is set.
        """
        ...


class Doer(Generic[S]):
    """Carries out steps of one kind. As it stands it does nothing, and `do` is to `ensure`.

    Verbs that touch hardware are called with the step's GPUs locked, so none of them waits for a
    daemon: `wait` does, with no GPU locked, and `undo` of what lives by itself, unless its deadline
    is past. Steps of one claim for different GPUs are carried out side by side, on threads of their
    own; to repeat any verb is harmless. Deadlines are values of the driver's monotonic clock, in
    seconds.

    What cannot be done now raises DeviceError or TransientError. What `undo` cannot end by the
    deadline is still wanted to end, and `undo` is tried again later.
    """

    def edits(self, step: S) -> Mapping[DeviceKey, Edits]:  # noqa: ARG002
        """Return what containers get for the step, by the device they use. Touches nothing."""
        return {}

    def do(self, step: S, deadline: float) -> None:  # noqa: ARG002 (some take their time)
        """Bring it about. Raises ConflictError while claims use the device in another way."""
        self.ensure(step)

    def ensure(self, step: S) -> None:
        """See to it that what was done still is."""

    def wait(self, step: S, deadline: float, given_up: Callable[[], bool]) -> None:
        """Wait until containers can start with it, but not long after `given_up` is True."""

    def undo(self, step: S, deadline: float) -> None:
        """Take back whatever of it has been brought about."""

    def claims(self) -> frozenset[str]:
        """Return the UIDs of the claims for which something is there that lives by itself."""
        return frozenset()

    def sweep(self, claim: str, deadline: float) -> None:
        """Undo all that is there for a claim that has no record, and so no steps."""


def strategy_name(config: "Config | None") -> str:
    """Return the name of the strategy a config asks for."""
    if config is None or config.sharing is None:
        return EXCLUSIVE
    return str(config.sharing.strategy)


def select_from(least: tuple[int, int]) -> str:
    """Return the advice to select GPUs of a compute capability or newer, as CEL in a claim."""
    version = ".".join(map(str, (*least, 0)))
    return (
        "select a GPU that can: device.attributes['gpu.nvidia.com'].cudaComputeCapability"
        f".compareTo(semver('{version}')) >= 0"
    )
