"""The checkpoint of NVIDIA's DRA driver: what it had prepared on this node.

In: its `checkpoint.json`. Out: its claims, each with the devices that were reported to the kubelet,
and what was set for them. The file has every claim twice, as `v2` and, for older versions of that
driver, as `v1`; the newer is read. A checksum covers the bytes of each (checkpointmanager of the
kubelet: 32 bit FNV-1a over Go's notation of a byte slice). A damaged file
(dra-driver-nvidia-gpu#1080) is not read at all. A claim is read as a whole or not at all, because
one that is half understood would be half undone; the other claims are still read.
"""

import json
import re
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from msgspec import Struct

from dra_driver.claims.model.claim import ClaimUid, check_uid
from dra_driver.devices.model import GpuUuid, MigUuid, PciAddress
from dra_driver.errors import DriverError, StateError, VersionError
from dra_driver.host.envelope import MALFORMED
from dra_driver.host.files import read_whole

_LARGEST = 8 * 1024**2
"""The largest checkpoint that is read, in bytes; one with a hundred claims has about 500 KiB."""

_VERSIONS = ("v1", "v2")
_CHECKSUM = re.compile(r'\{"checksum":(?P<sum>[0-9]{1,10})(?=[,}])')
_GPU = re.compile(r"GPU-[A-Za-z0-9-]{1,91}")
_MIG = re.compile(r"MIG-[A-Za-z0-9/-]{1,120}")
_PCI = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
_WORD = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._/-]{0,251}[A-Za-z0-9])?")
_CDI_ID = re.compile(
    r"[a-z0-9.-]{1,120}/[A-Za-z0-9_-]{1,60}=[A-Za-z0-9](?:[A-Za-z0-9_.:-]{0,253}[A-Za-z0-9])?"
)
_DAEMON_END = re.compile(r"-[0-9a-f]{5}")
_BLANKS = re.compile(r"[ \t\r\n]*")


class PeerMig(Struct, frozen=True, kw_only=True):
    """A MIG device as that driver recorded it.

    `uuid` is None if the parent's UUID was recorded in its place. All releases up to v0.5.0 do so
    for a device that they made for a claim (gate DynamicMIG): NVML's information on a compute
    instance contains the GPU's handle, whose UUID they query. Devices that existed before
    have their own in NVML's list. Other fields are None if an old version recorded only the UUID.
    """

    uuid: MigUuid | None = None
    parent: GpuUuid | None = None
    gpu_instance: int | None = None
    compute_instance: int | None = None

    @property
    def is_made_for_claims(self) -> bool:
        """Whether the device was certainly made for a claim; False leaves it open."""
        return self.uuid is None


class PeerVfio(Struct, frozen=True, kw_only=True):
    """A GPU of a virtual machine; its address is None if an old version recorded none."""

    address: PciAddress | None


class PeerDevice(Struct, frozen=True, kw_only=True):
    """A device of a claim, and what was reported to the kubelet about it."""

    device: GpuUuid | PeerMig | PeerVfio
    requests: tuple[str, ...]
    pool: str
    name: str
    cdi_device_ids: tuple[str, ...]


class PeerGroup(Struct, frozen=True, kw_only=True):
    """The devices of a claim to which the same config applies.

    `mps_daemon` is the id of the MPS daemon that serves them; None if there is none. If they are
    `time_sliced`, their time-slice and compute mode are reset when the claim ends.
    """

    devices: tuple[PeerDevice, ...]
    mps_daemon: str | None
    time_sliced: bool


class PeerClaim(Struct, frozen=True, kw_only=True):
    """A claim that was prepared, or was about to be.

    `namespace` and `name` are empty if they were not recorded, as for all prepared claims. If a
    claim is not `is_prepared`, the kubelet does not know of it, but something may have been done;
    it has no `groups`. `status` is that of the ResourceClaim at that time.
    """

    uid: ClaimUid
    namespace: str
    name: str
    is_prepared: bool
    status: Mapping[str, Any]
    groups: tuple[PeerGroup, ...]

    @property
    def pods(self) -> tuple[str, ...]:
        """Names of the pods that use the claim, for people."""
        return _pods(self.status)


