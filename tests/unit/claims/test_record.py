import json
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

import make
from dra_driver.claims.model.claim import ConsumerPod
from dra_driver.claims.model.record import (
    ClaimRecord,
    DeviceRecord,
    MakeMigDevices,
    PendingCleanup,
    TurnMigModeOff,
    decode,
    encode,
    written_by,
)
from dra_driver.devices.device import (
    Device,
    Mig,
    equal_shares,
)
from dra_driver.devices.model import Placement
from dra_driver.devices.shares import ConsumedShare, Division, ShareStrategy
from dra_driver.errors import StateError, VersionError
from dra_driver.mps.domain import mig_domain
from dra_driver.sharing.limiters import Limiter
from dra_driver.sharing.steps import (
    NvidiaMpsDaemon,
    ShareLimits,
    TimeSlice,
    UseShares,
)
from resource_nvidia_com.v1beta1.names import Interval

Where = tuple[str | int, ...]
GOLDEN = Path(__file__).parents[2] / "data" / "record.json"


def entry(name: str, device: Device, request: str = "gpu", **facts: Any) -> DeviceRecord:
    (first,) = make.record().devices
    return replace(first, name=name, device=device, request_names=(request,), **facts)


def gpu(minor: int) -> Device:
    return make.device(make.gpu(minor))


UID = make.record().ref.uid
LONG = TimeSlice(devices=(gpu(0),), interval=Interval.LONG)
RECORD = make.record(make.gpu(0), make.gpu(5), steps=(LONG,))
OWING = replace(
    RECORD,
    pending=(PendingCleanup(of=replace(LONG, devices=(gpu(7),)), reason="the GPU is lost"),),
    pods=(ConsumerPod(name="pod", uid="pod-uid"),),
)

FOUND = make.mig_device(0, "2g.20gb", 2, made_here=True)
MADE = make.device(FOUND)
PLACE = make.place(FOUND)
assert isinstance(PLACE, Mig)
DIVIDED = make.record(
    devices=(
        entry("gpu-0-mig-2g20gb-14-2", MADE),
        entry(
            "gpu-0-mig-2g20gb-14-4",
            Device(base=replace(PLACE, placement=Placement(start=4, size=2))),
        ),
    ),
    steps=(
        MakeMigDevices(devices=(Device(base=PLACE),), claim=UID),
        TurnMigModeOff(devices=(gpu(1),), restore=True),
        make.join(MADE, domain=mig_domain(UID, 0), claim=UID),
    ),
    pending=(
        PendingCleanup(
            of=MakeMigDevices(
                devices=(Device(base=replace(PLACE, gpu=make.gpu(2).uuid)),), claim=UID
            ),
            reason="in use",
        ),
    ),
)

DAEMON = f"{UID}-1a2b3"
TAKEN_OVER = replace(
    make.record(),
    ref=replace(RECORD.ref, namespace="", name=""),
    steps=(
        NvidiaMpsDaemon(
            devices=(gpu(0),),
            daemon=DAEMON,
            folder=f"/var/lib/kubelet/plugins/gpu.nvidia.com/mps/{DAEMON}",
        ),
    ),
)
BY_MPS_IN_FOUR = Division(
    count=4, strategy=ShareStrategy.MPS, served_as="nvidia.com/gpu", combines=True
)
SHARE = equal_shares(gpu(5).base, BY_MPS_IN_FOUR)[2]
PART = replace(gpu(6), share=ConsumedShare(share_id="s1", strategy=ShareStrategy.MPS))
SHARED = make.record(
    devices=(
        entry("gpu-5-mps-share-2-of-4", SHARE, "large", subrequest="best"),
        entry("gpu-6", PART, share_id="s1"),
    ),
    steps=(
        UseShares(
            devices=(SHARE,),
            strategy=ShareStrategy.MPS,
            limits=(ShareLimits(taken=1, count=4, active_thread_percentage=25, memory_mib=20480),),
            limited_by=Limiter.MPS,
            memory_mib=20480,
        ),
    ),
    pending=(PendingCleanup(of=TurnMigModeOff(devices=(gpu(6),), restore=False), reason="in use"),),
    pods=(ConsumerPod(name="pod", uid="pod-uid"),),
    pod_claim_name="",
)


def sealed(payload: bytes, version: int = 3) -> bytes:
    digest = sha256(payload).hexdigest().encode()
    return b'{"version":%d,"sha256":"%s","payload":%s}\n' % (version, digest, payload)


def changed(data: bytes, *path: str | int, value: object) -> bytes:
    """The bytes of a record with another value at a place of its payload."""
    whole = json.loads(data)
    place = whole["payload"]
    for name in path[:-1]:
        place = place[name]
    place[path[-1]] = value
    return sealed(json.dumps(whole["payload"]).encode(), whole["version"])


def test_any_record_names_its_writer() -> None:
    data = encode(RECORD, "1.2.3")
    assert decode(data) == RECORD
    assert written_by(data) == "1.2.3"
    assert written_by(data.replace(b'"version":3', b'"version":7')) == "1.2.3"
    lying = replace(OWING.pending[0], reason='"writtenBy":"9.9"')
    assert written_by(encode(replace(OWING, pending=(lying,)))) is None


