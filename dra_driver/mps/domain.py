"""What an MPS domain shall be, and what has become of it, as bytes on disk and back. Pure.

A domain is a set of whole GPUs, or one MIG device, that one nvidia-cuda-mps-control serves. The
driver writes a `Domain`, the supervisor answers with a `Status`. The daemon takes memory limits by
ordinal: the position in its CUDA_VISIBLE_DEVICES, which is the order of `Domain.devices`. A GPU in
MIG mode has no compute modes and its instances need a daemon each (NVIDIA's MPS documentation).

A domain is one claim's, or shared: claims join it and leave (mps/members.py).
"""

import re
from collections.abc import Mapping
from enum import StrEnum
from hashlib import sha256
from typing import NewType

import msgspec
from msgspec import Struct, field
from msgspec.structs import replace

from dra_driver.devices.device import DeviceKind, is_uuid_of
from dra_driver.errors import StateError
from dra_driver.host.envelope import seal, unseal, value_of

DomainId = NewType("DomainId", str)
"""Names a domain's files and folders.

That of a claim is its UID, or begins with it; that of a shared domain begins as no UUID does.
"""

_ID = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,126}[A-Za-z0-9])?")
_OF_MIG = "_mig_"
_SHARED = "shared_"


class State(StrEnum):
    """How far the supervisor has come with a domain."""

    STARTING = "starting"
    """The daemon is being brought up, for the first time or after an attempt that failed."""

    READY = "ready"
    """The daemon answered, and read back the limits that were asked for."""

    FAULTED = "faulted"
    """The daemon answers, and a server takes no clients: a fatal fault of one, or it hangs."""

    RESTARTING = "restarting"
    """The daemon died. Its clients have lost their CUDA contexts; a new one is being brought up."""

    FAILED = "failed"
    """Several attempts in a row failed, or the desired cannot be read. It is tried on, slowly."""

    STOPPING = "stopping"
    """The desired is gone, and what was done for it is being taken back."""


class DomainDevice(Struct, frozen=True, kw_only=True):
    """A device of a domain: a whole GPU's or a MIG device's UUID.

    `pinned_memory_mib` is what each client may allocate there, in MiB; None is no limit. Only a
    whole GPU has a compute mode.
    """

    uuid: str
    kind: DeviceKind = DeviceKind.GPU
    pinned_memory_mib: int | None = field(default=None, name="pinnedMemoryMiB")


class Domain(Struct, frozen=True, kw_only=True, rename="camel"):
    """One domain as it is wanted. Raises StateError if it is none that a daemon could serve.

    Attributes:
        active_thread_percentage: 1 to 100; None leaves NVIDIA's 100.
        multi_user: one server for clients of all users.
        incarnation: tells a shared domain from one that had its id before, ended, and may still be
            in the status file. Who asks for a domain leaves it empty.
    """

    id: DomainId
    devices: tuple[DomainDevice, ...]
    active_thread_percentage: int | None = None
    multi_user: bool = False
    incarnation: str = ""

    def __post_init__(self) -> None:
        check_id(self.id)
        uuids = [device.uuid for device in self.devices]
        for device in self.devices:
            if not is_uuid_of(device.kind, device.uuid):
                raise StateError(
                    f"{device.uuid[:160]!r} is not a valid UUID of a device of type {device.kind}"
                )
            if device.pinned_memory_mib is not None and device.pinned_memory_mib < 1:
                raise StateError(f"pinned memory limit of {device.uuid}: want 1 MiB or more")
        if not uuids or len(set(uuids)) != len(uuids):
            raise StateError("want one device or more, each once")
        if len(uuids) > 1 and len(self.whole_gpus) < len(uuids):
            raise StateError("a MIG device has a domain of its own")
        percentage = self.active_thread_percentage
        if percentage is not None and not 1 <= percentage <= 100:
            raise StateError("active thread percentage: want 1 to 100")

    @property
    def whole_gpus(self) -> tuple[str, ...]:
        """The UUIDs of the devices that are whole GPUs, which have compute modes."""
        return tuple(device.uuid for device in self.devices if device.kind is DeviceKind.GPU)

    @property
    def visible_devices(self) -> str:
        """The daemon's CUDA_VISIBLE_DEVICES. A limit's ordinal is the position in here."""
        return ",".join(device.uuid for device in self.devices)

    @property
    def content(self) -> "Domain":
        """The domain as it was asked for, whichever incarnation it is."""
        return replace(self, incarnation="")

    @property
    def generation(self) -> str:
        """A short text that changes with anything in the domain."""
        return sha256(encode_domain(self)).hexdigest()[:16]

    @property
    def daemon_generation(self) -> str:
        """A short text that changes with whatever a daemon can be told only at its start."""
        return sha256(f"{self.visible_devices} {self.multi_user}".encode()).hexdigest()[:16]