class UnreadClaim(Struct, frozen=True, kw_only=True):
    """A claim that is not understood, for people.

    `uid` is the text in the file, which may be anything; `pods` are the names that can be read.
    """

    uid: str
    reason: str
    pods: tuple[str, ...] = ()


class PeerCheckpoint(Struct, frozen=True, kw_only=True):
    """The content of the file; `unread` are the claims that are not understood.

    `boot_id` is the kernel's; None if an old version recorded none.
    """

    boot_id: str | None
    claims: tuple[PeerClaim, ...]
    unread: tuple[UnreadClaim, ...] = ()

    @property
    def all(self) -> tuple[PeerClaim | UnreadClaim, ...]:
        """All claims that the file lists."""
        return (*self.claims, *self.unread)


def read_checkpoint(file: Path) -> bytes | None:
    """Return the content of a checkpoint; None if there is none. Raises StateError."""
    try:
        if file.stat().st_size > _LARGEST:
            raise StateError(f"it is larger than {_LARGEST} bytes")
        contents = read_whole(file)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise StateError(f"it cannot be read: {error.strerror or error}") from error
    return None if contents is None else contents[0]


def parse_checkpoint(data: bytes) -> PeerCheckpoint:
    """Return the content of a checkpoint.

    Raises VersionError if its version is not known here, StateError if it is damaged, or has
    something that NVIDIA's DRA driver never writes.
    """
    if len(data) > _LARGEST:
        raise StateError(f"it has {len(data)} bytes; at most {_LARGEST} are read")
    try:
        members = _members(data.decode())
        whole = {name: json.loads(text) for name, text in members.items()}
        _check_version(whole)
        _check_sums(members)
        newest = "v2" if "v2" in whole else "v1"
        content = whole.get(newest) or {}
        claims, unread = _claims(content, newest=newest == "v2")
        return PeerCheckpoint(
            boot_id=_optional(content.get("nodeBootID")) if newest == "v2" else None,
            claims=claims,
            unread=unread,
        )
    except DriverError:
        raise
    except (*MALFORMED, RecursionError) as error:
        raise StateError(f"its content is not that of a checkpoint: {error!r:.200}") from error


def without(data: bytes, uids: Collection[str]) -> bytes:
    """Return a sound checkpoint without some claims; the others keep every byte.

    That driver considers its file damaged unless every byte is as it would write it again. Raises
    StateError if, for example, a claim is in it twice.
    """
    try:
        members = _members(data.decode())
        if "v1" in members:
            members["v1"] = _without(members["v1"], uids)
        members["checksum"] = str(checksum(_first_view(members)))
        if "v2" in members:
            second = _members(_without(members["v2"], uids))
            total = checksum(_joined(second | {"checksum": "0"}))
            members["v2"] = _joined(second | {"checksum": str(total)})
        return _joined(members).encode()
    except MALFORMED as error:
        raise StateError(f"its claims cannot be removed: {error!r:.200}") from error


def checksum(text: str) -> int:
    """Return the checksum of JSON text as the kubelet's checkpointmanager computes it."""
    total = 0x811C9DC5
    for byte in f"([]uint8)[{' '.join(map(str, text.encode()))}]".encode():
        total = (total ^ byte) * 0x01000193 & 0xFFFFFFFF
    return total


