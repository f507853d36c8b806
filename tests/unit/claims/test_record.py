import json
from hashlib import sha256
from pathlib import Path

import pytest
from msgspec.structs import replace

import make
from dra_driver.claims.model.claim import ConsumerPod, PreparedDevice
from dra_driver.claims.model.devices import DeviceRecord, RecordedMig, recorded
from dra_driver.claims.model.record import (
    MakeMigDevices,
    PendingCleanup,
    TurnMigModeOff,
    decode,
    encode,
    written_by,
)
from dra_driver.devices.kinds import GpuPart
from dra_driver.devices.model import Placement
from dra_driver.errors import StateError
from dra_driver.sharing import nvidia_mps
from dra_driver.sharing.base import SharingPlan

GOLDEN = Path(__file__).parents[2] / "data" / "records"
PLAN = SharingPlan(strategy="TimeSlicing", gpus=(make.gpu(0).uuid,), changes={"interval": "Long"})
RECORD = make.record(make.gpu(0), make.gpu(5), plans=(PLAN,))
OWING = replace(
    RECORD,
    pending=(PendingCleanup(of=replace(PLAN, gpus=(make.gpu(7).uuid,)), reason="the GPU is lost"),),
    pods=(ConsumerPod(name="pod", uid="pod-uid"),),
)
MADE = make.mig_device(0, "2g.20gb", 2, made_here=True)
MADE_HERE = recorded(MADE)
assert isinstance(MADE_HERE, RecordedMig)
DIVIDED = replace(
    make.record(),
    devices=(
        replace(make.record().devices[0], name="gpu-0-mig-2g20gb-14-2", device=MADE_HERE),
        replace(
            make.record().devices[0],
            name="gpu-0-mig-2g20gb-14-4",
            device=replace(MADE_HERE.place, placement=Placement(start=4, size=2)),
        ),
    ),
    realisations=(
        MakeMigDevices(gpu=make.gpu(0).uuid, places=(MADE_HERE.place,)),
        TurnMigModeOff(gpu=make.gpu(1).uuid, restore=True),
    ),
    plans=(
        SharingPlan(
            strategy="MPS",
            gpus=(make.gpu(0).uuid,),
            changes={"domain": {}},
            places=(MADE_HERE.part,),
        ),
    ),
    pending=(
        PendingCleanup(
            of=MakeMigDevices(gpu=make.gpu(2).uuid, places=(MADE_HERE.place,)), reason="in use"
        ),
    ),
)
DESCRIBED = replace(
    make.record(),
    devices=(replace(make.record().devices[0], subrequest="large"),),
    pod_claim_name="gpus",
)

DAEMON = f"{RECORD.ref.uid}-1a2b3"
TAKEN_OVER = replace(
    make.record(),
    ref=replace(RECORD.ref, namespace="", name=""),
    plans=(
        nvidia_mps.plan_of(
            DAEMON,
            Path("/var/lib/kubelet/plugins/gpu.nvidia.com/mps") / DAEMON,
            gpus=[make.gpu(0).uuid],
            clients=[make.gpu(0).uuid],
            places=[GpuPart(gpu=make.gpu(0).uuid)],
        ),
    ),
    taken_over=True,
)


def sealed(payload: bytes, version: int = 1) -> bytes:
    digest = sha256(payload).hexdigest().encode()
    return b'{"version":%d,"sha256":"%s","payload":%s}\n' % (version, digest, payload)


def test_a_record_says_who_wrote_it_whatever_else_it_says() -> None:
    data = encode(RECORD, "1.2.3")
    assert decode(data) == RECORD
    assert written_by(data) == "1.2.3"
    assert written_by(data.replace(b'"version":1', b'"version":7')) == "1.2.3"
    lying = replace(OWING.pending[0], reason='"writtenBy":"9.9"')
    assert written_by(encode(replace(OWING, pending=(lying,)))) is None


def test_the_first_records_are_read_and_do_not_say_who_wrote_them() -> None:
    assert written_by((GOLDEN / "v1.json").read_bytes()) is None
    assert decode((GOLDEN / "v1.json").read_bytes()) == RECORD


def test_a_record_with_debts_and_pods_is_read_and_written_as_ever() -> None:
    golden = (GOLDEN / "v1-cleanups.json").read_bytes()
    assert decode(golden) == OWING
    assert encode(OWING) == golden


