"""Converts the desired state and the status of an MPS domain to bytes on disk and back. Pure.

A domain is a set of whole GPUs, or one MIG device, served by one nvidia-cuda-mps-control. The
driver writes a `Domain`, the supervisor answers with a `Status`. The daemon takes memory limits by
ordinal, the position in its CUDA_VISIBLE_DEVICES, which is the order of `Domain.devices`. A GPU in
MIG mode has no compute modes and its instances need a daemon each (NVIDIA's MPS documentation).
Claims join and leave domains (mps/requests.py).
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
"""Names a domain's files and folders: a claim's UID for all its whole GPUs, or as below."""

_ID = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,126}[A-Za-z0-9])?")


class State(StrEnum):
    """The state of a domain in the supervisor."""

    STARTING = "starting"
    """The daemon is being started, for the first time or after a failed attempt."""

    READY = "ready"
    """The daemon answered, and reported the desired limits."""

    FAULTED = "faulted"
    """The daemon answers, but a server refuses clients after a fatal fault."""

    RESTARTING = "restarting"
    """The daemon died. Its clients have lost their CUDA contexts; a new one is being started."""

    FAILED = "failed"
    """Several attempts in a row failed, or the desired state cannot be read. Retries are slow."""

    STOPPING = "stopping"
    """The desired state is gone, and everything done for it is being undone."""


class DomainDevice(Struct, frozen=True, kw_only=True):
    """A device of a domain: a whole GPU or a MIG device.

    `pinned_memory_mib` is how much memory each client may allocate there, in MiB; None is no limit.
    Only a whole GPU has a compute mode.
    """

    uuid: str
    kind: DeviceKind = DeviceKind.GPU
    pinned_memory_mib: int | None = field(default=None, name="pinnedMemoryMiB")


class Domain(Struct, frozen=True, kw_only=True, rename="camel"):
    """The desired state of one domain. Raises StateError if no daemon could serve it.

    Attributes:
        active_thread_percentage: 1 to 100; None leaves NVIDIA's 100.
        multi_user: one server for clients of all users.
        may_take_turns: with a GPU driver too old for `multi_user`, users take turns.
        incarnation: distinguishes a domain from an earlier one with the same id that may still be
            in the status file. Callers that ask for a domain leave it empty.
    """

    id: DomainId
    devices: tuple[DomainDevice, ...]
    active_thread_percentage: int | None = None
    multi_user: bool = False
    may_take_turns: bool = False
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
        """The daemon's CUDA_VISIBLE_DEVICES. A limit's ordinal is the position in it."""
        return ",".join(device.uuid for device in self.devices)

    @property
    def content(self) -> "Domain":
        """The domain as it was requested, without the incarnation."""
        return replace(self, incarnation="")

    @property
    def generation(self) -> str:
        """A short text that changes if anything in the domain changes."""
        return sha256(encode(self)).hexdigest()[:16]

    @property
    def daemon_generation(self) -> str:
        """A short text that changes if a change in the domain needs a new daemon."""
        return sha256(f"{self.visible_devices} {self.multi_user}".encode()).hexdigest()[:16]


class Daemon(Struct, frozen=True, kw_only=True, rename="camel"):
    """Identifies one process. `start_ticks` is field 22 of /proc/<pid>/stat, in clock ticks."""

    pid: int
    start_ticks: int


class Status(Struct, frozen=True, kw_only=True, rename="camel"):
    """What the supervisor reports about a domain. Raises StateError for an invalid id.

    Attributes:
        supervisor: the supervisor process that reports; an earlier one's report may be out of date.
        generation: the `Domain.generation` reported on; empty if the desired state is unreadable.
        reason: for people, if the state is not the desired one; empty otherwise.
        active_thread_percentage: as reported by the daemon.
        pinned_memory_mib: as reported by the daemon, by UUID; MiB.
        restarts: how often a daemon of this domain died and was replaced.
        failures: how many attempts in a row have failed; each failure changes the status.
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
    return DomainId(f"{claim}_mig_{number}")


def shared_domain(device: str) -> DomainId:
    """Return the id of the domain for all shares of the device with this UUID."""
    return check_id(f"shared_{device}")


def check_id(text: str) -> DomainId:
    """Return the id if it is safe as a file name. Raises StateError."""
    if not is_id(text):
        raise StateError(
            f"{text[:160]!r} is not a valid domain id: want 1 to 128 letters, digits, '-', '_' "
            "and '.'"
        )
    return DomainId(text)


def is_id(text: str) -> bool:
    """Tell whether a text is safe as a file name, as ids of domains and UIDs of claims are."""
    return _ID.fullmatch(text) is not None


def encode(value: Domain | Status) -> bytes:
    """Return the bytes of a desired-state or status file; the same value gives the same bytes.

    `Domain.generation` is computed from them, so drivers and supervisors of different versions
    compare them, too.
    """
    return seal(msgspec.to_builtins(value))


def decode_domain(data: bytes) -> Domain:
    """Return the domain of a desired-state file.

    Raises VersionError if a newer version of this driver made it, and StateError if it is damaged,
    or no daemon could serve it.
    """
    return value_of(unseal(data), Domain, "a domain")


def decode_status(data: bytes) -> Status:
    """Return the status of a status file; StateError if it is damaged."""
    return value_of(unseal(data), Status, "a status")