def _members(text: str) -> dict[str, str]:
    """Return the members of a JSON object, each as its text in the object."""
    decoder = json.JSONDecoder()

    def skip(at: int, expected: str) -> int:
        start = _blank(text, at)
        if text[start : start + 1] != expected:
            raise ValueError(f"{expected!r} is missing at {start}")
        return _blank(text, start + 1)

    members: dict[str, str] = {}
    at = skip(0, "{")
    while text[at : at + 1] != "}":
        if members:
            at = skip(at, ",")
        name, at = decoder.raw_decode(text, at)
        start = skip(at, ":")
        _, at = decoder.raw_decode(text, start)
        if not isinstance(name, str) or name in members:
            raise ValueError(f"member {name!r} occurs twice, or has no name")
        members[name] = text[start:at]
        at = _blank(text, at)
    if _blank(text, at + 1) != len(text):
        raise ValueError("something follows it")
    return members


def _joined(members: Mapping[str, str]) -> str:
    return f"{{{','.join(f'{json.dumps(name)}:{text}' for name, text in members.items())}}}"


def _without(part: str, uids: Collection[str]) -> str:
    """Return the text of a part without some claims; if none is left, without their list."""
    members = _members(part)
    claims = _members(members.get("preparedClaims", "{}"))
    left = {uid: text for uid, text in claims.items() if uid not in uids}
    members["preparedClaims"] = _joined(left)
    if not left:
        del members["preparedClaims"]
    return _joined(members)


def _blank(text: str, at: int) -> int:
    match = _BLANKS.match(text, at)
    return match.end() if match else at


def _check_version(whole: Mapping[str, Any]) -> None:
    said = whole.get("version")
    # That driver's newer versions still write the older forms, and name the one that counts.
    others = sorted(name for name in whole if name not in ("checksum", *_VERSIONS))
    if (said is not None and said not in _VERSIONS) or (said is None and others):
        version = said if said is not None else ", ".join(others)
        raise VersionError(
            f"it is of version {str(version)[:40]!r}, and this driver reads v1 and v2"
        )
    if "checksum" not in whole or (said is not None and said not in whole):
        raise StateError("a part of it is missing")


def _check_sums(members: Mapping[str, str]) -> None:
    _check_sum(int(members["checksum"]), _first_view(members), "v1")
    if "v2" in members:
        match = _CHECKSUM.match(members["v2"])
        if match is None:
            raise StateError("its part v2 has no checksum")
        rest = members["v2"][match.end() :]
        _check_sum(int(match["sum"]), f'{{"checksum":0{rest}', "v2")


def _first_view(members: Mapping[str, str]) -> str:
    """Return the text that the checksum of part v1 covers: a file with only that part."""
    first = members.get("v1")
    return '{"checksum":0}' if first is None else f'{{"checksum":0,"v1":{first}}}'


def _check_sum(said: int, text: str, part: str) -> None:
    if said != checksum(text):
        raise StateError(f"the checksum of its part {part} does not match its content")


def _claims(
    content: Mapping[str, Any], *, newest: bool
) -> tuple[tuple[PeerClaim, ...], tuple[UnreadClaim, ...]]:
    claims: Mapping[str, Any] = content.get("preparedClaims") or {}
    read: list[PeerClaim] = []
    unread: list[UnreadClaim] = []
    for uid in sorted(claims):
        try:
            read.append(_claim(uid, claims[uid], newest=newest))
        except DriverError as error:
            unread.append(_unread(uid, claims[uid], str(error)))
        except MALFORMED as error:
            reason = f"its content is not that of a claim: {error!r:.200}"
            unread.append(_unread(uid, claims[uid], reason))
    return tuple(read), tuple(unread)


def _unread(uid: str, value: object, reason: str) -> UnreadClaim:
    status = value.get("status") if isinstance(value, Mapping) else None
    return UnreadClaim(uid=uid, reason=reason, pods=_pods(status))


def _pods(status: object) -> tuple[str, ...]:
    """Return the names of the pods in a claim's status; none if the status is malformed."""
    with suppress(*MALFORMED):
        users: Any = status["reservedFor"]  # type: ignore[index]
        return tuple(_matching(_WORD, user["name"]) for user in users)
    return ()