class Daemon(Struct, frozen=True, kw_only=True, rename="camel"):
    """A process, unmistakably. `start_ticks` is field 22 of /proc/<pid>/stat, clock ticks."""

    pid: int
    start_ticks: int


class Status(Struct, frozen=True, kw_only=True, rename="camel"):
    """What the supervisor says of a domain. Raises StateError for an id that none can have.

    Attributes:
        supervisor: which supervisor process says it; what an earlier one said may be out of date.
        generation: the `Domain.generation` it speaks of; empty when the desired cannot be read.
        reason: for people, when the state is not what was wished; empty otherwise.
        active_thread_percentage: as the daemon read it back.
        pinned_memory_mib: as the daemon read it back, by UUID; MiB.
        restarts: how often a daemon of this domain died and was replaced.
        failures: attempts in a row that failed; each one that does changes the status.
    """

    id: DomainId
    state: State
    supervisor: str
    generation: str = ""
    reason: str = ""
    daemon: Daemon | None = None
    active_thread_percentage: float | None = None
    pinned_memory_mib: Mapping[str, int] = field(default_factory=dict, name="pinnedMemoryMiB")
    restarts: int = 0
    failures: int = 0

    def __post_init__(self) -> None:
        check_id(self.id)


def mig_domain(claim: str, number: int) -> DomainId:
    """Return the id of the domain for a claim's MIG device of that number, counted from 0."""
    return DomainId(f"{claim}{_OF_MIG}{number}")


def shared_domain(name: str) -> DomainId:
    """Return the id of a shared domain with this name, such as a device's UUID."""
    return check_id(f"{_SHARED}{name}")


def is_shared(domain: str) -> bool:
    """Tell whether a domain is one that claims join and leave."""
    return domain.startswith(_SHARED)


def claim_of(domain: DomainId) -> str | None:
    """Return the UID of the claim that a domain is for; None for a shared one."""
    if is_shared(domain):
        return None
    claim, mark, number = domain.rpartition(_OF_MIG)
    return claim if mark and number.isdecimal() else domain


def check_id(text: str) -> DomainId:
    """Return the id if it is safe as a file name; else StateError."""
    if not is_id(text):
        raise StateError(
            f"{text[:160]!r} is not a valid domain id: want 1 to 128 letters, digits, '-', '_' "
            "and '.'"
        )
    return DomainId(text)


def is_id(text: str) -> bool:
    """Tell whether a text is safe as a file name, as ids of domains and UIDs of claims are."""
    return _ID.fullmatch(text) is not None


def domain_json(domain: Domain) -> dict[str, object]:
    """Return a domain as JSON; the same domain gives the same JSON.

    In every version of the driver, too: `generation` is made of it, by which a driver and a
    supervisor of another version know that they mean the same.
    """
    plain: dict[str, object] = msgspec.to_builtins(domain)
    return plain if domain.incarnation else {k: v for k, v in plain.items() if k != "incarnation"}


def encode_domain(domain: Domain) -> bytes:
    """Return the bytes of a desired-state file; the same domain gives the same bytes."""
    return seal(domain_json(domain))


def decode_domain(data: bytes) -> Domain:
    """Return the domain of a desired-state file.

    Raises VersionError if a newer version of this driver made it, and StateError if it is damaged,
    or no daemon could serve it.
    """
    return value_of(unseal(data), Domain, "a domain")


def encode_status(status: Status) -> bytes:
    """Return the bytes of a status file."""
    return seal(msgspec.to_builtins(status))


def decode_status(data: bytes) -> Status:
    """Return the status of a status file; StateError if it is damaged."""
    return value_of(unseal(data), Status, "a status")
