"""The checkpoint of NVIDIA's own DRA driver: what it had prepared on this node. Pure.

In: the bytes of its `checkpoint.json`. Out: its claims, each with the devices that the kubelet was
told of and what was set for them. Every claim stands in the file twice, as `v2` and, for its older
versions, as `v1`; the newer one is read. A checksum covers the bytes of each (checkpointmanager of
the kubelet: 32 bit FNV-1a over Go's notation of a byte slice). A file is read whole or not at all:
what half is understood would be taken back by half.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dra_driver.claims.checkpoint import check_uid
from dra_driver.claims.model import ClaimUid
from dra_driver.devices.model import GpuUuid, MigUuid
from dra_driver.envelope import MALFORMED
from dra_driver.errors import DriverError, StateError, VersionError

LARGEST = 8 * 1024**2
"""Bytes of a checkpoint that is read; one with a hundred claims has some 500 KiB."""

_VERSIONS = ("v1", "v2")
_CHECKSUM = re.compile(r'\{"checksum":(?P<sum>[0-9]{1,10})(?=[,}])')
_GPU = re.compile(r"GPU-[A-Za-z0-9-]{1,91}")
_MIG = re.compile(r"MIG-[A-Za-z0-9/-]{1,120}")
_WORD = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._/-]{0,251}[A-Za-z0-9])?")
_CDI_ID = re.compile(r"[a-z0-9.-]{1,120}/[A-Za-z0-9_-]{1,60}=[A-Za-z0-9_.:-]{1,255}")
_DAEMON_END = re.compile(r"-[0-9a-f]{5}")
_BLANKS = re.compile(r"[ \t\r\n]*")


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerMig:
    """A MIG device as that driver noted it. Ids are None where an old version noted none."""

    uuid: MigUuid
    parent: GpuUuid | None = None
    gpu_instance: int | None = None
    compute_instance: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerDevice:
    """A device of a claim, and what the kubelet was told of it."""

    device: GpuUuid | PeerMig
    requests: tuple[str, ...]
    pool: str
    name: str
    cdi_device_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerGroup:
    """The devices of a claim under one config.

    Attributes:
        devices: the devices.
        mps_daemon: id of the MPS daemon that serves them; None without one.
        time_sliced: whether its time-slice and compute mode are taken back with the claim.
    """

    devices: tuple[PeerDevice, ...]
    mps_daemon: str | None
    time_sliced: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerClaim:
    """A claim that was prepared, or was about to be.

    Attributes:
        uid: the claim's.
        namespace: the claim's; empty where it is not noted, as for all that are prepared.
        name: likewise.
        is_prepared: whether the kubelet was told; else something of it may have been done.
        status: the ResourceClaim's status at that time.
        groups: its devices; none before it is prepared.
    """

    uid: ClaimUid
    namespace: str
    name: str
    is_prepared: bool
    status: Mapping[str, Any]
    groups: tuple[PeerGroup, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerCheckpoint:
    """What the file says. `boot_id` is None where an old version noted none."""

    boot_id: str | None
    claims: tuple[PeerClaim, ...]


def parse_checkpoint(data: bytes) -> PeerCheckpoint:
    """Return what a checkpoint says.

    Raises:
        VersionError: it is of a version that is not known here.
        StateError: it is damaged, or holds what that driver never writes.
    """
    if len(data) > LARGEST:
        raise StateError(f"it has {len(data)} bytes, and one that is read has {LARGEST} at most")
    try:
        members = _members(data.decode())
        whole = {name: json.loads(text) for name, text in members.items()}
        _check_version(whole)
        _check_sums(members)
        if "v2" in whole:
            content = whole["v2"]
            return PeerCheckpoint(
                boot_id=_optional(content.get("nodeBootID")), claims=_claims(content, newest=True)
            )
        return PeerCheckpoint(boot_id=None, claims=_claims(whole.get("v1") or {}, newest=False))
    except DriverError:
        raise
    except (*MALFORMED, RecursionError) as error:
        raise StateError(f"its content is not that of a checkpoint: {error!r:.200}") from error


def checksum(text: str) -> int:
    """Return the checksum of JSON text as the kubelet's checkpointmanager computes it."""
    found = 0x811C9DC5
    for byte in f"([]uint8)[{' '.join(map(str, text.encode()))}]".encode():
        found = (found ^ byte) * 0x01000193 & 0xFFFFFFFF
    return found


def _members(text: str) -> dict[str, str]:
    """Return the members of a JSON object as the text in which they stand."""
    decoder = json.JSONDecoder()

    def skip(at: int, expected: str) -> int:
        start = _blank(text, at)
        if text[start : start + 1] != expected:
            raise ValueError(f"{expected!r} is missing at {start}")
        return _blank(text, start + 1)

    found: dict[str, str] = {}
    at = skip(0, "{")
    while text[at : at + 1] != "}":
        if found:
            at = skip(at, ",")
        name, at = decoder.raw_decode(text, at)
        start = skip(at, ":")
        _, at = decoder.raw_decode(text, start)
        if not isinstance(name, str) or name in found:
            raise ValueError(f"member {name!r} is there twice, or has no name")
        found[name] = text[start:at]
        at = _blank(text, at)
    if _blank(text, at + 1) != len(text):
        raise ValueError("something stands after it")
    return found