def _claim(uid: str, value: Mapping[str, Any], *, newest: bool) -> PeerClaim:
    known = check_uid(uid)
    state = value["checkpointState"] if newest else "PrepareCompleted"
    if state not in ("PrepareStarted", "PrepareCompleted"):
        raise VersionError(f"it is in state {str(state)[:40]!r}, which is not known")
    status = value.get("status") or {}
    if not isinstance(status, Mapping):
        raise TypeError("its status is not an object")
    groups = [] if state == "PrepareStarted" else value.get("preparedDevices") or []
    return PeerClaim(
        uid=known,
        namespace=_optional(value.get("namespace")) or "",
        name=_optional(value.get("name")) or "",
        is_prepared=state == "PrepareCompleted",
        status=status,
        groups=tuple(_group(known, group) for group in groups),
    )


def _group(uid: ClaimUid, value: Mapping[str, Any]) -> PeerGroup:
    config = value.get("configState") or {}
    daemon = config.get("mpsControlDaemonID") or None
    if daemon is not None and not (
        daemon.startswith(uid) and _DAEMON_END.fullmatch(daemon.removeprefix(uid))
    ):
        raise StateError(f"it has MPS daemon {daemon[:160]!r}, which is not a valid id")
    return PeerGroup(
        devices=tuple(_device(entry) for entry in value.get("devices") or ()),
        mps_daemon=daemon if config.get("mpsApplied") is not False else None,
        # Older versions recorded nothing and always reset it.
        time_sliced=config.get("timeSliceApplied") is not False,
    )


def _device(value: Mapping[str, Any]) -> PeerDevice:
    kinds = [kind for kind in _KINDS if value.get(kind) is not None]
    if len(kinds) != 1:
        raise StateError(f"it has a device of an unknown kind: {sorted(value)!r:.160}")
    entry = value[kinds[0]]
    told = entry["device"]
    return PeerDevice(
        device=_KINDS[kinds[0]](entry),
        requests=_each(_WORD, told["Requests"]),
        pool=_matching(_WORD, told["PoolName"]),
        name=_matching(_WORD, told["DeviceName"]),
        cdi_device_ids=_each(_CDI_ID, told["CDIDeviceIDs"]),
    )


def _gpu(entry: Mapping[str, Any]) -> GpuUuid:
    return GpuUuid(_matching(_GPU, entry["info"]["uuid"]))


def _vfio(entry: Mapping[str, Any]) -> PeerVfio:
    address = entry["info"].get("pciBusID")  # v25.12 has none
    return PeerVfio(address=PciAddress(_matching(_PCI, address)) if address else None)


def _mig(entry: Mapping[str, Any]) -> PeerMig:
    if (made := entry.get("concrete")) is None:
        # The first versions recorded only the UUID.
        return PeerMig(uuid=MigUuid(_matching(_MIG, entry["info"]["uuid"])))
    parent = GpuUuid(_matching(_GPU, made["parentUUID"]))
    uuid = made["migUUID"]
    return PeerMig(
        uuid=None if uuid == parent else MigUuid(_matching(_MIG, uuid)),
        parent=parent,
        gpu_instance=_number(made["giId"]),
        compute_instance=_number(made["ciId"]),
    )


_KINDS: Mapping[str, Callable[[Mapping[str, Any]], GpuUuid | PeerMig | PeerVfio]] = {
    "gpu": _gpu,
    "mig": _mig,
    "vfio": _vfio,
}


def _each(form: re.Pattern[str], value: object) -> tuple[str, ...]:
    if not isinstance(value, list):
        raise TypeError(f"{value!r:.80} is not a list")
    return tuple(_matching(form, member) for member in value)


def _number(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 1024:
        raise ValueError(f"{value!r:.80} is not the id of an instance")
    return value


def _optional(value: object) -> str | None:
    return _matching(_WORD, value) if value else None


def _matching(form: re.Pattern[str], value: object) -> str:
    if not isinstance(value, str) or form.fullmatch(value) is None:
        raise ValueError(f"{value!r:.160} is not a valid value there")
    return value
