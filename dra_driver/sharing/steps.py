"""Steps that share the devices of a claim, as plain values. Pure.

A step has everything that is needed to undo it. So it is in the claim's record before hardware is
touched, and after a crash another process can undo the steps in reverse order. What carries a step
out is beside it in this folder. Each part of a claim that can be undone separately is one step. If
nothing has to be changed there is no step, or one that locks no GPU, if `dra-driver status` has
something to say about it.

A new step is a new class here, and a member of `SharingStep`; mypy names what else it needs.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import ClassVar

from msgspec import Struct, field

from dra_driver.devices.device import Device, DeviceKey, Whole, key_uuid
from dra_driver.devices.model import GpuUuid, PciAddress
from dra_driver.devices.shares import ShareStrategy
from dra_driver.mps.domain import Domain
from resource_nvidia_com.v1beta1.names import Interval, SharingStrategy

ALL_THREADS = 100
"""Percent: no limit."""


class Description(Struct, frozen=True, kw_only=True):
    """What a step means for the containers of one device.

    `settings` are for programs, by the names of the API's units; `words` say the same to people.
    `domain` is the id of the MPS domain that serves the device; None without one.
    """

    settings: Mapping[str, object] = field(default_factory=dict)
    words: tuple[str, ...] = ()
    domain: str | None = None


class Step(Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel", tag_field="step"):
    """What all steps have: the devices that a step is about, and how others treat it.

    `name` is used in logs, metrics and status. If a step `lives_by_itself`, as a daemon does, it is
    asked to end, and its end is awaited, before any GPU is locked. A step that `outlives_reboot` is
    needed by something on disk, or known to something that exists after a reboot. While a step that
    `excludes` is not undone, nobody else can have its devices; a mere setting can be overridden.
    """

    name: ClassVar[str]
    lives_by_itself: ClassVar[bool] = False
    outlives_reboot: ClassVar[bool] = False
    excludes: ClassVar[bool] = False

    devices: tuple[Device, ...]

    @property
    def gpus(self) -> tuple[GpuUuid, ...]:
        """The GPUs that have to be locked for it, sorted; none if it changes nothing."""
        return tuple(sorted({gpu for device in self.devices for gpu in device.served}))

    def is_about(self, device: Device) -> bool:
        """Tell whether the step is about a device, whichever MIG device is in its place now."""
        return any((own.place, own.share) == (device.place, device.share) for own in self.devices)

    def describe(self, key: DeviceKey) -> Description:  # noqa: ARG002 (most have words for each)
        """Return what the step means for one of its devices."""
        return Description()


class TimeSlice(Step, frozen=True, kw_only=True, tag="timeSlice"):
    """A GPU's time-slice and compute mode are set; a MIG device has neither, and nothing is done.

    Attributes:
        interval: what the config wants.
        found_interval: what stood before; None where it could not be read.
        found_mode: the compute mode that stood before, as NVML numbers it.
        card: the GPU, for people.
    """

    name: ClassVar[str] = str(SharingStrategy.TIME_SLICING)

    interval: Interval = Interval.DEFAULT
    found_interval: Interval | None = None
    found_mode: int = 0
    card: str = ""

    @property
    def gpus(self) -> tuple[GpuUuid, ...]:
        """The GPU; none for a MIG device."""
        return tuple(device.gpu for device in self.devices if isinstance(device.base, Whole))

    def describe(self, key: DeviceKey) -> Description:  # noqa: ARG002 (it has one device)
        """Return the interval, or that there is none."""
        if not self.gpus:
            return Description(words=("no effect on MIG devices",))
        interval = str(self.interval)
        return Description(settings={"interval": interval}, words=(f"interval {interval}",))


class MpsDomain(Step, frozen=True, kw_only=True, tag="mpsDomain"):
    """An MPS domain of the claim's own serves devices.

    Attributes:
        clients: active thread percentage of containers, by device; 100 is no limit.
        too_high: MiB that a config asks for, by device, where that has less.
    """

    name: ClassVar[str] = str(SharingStrategy.MPS)
    lives_by_itself: ClassVar[bool] = True
    outlives_reboot: ClassVar[bool] = True
    excludes: ClassVar[bool] = True

    domain: Domain
    clients: Mapping[DeviceKey, int]
    too_high: Mapping[DeviceKey, int] = field(default_factory=dict)

    def memory_mib(self, key: DeviceKey) -> int | None:
        """Return the limit of pinned memory of a device, in MiB; None without one."""
        limits = (device.pinned_memory_mib for device in self.domain.devices if device.uuid == key)
        return next(limits, None)

    def describe(self, key: DeviceKey) -> Description:
        """Return the domain, and the limits of the device's containers."""
        percentage, memory = self.clients.get(key, ALL_THREADS), self.memory_mib(key)
        settings: dict[str, object] = {}
        words: list[str] = []
        if percentage != ALL_THREADS:
            settings["activeThreadPercentage"] = percentage
            words.append(f"{percentage} % of threads")
        if memory is not None:
            settings["pinnedMemoryMiB"] = memory
            asked = self.too_high.get(key)
            words.append(f"{memory} MiB" + (f" (asked for {asked} MiB)" if asked else ""))
        if self.domain.multi_user:
            settings["multiUser"] = True
            words.append("multi-user")
        return Description(settings=settings, words=tuple(words), domain=self.domain.id)