def _blank(text: str, at: int) -> int:
    match = _BLANKS.match(text, at)
    return match.end() if match else at


def _check_version(whole: Mapping[str, Any]) -> None:
    said = whole.get("version")
    # Its newer versions go on to write the older forms, and say which one counts.
    others = sorted(name for name in whole if name not in ("checksum", *_VERSIONS))
    if (said is not None and said not in _VERSIONS) or (said is None and others):
        version = said if said is not None else ", ".join(others)
        raise VersionError(
            f"it is of version {str(version)[:40]!r}, and this driver reads v1 and v2"
        )
    if "checksum" not in whole or (said is not None and said not in whole):
        raise StateError("a part of it is missing")


def _check_sums(members: Mapping[str, str]) -> None:
    first = members.get("v1")
    view = '{"checksum":0}' if first is None else f'{{"checksum":0,"v1":{first}}}'
    _check_sum(int(members["checksum"]), view, "v1")
    if "v2" in members:
        match = _CHECKSUM.match(members["v2"])
        if match is None:
            raise StateError("its part v2 has no checksum")
        rest = members["v2"][match.end() :]
        _check_sum(int(match["sum"]), f'{{"checksum":0{rest}', "v2")


def _check_sum(said: int, text: str, part: str) -> None:
    if said != checksum(text):
        raise StateError(f"the checksum of its part {part} does not match its content")


def _claims(content: Mapping[str, Any], *, newest: bool) -> tuple[PeerClaim, ...]:
    claims: Mapping[str, Any] = content.get("preparedClaims") or {}
    return tuple(_claim(uid, claims[uid], newest=newest) for uid in sorted(claims))


def _claim(uid: str, value: Mapping[str, Any], *, newest: bool) -> PeerClaim:
    known = check_uid(uid)
    state = value["checkpointState"] if newest else "PrepareCompleted"
    if state not in ("PrepareStarted", "PrepareCompleted"):
        raise VersionError(f"claim UID {uid} is in state {str(state)[:40]!r}, which is not known")
    status = value.get("status") or {}
    if not isinstance(status, Mapping):
        raise TypeError(f"the status of claim UID {uid} is no object")
    groups = [] if state == "PrepareStarted" else value.get("preparedDevices") or []
    return PeerClaim(
        uid=known,
        namespace=_name(value.get("namespace")),
        name=_name(value.get("name")),
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
        raise StateError(f"claim UID {uid} has MPS daemon {daemon[:160]!r}, which is no id of one")
    return PeerGroup(
        devices=tuple(_device(uid, entry) for entry in value.get("devices") or ()),
        mps_daemon=daemon if config.get("mpsApplied") is not False else None,
        # Older versions noted nothing and took it back always.
        time_sliced=config.get("timeSliceApplied") is not False,
    )


def _device(uid: ClaimUid, value: Mapping[str, Any]) -> PeerDevice:
    kinds = [kind for kind in ("gpu", "mig", "vfio") if value.get(kind) is not None]
    if kinds == ["vfio"]:
        raise StateError(
            f"claim UID {uid} has a GPU that is passed through to a virtual machine, which this "
            "driver cannot have: end its pod before this driver comes to the node"
        )
    if len(kinds) != 1:
        raise StateError(f"claim UID {uid} has a device of no known kind: {sorted(value)!r:.160}")
    entry = value[kinds[0]]
    told = entry["device"]
    return PeerDevice(
        device=_mig(entry) if kinds == ["mig"] else GpuUuid(_matching(_GPU, entry["info"]["uuid"])),
        requests=tuple(_words(told["Requests"])),
        pool=_matching(_WORD, told["PoolName"]),
        name=_matching(_WORD, told["DeviceName"]),
        cdi_device_ids=tuple(_matching(_CDI_ID, one) for one in _list(told["CDIDeviceIDs"])),
    )


def _mig(entry: Mapping[str, Any]) -> PeerMig:
    if (made := entry.get("concrete")) is None:
        # The first versions noted the UUID alone.
        return PeerMig(uuid=MigUuid(_matching(_MIG, entry["info"]["uuid"])))
    return PeerMig(
        uuid=MigUuid(_matching(_MIG, made["migUUID"])),
        parent=GpuUuid(_matching(_GPU, made["parentUUID"])),
        gpu_instance=_number(made["giId"]),
        compute_instance=_number(made["ciId"]),
    )


def _list(value: object) -> Sequence[object]:
    if not isinstance(value, list):
        raise TypeError(f"{value!r:.80} is no list")
    return value


def _words(value: object) -> Iterator[str]:
    return (_matching(_WORD, one) for one in _list(value))


def _number(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 1024:
        raise ValueError(f"{value!r:.80} is no id of an instance")
    return value


def _name(value: object) -> str:
    return _matching(_WORD, value) if value else ""


def _optional(value: object) -> str | None:
    return _matching(_WORD, value) if value else None


def _matching(form: re.Pattern[str], value: object) -> str:
    if not isinstance(value, str) or form.fullmatch(value) is None:
        raise ValueError(f"{value!r:.160} is not what stands there")
    return value
