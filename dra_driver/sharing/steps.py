"""Steps that share the devices of a claim, as plain values. Pure.

A step has everything that is needed to undo it. It is written to the claim's record before hardware
is touched, so another process can undo the steps in reverse order after a crash. The classes that
carry out steps are in this folder, too. Each part of a claim that can be undone separately is one
step. If nothing has to be changed, there is no step, or a step that locks no GPU and only describes
the device for `dra-driver status`.

A new step is a new class here, and a member of `SharingStep`; mypy names what else it needs.
"""

from collections.abc import Mapping
from typing import ClassVar

from msgspec import Struct, field
from msgspec.structs import replace

from dra_driver.devices.device import Device, Whole
from dra_driver.devices.model import GpuUuid, PciAddress
from dra_driver.devices.shares import ShareStrategy
from dra_driver.mps.domain import Domain, DomainDevice, DomainId
from dra_driver.sharing.limiters import Limiter
from resource_nvidia_com.v1beta1.names import Interval, SharingStrategy

ALL_THREADS = 100
"""The active thread percentage that limits nothing."""


class Description(Struct, frozen=True, kw_only=True):
    """What a step means for the containers of one device.

    `settings` are for programs, with names as in the API; `words` say the same for people.
    `domain` is the id of the MPS domain that serves the device; None if there is none.
    """

    settings: Mapping[str, object] = field(default_factory=dict)
    words: tuple[str, ...] = ()
    domain: str | None = None


