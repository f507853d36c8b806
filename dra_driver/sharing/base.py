"""What a sharing strategy is: from configs to plans, from a plan to container edits and back.

A strategy shares devices that are there; that they exist is another's concern
(claims/prepare/realise.py). It first plans, which changes nothing that is in use, and says in its
plans everything it needs to apply and to undo them. A plan is plain JSON, so that it can be written
down before hardware is touched and carried out backwards by another process after a crash. A
strategy makes as many plans for a claim as there are parts that can be undone each by itself. What
needs no change has no plan, or one that locks no GPU, if `dra-driver status` has something to tell
of it.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, NewType, Protocol

from msgspec import Struct, field

from dra_driver.cdi.model import Edits
from dra_driver.devices.kinds import GpuPart
from dra_driver.devices.model import Gpu, GpuUuid, MigDevice
from dra_driver.devices.shares import ConsumableShare, Share

if TYPE_CHECKING:
    from resource_nvidia_com.decode import Config

EXCLUSIVE = "Exclusive"
"""Name of the strategy for configs that name none."""

DeviceUuid = NewType("DeviceUuid", str)
"""What a process names its device by: a whole GPU's UUID or a MIG device's."""

DeviceKey = NewType("DeviceKey", str)
"""What plans name a device of a claim by: its UUID, and of a share which share it is."""


class MigUnit(Struct, frozen=True, kw_only=True):
    """A MIG device, and the GPU that it is on."""

    gpu: Gpu
    device: MigDevice


class ShareUnit(Struct, frozen=True, kw_only=True):
    """A share that a request of a claim got: the device's name, the GPU that it is on, itself."""

    name: str
    request: str
    gpu: Gpu
    share: Share | ConsumableShare


class SharingPlan(Struct, frozen=True, kw_only=True):
    """How some devices will be shared. `changes` is JSON that only the strategy reads.

    `gpus` are those that have to be locked for it: none if it changes nothing. `places` says what
    it is about, where that is not all of them.
    """

    strategy: str
    gpus: tuple[GpuUuid, ...]
    changes: Mapping[str, object] = field(default_factory=dict)
    places: tuple[GpuPart, ...] = ()

    @property
    def parts(self) -> tuple[GpuPart, ...]:
        """What the plan is about."""
        return self.places or tuple(GpuPart(gpu=gpu) for gpu in self.gpus)


class Group(Struct, frozen=True, kw_only=True):
    """The devices of one claim that stand under one config. `claim` is the claim's UID.

    A config is for whole GPUs or for MIG devices, so one of the two is empty; it is None where they
    have none. `shares` are shares of either. `name` is the claim's namespace and name; `pods` are
    the names of the pods that it is reserved for, by UID, and `pod_groups` those of PodGroups.
    `owed` are plans of former claims on these GPUs, or others, that could not be undone yet.
    """

    claim: str
    config: "Config | None"
    gpus: tuple[Gpu, ...] = ()
    migs: tuple[MigUnit, ...] = ()
    shares: tuple[ShareUnit, ...] = ()
    owed: tuple[SharingPlan, ...] = ()
    name: str = ""
    pods: Mapping[str, str] = field(default_factory=dict)
    pod_groups: tuple[str, ...] = ()


class Description(Struct, frozen=True, kw_only=True):
    """What a plan means for the containers of one device.

    `settings` are for programs, by the names of the API's units; `words` say the same to people.
    `domain` is the id of the MPS domain that serves the device; None without one.
    """

    settings: Mapping[str, object] = field(default_factory=dict)
    words: str = ""
    domain: str | None = None


class ComputeModes(Protocol):
    """Reads and sets compute modes as NVML numbers them: devices/session.py, kept out of reach.

    A strategy describes its plans to modules that may not reach NVML.
    """

    def compute_mode(self, uuid: str) -> int | None:
        """Return a GPU's mode; None when it has none. Raises DeviceError, TransientError."""
        ...

    def set_compute_mode(self, uuid: str, mode: int) -> None:
        """Set a GPU's mode. Raises DeviceError, TransientError."""
        ...


class Sharing:
    """A sharing strategy. As it stands it does nothing, which is all that EXCLUSIVE needs.

    Methods that touch hardware are called with the plan's GPUs locked. So none of them waits for a
    daemon: `wait_ready` and `let_go` do, with no GPU locked, and `sweep` only if its deadline is
    not in the past. Plans of one claim are applied and undone side by side, on threads of their
    own; to repeat either is harmless. Deadlines are values of the driver's monotonic clock, in
    seconds.

    While `plan` runs nobody else has the GPUs. It changes nothing: a GPU whose abilities can only
    be tried out is set as it is already, or to a default where it does not say.

    What cannot be done now raises DeviceError or TransientError; what a config asks for and these
    devices cannot do, ConfigError. What `let_go` or `undo` cannot end by the deadline is still
    wanted to end, and `undo` is tried again later.
    """

    survives_reboot = False
    """Whether what a plan makes lives by itself, as a daemon does.

    Then it outlives a reboot, because it is wanted by something on disk, and nobody else can have
    the GPUs before it is gone. Settings of hardware do neither.
    """

    def plan(self, groups: Sequence[Group], deadline: float) -> tuple[SharingPlan, ...]:  # noqa: ARG002
        """Return what is to be done for all groups of a claim; refuse what cannot be had."""
        return ()

    def edits(self, plan: SharingPlan) -> Mapping[DeviceKey, Edits]:  # noqa: ARG002
        """Return what containers get for the plan, by the device they use. Touches nothing."""
        return {}

    @staticmethod
    def describe(plan: SharingPlan, device: DeviceKey) -> Description:  # noqa: ARG004
        """Return what the plan means for one of its devices. Raises StateError: not its plan."""
        return Description()

    def apply(self, plan: SharingPlan, deadline: float) -> None:
        """Bring the plan about. Raises ConflictError while claims use the device in another way."""

    def ensure(self, plan: SharingPlan) -> None:
        """See to it that a plan which was applied still is, touching no hardware."""

    def wait_ready(self, plan: SharingPlan, deadline: float, given_up: Callable[[], bool]) -> None:
        """Wait until containers can start with the plan, but not long after `given_up` is True."""

    def let_go(self, plan: SharingPlan, deadline: float) -> None:
        """Ask for the end of what lives by itself for the plan, and wait for it; `undo` follows."""

    def undo(self, plan: SharingPlan, deadline: float) -> None:
        """Take back whatever of the plan has been brought about."""

    def claims(self) -> frozenset[str]:
        """Return the UIDs of the claims for which something is there that lives by itself."""
        return frozenset()

    def sweep(self, claim: str, deadline: float) -> None:
        """Undo all that is there for a claim that has no record, and so no plans."""


def share_key(uuid: DeviceUuid, label: str) -> DeviceKey:
    """Return what plans name a share of a device by; the label tells it from the others of it."""
    return DeviceKey(f"{uuid}#{label}")


def key_uuid(key: DeviceKey) -> DeviceUuid:
    """Return the UUID of the device that plans name by a key."""
    return DeviceUuid(key.partition("#")[0])


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