def test_a_record_with_a_mig_device_is_read_and_written_as_ever() -> None:
    golden = (GOLDEN / "v1-mig.json").read_bytes()
    assert decode(golden) == DIVIDED
    assert encode(DIVIDED) == golden


def test_a_record_that_was_taken_over_is_read_and_written_as_ever() -> None:
    golden = (GOLDEN / "v1-taken-over.json").read_bytes()
    assert decode(golden) == TAKEN_OVER
    assert encode(TAKEN_OVER) == golden
    assert str(TAKEN_OVER.ref) == f"of UID {TAKEN_OVER.ref.uid}"


def test_a_record_of_a_pods_own_claim_is_read_and_written_as_ever() -> None:
    golden = (GOLDEN / "v1-pod-claim.json").read_bytes()
    assert decode(golden) == DESCRIBED
    assert encode(DESCRIBED) == golden


@pytest.mark.parametrize("field", ["podClaimName", "subRequest"])
@pytest.mark.parametrize("value", [7, 0, True, False, ["a"], {}])
def test_a_name_that_is_no_text_damages_a_record(field: str, value: object) -> None:
    payload = json.loads(encode(DESCRIBED))["payload"]
    (payload if field == "podClaimName" else payload["devices"][0])[field] = value
    with pytest.raises(StateError, match="is not a string"):
        decode(sealed(json.dumps(payload).encode()))


@pytest.mark.parametrize("path", sorted(GOLDEN.glob("*.json")), ids=lambda path: path.stem)
def test_records_of_every_version_that_was_released_are_read(path: Path) -> None:
    assert encode(decode(path.read_bytes()))


def test_parts_of_a_gpu_overlap_with_the_whole_and_with_each_other_where_they_do() -> None:
    device = DIVIDED.devices[0].device
    gpu = device.gpu
    beside = GpuPart(gpu=gpu, placement=Placement(start=0, size=2))
    assert device.part.overlaps(GpuPart(gpu=gpu))
    assert not device.part.overlaps(beside)
    assert device.part.overlaps(GpuPart(gpu=gpu, placement=Placement(start=3, size=1)))
    assert not device.part.overlaps(GpuPart(gpu=make.gpu(9).uuid))


def test_gpus_with_debts_are_touched_but_not_held() -> None:
    assert OWING.held_gpus == (make.gpu(0).uuid, make.gpu(5).uuid)
    assert OWING.touched_gpus == (make.gpu(0).uuid, make.gpu(5).uuid, make.gpu(7).uuid)


def test_a_record_is_one_json_document() -> None:
    assert json.loads(encode(RECORD))["payload"]["claim"]["name"] == "claim"


def test_fields_of_a_newer_version_are_passed_over() -> None:
    payload = json.loads(encode(RECORD))["payload"]
    payload["new"] = {"a": 1}
    payload["devices"][0]["new"] = [1]
    assert decode(sealed(json.dumps(payload, indent=1).encode())) == RECORD


def test_a_version_that_is_not_known_is_refused() -> None:
    with pytest.raises(StateError, match="it has version 7, but this driver reads only version 1"):
        decode(sealed(b"{}", version=7))


def test_sound_bytes_with_a_wrong_content_are_refused() -> None:
    with pytest.raises(StateError, match="its content is not that of a record"):
        decode(sealed(b'{"claim":{}}'))


def test_a_record_gives_the_kubelets_answer() -> None:
    assert make.record(make.gpu(3)).answer == (
        PreparedDevice(
            request_names=("gpu",),
            pool_name="node-1",
            device_name="gpu-3",
            cdi_device_ids=("k8s.gpu.nvidia.com/claim=11111111-0000-4000-8000-000000000000-gpu-3",),
        ),
    )


def test_a_device_with_admin_access_is_not_held() -> None:
    seen = DeviceRecord(
        name="gpu-1",
        device=recorded(make.gpu(1)),
        pool="node-1",
        request_names=("a",),
        cdi_device_ids=("x",),
        admin_access=True,
    )
    record = make.record(devices=(*make.record(make.gpu(2), make.gpu(0)).devices, seen))
    assert record.held_gpus == (make.gpu(0).uuid, make.gpu(2).uuid)