class Step(Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel", tag_field="step"):
    """What all steps have: their devices, and how the driver has to treat them.

    `name` is used in logs, metrics and status. If a step `lives_by_itself`, its daemon is told to
    end, and the driver waits for that, before any GPU is locked. If a step `outlives_reboot`, files
    or something else that exists after a reboot need it. Until a step that `excludes` is undone,
    nobody else can have its devices; a mere setting can be overridden.
    """

    name: ClassVar[str]
    lives_by_itself: ClassVar[bool] = False
    outlives_reboot: ClassVar[bool] = False
    excludes: ClassVar[bool] = False

    devices: tuple[Device, ...]

    @property
    def gpus(self) -> tuple[GpuUuid, ...]:
        """The GPUs that have to be locked for the step, sorted; none if it changes nothing."""
        return tuple(sorted({device.gpu for device in self.devices}))

    def is_about(self, device: Device) -> bool:
        """Tell whether the step is about a device, even if the MIG device has been made again."""
        return any(own.is_like(device) for own in self.devices)

    def describe(self, device: Device) -> Description:  # noqa: ARG002 (most describe each device)
        """Return what the step means for one of its devices."""
        return Description()


class TimeSlice(Step, frozen=True, kw_only=True, tag="timeSlice"):
    """Sets a GPU's time-slice and compute mode; does nothing for a MIG device, which has neither.

    Attributes:
        interval: the time-slice that the config asks for.
        found_interval: the time-slice from before; None if it could not be read.
        found_mode: the compute mode from before, by NVML's number.
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

    def describe(self, device: Device) -> Description:  # noqa: ARG002 (it has one device)
        """Return the interval, or that it has no effect on MIG devices."""
        if not self.gpus:
            return Description(words=("no effect on MIG devices",))
        interval = str(self.interval)
        return Description(settings={"interval": interval}, words=(f"interval {interval}",))


class NvidiaMpsDaemon(Step, frozen=True, kw_only=True, tag="nvidiaMpsDaemon"):
    """Uses an MPS daemon that NVIDIA's own DRA driver runs (sharing/nvidia_mps.py).

    `daemon` is its name in that driver, `folder` has its sockets.
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

    def describe(self, device: Device) -> Description:  # noqa: ARG002 (one daemon for all)
        """Return the Deployment in which the daemon runs."""
        words = (f"Deployment {self.deployment}",)
        return Description(settings={"deployment": self.deployment}, words=words)


class ShareLimits(Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """What a process may use of a device if it has the shares of a request.

    The request has `taken` shares of the device. A device with equal shares is divided into
    `count`. Consumable shares have None there, and consumed `consumed_memory_mib` (MiB) and
    `consumed_cores` (percent of the device's SMs). `active_thread_percentage` limits the SMs, and
    `memory_mib` the memory, in MiB. A missing value is no limit.
    """

    taken: int
    count: int | None
    consumed_memory_mib: int = 0
    consumed_cores: int = 0
    active_thread_percentage: int | None = None
    memory_mib: int | None = None

    def described_size(self) -> tuple[dict[str, object], list[str]]:
        """Return the size of the shares, for programs and for people."""
        if self.count is not None:
            settings: dict[str, object] = {"shares": self.taken, "of": self.count}
            return settings, [f"{self.taken} of {self.count} shares"]
        memory, cores = self.consumed_memory_mib, self.consumed_cores
        sizes = [f"{memory} MiB"] if memory else []
        sizes += [f"{cores} % of SMs"] if cores else []
        settings = {"consumedMemoryMiB": memory, "consumedCores": cores}
        return settings, [f"consumes {' and '.join(sizes) or 'no memory or SMs'}"]


class UseShares(Step, frozen=True, kw_only=True, tag="useShares"):
    """Gives a claim shares of one device, and limits their memory.

    Attributes:
        limits: what a process may use with each of `devices`, in their order.
        limited_by: what limits memory.
        why: why nothing better does; empty for the best.
        memory_mib: the MiB that all the claim's shares of the device have; None is no limit.
        pod: the UID of the pod that control groups limit; empty if they do not.
    """

    name: ClassVar[str] = "Shares"
    outlives_reboot: ClassVar[bool] = True
    excludes: ClassVar[bool] = True

    strategy: ShareStrategy
    limits: tuple[ShareLimits, ...]
    limited_by: Limiter
    why: str = ""
    memory_mib: int | None = None
    pod: str = ""

    @property
    def gpus(self) -> tuple[GpuUuid, ...]:
        """The GPU whose memory is limited by control groups, if it is."""
        return (self.devices[0].gpu,) if self.pod else ()

    def describe(self, device: Device) -> Description:
        """Return the share, the limits of its containers, and what enforces them."""
        pairs = zip(self.devices, self.limits, strict=True)
        limits = next((limits for own, limits in pairs if own.key == device.key), None)
        if limits is None:
            return Description()
        settings, words = limits.described_size()
        if limits.active_thread_percentage is not None:
            settings["activeThreadPercentage"] = limits.active_thread_percentage
            words.append(f"{limits.active_thread_percentage} % of threads")
        by = self.limited_by
        memory = None if by is Limiter.NOTHING else limits.memory_mib
        if memory is not None:
            settings["pinnedMemoryMiB" if by is Limiter.MPS else "memoryMiB"] = memory
            words.append(f"{memory} MiB")
        enforced = by.words()
        settings["enforcedBy"] = enforced
        if memory is None and by is Limiter.CONTROL_GROUPS:
            words.append("no limit of memory")
        else:
            words.append(f"enforced by {enforced}" if enforced else "nothing limits memory")
        if self.why:
            settings["whyNotBetter"] = self.why
        return Description(settings=settings, words=tuple(words))


class ClientLimits(Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """What limits the processes of an MPS domain on one device; None is no limit.

    `daemon_memory_mib` is the daemon's own limit of each process's pinned memory there, in MiB. The
    others are in the environment of containers: percent of SMs, and MiB of pinned memory.
    """

    daemon_memory_mib: int | None = None
    active_thread_percentage: int | None = None
    memory_mib: int | None = None


class JoinDomain(Step, frozen=True, kw_only=True, tag="joinDomain"):
    """Makes a claim a member of the MPS domain that serves its devices, or its shares' device.

    Attributes:
        domain: the domain's id.
        claim: the claim's UID.
        limits: the limits on each device, in the order of `devices`.
        active_thread_percentage: the daemon's own, 1 to 100; None limits nothing.
        multi_user: one server for clients of all users.
        may_take_turns: with a GPU driver too old for `multi_user`, users take turns.
    """

    name: ClassVar[str] = str(SharingStrategy.MPS)
    lives_by_itself: ClassVar[bool] = True
    outlives_reboot: ClassVar[bool] = True
    excludes: ClassVar[bool] = True

    domain: DomainId
    claim: str
    limits: tuple[ClientLimits, ...]
    active_thread_percentage: int | None = None
    multi_user: bool = False
    may_take_turns: bool = False

    @property
    def wanted(self) -> Domain:
        """The domain that the supervisor is to serve. Raises StateError if a device is missing."""
        memory = {
            replace(device, share=None): limits.daemon_memory_mib
            for device, limits in zip(self.devices, self.limits, strict=True)
        }
        return Domain(
            id=self.domain,
            devices=tuple(
                DomainDevice(uuid=device.known_uuid, kind=device.kind, pinned_memory_mib=mib)
                for device, mib in memory.items()
            ),
            active_thread_percentage=self.active_thread_percentage,
            multi_user=self.multi_user,
            may_take_turns=self.may_take_turns,
        )

    def describe(self, device: Device) -> Description:
        """Return the domain, and the limits of the device's containers; a share has its own."""
        settings: dict[str, object] = {}
        words: list[str] = []
        own = zip(self.devices, self.limits, strict=True)
        for limits in (each for of, each in own if of.is_like(device) and device.share is None):
            percentage, memory = limits.active_thread_percentage, limits.daemon_memory_mib
            if percentage is not None:
                settings["activeThreadPercentage"] = percentage
                words.append(f"{percentage} % of threads")
            if memory is not None:
                settings["pinnedMemoryMiB"] = memory
                words.append(f"{memory} MiB")
            if self.multi_user:
                settings["multiUser"] = True
                words.append("multi-user")
        return Description(settings=settings, words=tuple(words), domain=self.domain)


class PassThrough(Step, frozen=True, kw_only=True, tag="passThrough"):
    """Gives a GPU to a virtual machine; there is nothing to undo.

    Attributes:
        address: the GPU's address on the PCI bus.
        driver: the VFIO driver that it is bound to.
        group: the number of its IOMMU group.
        iommufd: whether the GPU is opened by its own node (IOMMUFD), not by that of its group.
        api_device: whether containers also get the node of the VFIO or IOMMUFD API.
    """

    name: ClassVar[str] = "VFIO"

    address: PciAddress
    driver: str
    group: int
    iommufd: bool = False
    api_device: bool = False

    def describe(self, device: Device) -> Description:  # noqa: ARG002 (it has one device)
        """Return the driver and the IOMMU group."""
        settings = {"driver": self.driver, "iommuGroup": self.group, "iommuFD": self.iommufd}
        return Description(
            settings=settings, words=(f"bound to {self.driver}", f"IOMMU group {self.group}")
        )


SharingStep = TimeSlice | NvidiaMpsDaemon | UseShares | JoinDomain | PassThrough
"""Any step that shares the devices of a claim."""