class NvidiaMpsDaemon(Step, frozen=True, kw_only=True, tag="nvidiaMpsDaemon"):
    """An MPS daemon of NVIDIA's own DRA driver serves devices (sharing/nvidia_mps.py).

    `daemon` is its name there, `folder` where it has its sockets.
    """

    name: ClassVar[str] = "NvidiaMPS"

    daemon: str
    folder: str

    @property
    def gpus(self) -> tuple[GpuUuid, ...]:
        """The whole GPUs whose compute modes are restored at the end."""
        wholes = {
            device.gpu
            for device in self.devices
            if device.share is None and isinstance(device.base, Whole)
        }
        return tuple(sorted(wholes))

    @property
    def deployment(self) -> str:
        """The name of the Deployment in which that driver runs the daemon."""
        return f"mps-control-daemon-{self.daemon}"

    def describe(self, key: DeviceKey) -> Description:  # noqa: ARG002 (one daemon for all)
        """Return the Deployment in which the daemon runs."""
        words = (f"Deployment {self.deployment}",)
        return Description(settings={"deployment": self.deployment}, words=words)


class Backend(StrEnum):
    """What enforces memory, best first."""

    CONTROL_GROUPS = "ControlGroups"
    MPS = "MPS"
    WATCHED = "Watched"
    """Containers that take more are found afterwards (usage/watch.py)."""
    NOTHING = "Nothing"

    def words(self) -> str | None:
        """Return the backend for people; None for nothing."""
        return _BACKEND_WORDS.get(self)


_BACKEND_WORDS = {
    Backend.CONTROL_GROUPS: "control groups (NVML)",
    Backend.MPS: "MPS",
    Backend.WATCHED: "watching (--over-limit)",
}