def test_the_form_on_disk_changes_only_on_purpose() -> None:
    assert encode(DIVIDED) == GOLDEN.read_bytes()


def test_a_claim_that_was_taken_over_goes_by_its_uid() -> None:
    assert str(TAKEN_OVER.ref) == f"of UID {UID}"


UNKNOWN: tuple[tuple[ClaimRecord, Where], ...] = (
    (RECORD, ("state",)),
    (RECORD, ("devices", 0, "device", "base", "kind")),
    (RECORD, ("steps", 0, "step")),
    (RECORD, ("steps", 0, "interval")),
    (OWING, ("pending", 0, "of", "step")),
    (SHARED, ("devices", 0, "device", "share", "kind")),
    (SHARED, ("devices", 1, "device", "share", "strategy")),
    (SHARED, ("steps", 0, "limitedBy")),
)


@pytest.mark.parametrize(("record", "path"), UNKNOWN, ids=[str(path) for _, path in UNKNOWN])
def test_unknown_content_counts_as_newer_not_damaged(record: ClaimRecord, path: Where) -> None:
    with pytest.raises(VersionError, match=r"it has what this version does not know: .* 'later'"):
        decode(changed(encode(record), *path, value="later"))
    with pytest.raises(StateError, match="its content is not that of a record: ") as caught:
        decode(changed(encode(record), *path, value=7))
    assert not isinstance(caught.value, VersionError)


@pytest.mark.parametrize(
    "path",
    [
        ("podClaimName",),
        ("bootId",),
        ("ref", "uid"),
        ("pods", 0, "name"),
        ("devices", 0, "subrequest"),
        ("devices", 0, "requestNames", 0),
        ("devices", 0, "device", "base", "gpu"),
        ("pending", 0, "reason"),
    ],
    ids=str,
)
@pytest.mark.parametrize("value", [7, 0, True, False, ["a"], {}])
def test_a_name_that_is_not_text_damages_a_record(path: Where, value: object) -> None:
    data = changed(encode(SHARED), *path, value=value)
    with pytest.raises(StateError, match=r"that of a record: Expected `str.* - at `\$"):
        decode(data)


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: data[:-9],
        lambda data: data.replace(b"Long", b"Lost"),
        lambda _: b"",
        lambda _: sealed(b"[]"),
    ],
)
def test_damaged_bytes_are_refused_as_a_record(damage: Callable[[bytes], bytes]) -> None:
    with pytest.raises(StateError, match=r"cut off|checksum") as caught:
        decode(damage(encode(RECORD)))
    assert not isinstance(caught.value, VersionError)


def test_devices_overlap_with_the_whole_and_with_each_other_where_they_do() -> None:
    def there(start: int, size: int) -> Device:
        return Device(base=replace(PLACE, placement=Placement(start=start, size=size)))

    assert MADE.overlaps(gpu(0))
    assert not MADE.overlaps(there(0, 2))
    assert MADE.overlaps(there(3, 1))
    assert not MADE.overlaps(gpu(9))


def test_gpus_with_pending_cleanup_are_touched_but_not_held() -> None:
    assert OWING.held_gpus == (make.gpu(0).uuid, make.gpu(5).uuid)
    assert OWING.touched_gpus == (make.gpu(0).uuid, make.gpu(5).uuid, make.gpu(7).uuid)


def test_a_record_is_one_json_document() -> None:
    assert json.loads(encode(RECORD))["payload"]["ref"]["name"] == "claim"


def test_fields_of_a_newer_version_are_passed_over() -> None:
    payload = json.loads(encode(RECORD))["payload"]
    payload["new"] = {"a": 1}
    payload["devices"][0]["new"] = [1]
    payload["steps"][0]["new"] = None
    assert decode(sealed(json.dumps(payload, indent=1).encode())) == RECORD


@pytest.mark.parametrize(("version", "error"), [(2, StateError), (4, VersionError)])
def test_another_version_is_refused(version: int, error: type[StateError]) -> None:
    payload = json.dumps(json.loads(encode(RECORD))["payload"]).encode()
    refused = f"it has version {version}, but this driver reads version 3"
    with pytest.raises(StateError, match=refused) as refusal:
        decode(sealed(payload, version))
    assert refusal.type is error


def test_sound_bytes_with_a_wrong_content_are_refused() -> None:
    for content in (b'{"claim":{}}', b'{"ref":{},"steps":[]}', b"{}"):
        with pytest.raises(StateError, match="its content is not that of a record"):
            decode(sealed(content))


def test_a_device_with_admin_access_is_not_held() -> None:
    seen = entry("gpu-1", gpu(1), admin_access=True)
    record = make.record(devices=(*make.record(make.gpu(2), make.gpu(0)).devices, seen))
    assert record.held_gpus == (make.gpu(0).uuid, make.gpu(2).uuid)