class MemoryPart(Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """What a claim may have of the memory of GPUs, and what enforces it.

    `of_device` enforces it for tenants of the device in general, and `why` is why nothing better
    does. `claim` is the claim's UID. `pod`, the UID of the pod that is limited, and `mib`, MiB of
    each GPU for all of the claim's shares there, are empty unless it is by control groups.
    """

    by: Backend
    of_device: Backend
    why: str = ""
    claim: str = ""
    pod: str = ""
    mib: Mapping[GpuUuid, int] = field(default_factory=dict)


class ShareLimits(Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """What a process may use that has a request's shares.

    The request has `taken` shares of this device, which is divided into `count`; None for shares
    that need not be equal. Of the latter `consumed_memory_mib` (MiB) and `consumed_cores` (percent
    of the device's SMs) were consumed; 0 for equal shares. `active_thread_percentage` is of the SMs
    of each device, and `memory_mib` of each device of the request by UUID, in MiB; without one
    there is no limit.
    """

    taken: int
    count: int | None
    consumed_memory_mib: int = 0
    consumed_cores: int = 0
    active_thread_percentage: int | None = None
    memory_mib: Mapping[str, int] = field(default_factory=dict)

    def described_size(self) -> tuple[dict[str, object], list[str]]:
        """Return how large a share is: for programs, and for people."""
        if self.count is not None:
            settings: dict[str, object] = {"shares": self.taken, "of": self.count}
            return settings, [f"{self.taken} of {self.count} shares"]
        memory, cores = self.consumed_memory_mib, self.consumed_cores
        sizes = [f"{memory} MiB"] if memory else []
        sizes += [f"{cores} % of SMs"] if cores else []
        settings = {"consumedMemoryMiB": memory, "consumedCores": cores}
        return settings, [f"consumes {' and '.join(sizes) or 'no memory or SMs'}"]


class UseShares(Step, frozen=True, kw_only=True, tag="useShares"):
    """The claim has shares of devices that are served together, within its limits of memory."""

    name: ClassVar[str] = "Shares"
    outlives_reboot: ClassVar[bool] = True
    excludes: ClassVar[bool] = True

    strategy: ShareStrategy
    limits: Mapping[DeviceKey, ShareLimits]
    memory: MemoryPart

    @property
    def gpus(self) -> tuple[GpuUuid, ...]:
        """The GPUs of which control groups limit memory."""
        return tuple(sorted(self.memory.mib))

    def describe(self, key: DeviceKey) -> Description:
        """Return the share, the limits of its containers, and what enforces them."""
        limits, part = self.limits.get(key), self.memory
        if limits is None:
            return Description()
        settings, words = limits.described_size()
        if limits.active_thread_percentage is not None:
            settings["activeThreadPercentage"] = limits.active_thread_percentage
            words.append(f"{limits.active_thread_percentage} % of threads")
        memory = None if part.by is Backend.NOTHING else limits.memory_mib.get(key_uuid(key))
        if memory is not None:
            settings["pinnedMemoryMiB" if part.by is Backend.MPS else "memoryMiB"] = memory
            words.append(f"{memory} MiB")
        enforced = part.by.words()
        settings["enforcedBy"] = enforced
        if memory is None and part.by is Backend.CONTROL_GROUPS:
            words.append("no limit of memory")
        else:
            words.append(f"enforced by {enforced}" if enforced else "nothing limits memory")
        if part.why:
            settings["whyNotBetter"] = part.why
        return Description(settings=settings, words=tuple(words))


class ContainerLimits(Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """The limits of a process of a container: percent of SMs, and MiB by device; none is no limit.

    `memory_mib` is empty where the environment does not limit memory. `is_of_several`: they are
    those of several requests together.
    """

    active_thread_percentage: int | None = None
    memory_mib: Mapping[str, int] = field(default_factory=dict)
    is_of_several: bool = False


class JoinDomain(Step, frozen=True, kw_only=True, tag="joinDomain"):
    """The claim is a member of the MPS domain that serves the devices of its shares.

    `claim` is its UID; `clients` are the limits in the environment of containers, by share.
    """

    name: ClassVar[str] = "Shares"
    lives_by_itself: ClassVar[bool] = True
    outlives_reboot: ClassVar[bool] = True
    excludes: ClassVar[bool] = True

    domain: Domain
    claim: str
    clients: Mapping[DeviceKey, ContainerLimits]

    def describe(self, key: DeviceKey) -> Description:
        """Return the domain, and what containers have by all of the claim's requests together."""
        client = self.clients.get(key)
        words: tuple[str, ...] = ()
        if client is not None and client.is_of_several:
            percent, mib = client.active_thread_percentage, client.memory_mib.get(key_uuid(key))
            limits = [f"{mib} MiB"] if mib is not None else []
            limits += [f"{percent} % of threads"] if percent is not None else []
            words = (f"with the claim's other requests {' and '.join(limits) or 'no limit'}",)
        return Description(words=words, domain=self.domain.id)


class BoundFunction(Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """A function of a GPU, and what it was bound to before.

    `found_override` is its driver_override: the only driver that could have been bound to it.
    """

    address: PciAddress
    found_driver: str | None = None
    found_override: str = ""


class PassThrough(Step, frozen=True, kw_only=True, tag="passThrough"):
    """A GPU is taken from the GPU driver and given to a VFIO driver, for a virtual machine.

    Attributes:
        address: where the GPU is on the PCI bus.
        driver: the VFIO driver.
        functions: the GPU itself, and what goes with it, such as its audio.
        group: number of its IOMMU group.
        was_persistent: persistence mode was on.
        iommufd: it is opened by a device of its own (IOMMUFD), not by its group.
        api_device: containers get the node that opens I/O address spaces as well.
    """

    name: ClassVar[str] = "VFIO"
    excludes: ClassVar[bool] = True

    address: PciAddress
    driver: str
    functions: tuple[BoundFunction, ...]
    group: int
    was_persistent: bool = False
    iommufd: bool = False
    api_device: bool = False

    @property
    def gpu(self) -> GpuUuid:
        """The GPU."""
        return self.devices[0].gpu

    def describe(self, key: DeviceKey) -> Description:  # noqa: ARG002 (it has one device)
        """Return the driver and the IOMMU group."""
        settings = {"driver": self.driver, "iommuGroup": self.group, "iommuFD": self.iommufd}
        return Description(
            settings=settings, words=(f"bound to {self.driver}", f"IOMMU group {self.group}")
        )


SharingStep = TimeSlice | MpsDomain | NvidiaMpsDaemon | UseShares | JoinDomain | PassThrough
"""What is done to share the devices of a claim."""
