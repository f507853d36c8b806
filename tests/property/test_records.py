"""Records on disk: what comes back is what was written, or nothing; never something else."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import make
from dra_driver.claims.model.claim import ClaimRef, ClaimUid, ConsumerGroup, ConsumerPod
from dra_driver.claims.model.devices import (
    DeviceRecord,
    RecordedGpu,
    RecordedMig,
    RecordedPartition,
    RecordedShare,
)
from dra_driver.claims.model.record import (
    ClaimRecord,
    MakeMigDevices,
    PendingCleanup,
    RecordState,
    TurnMigModeOff,
    decode,
    encode,
)
from dra_driver.devices.kinds import GpuPart
from dra_driver.devices.model import GpuUuid, MigUuid, Placement
from dra_driver.devices.shares import ConsumableSlot, Division, ShareSlot, ShareStrategy
from dra_driver.errors import StateError
from dra_driver.sharing.base import SharingPlan

text = st.text(st.characters(exclude_categories=("Cs",)), max_size=20)
names = st.lists(text, max_size=3).map(tuple)
json_values: st.SearchStrategy[Any] = st.dictionaries(
    text, st.none() | st.booleans() | st.integers() | text, max_size=3
)
numbers = st.integers(0, 2**31)
placements = st.builds(Placement, start=numbers, size=numbers)
partitions = st.builds(
    RecordedPartition,
    gpu=text.map(GpuUuid),
    profile=text,
    profile_id=numbers,
    placement=placements,
)
undivided = (
    st.builds(RecordedGpu, gpu=text.map(GpuUuid))
    | partitions
    | st.builds(
        RecordedMig,
        place=partitions,
        gpu_instance=numbers,
        compute_instance=numbers,
        uuid=text.map(MigUuid),
        made_here=st.booleans(),
    )
)
slots = st.builds(
    ShareSlot,
    index=numbers,
    division=st.builds(
        Division,
        count=numbers,
        strategy=st.sampled_from(ShareStrategy),
        served_as=text,
        combines=st.booleans(),
        together=st.lists(text.map(GpuUuid), max_size=2).map(tuple),
    ),
) | st.builds(
    ConsumableSlot,
    share_id=text,
    strategy=st.sampled_from(ShareStrategy),
    memory_mib=numbers,
    cores=numbers,
)
recorded_devices = undivided | st.builds(RecordedShare, of=undivided, slot=slots)
realisations = st.builds(
    MakeMigDevices, gpu=text.map(GpuUuid), places=st.lists(partitions, max_size=2).map(tuple)
) | st.builds(TurnMigModeOff, gpu=text.map(GpuUuid), restore=st.booleans())
places = st.builds(
    GpuPart, gpu=text.map(GpuUuid), placement=st.none() | placements, share=st.none() | slots
)
devices = st.builds(
    DeviceRecord,
    name=text,
    device=recorded_devices,
    pool=text,
    request_names=names,
    cdi_device_ids=names,
    admin_access=st.booleans(),
    share_id=st.none() | text,
    subrequest=st.none() | text.filter(bool),
)
plans = st.builds(
    SharingPlan,
    strategy=text,
    gpus=st.lists(text.map(GpuUuid), max_size=2).map(tuple),
    changes=json_values,
    places=st.lists(places, max_size=2).map(tuple),
)
records = st.builds(
    ClaimRecord,
    ref=st.builds(ClaimRef, uid=text.map(ClaimUid), namespace=text, name=text),
    boot_id=text,
    state=st.sampled_from(RecordState),
    devices=st.lists(devices, max_size=3).map(tuple),
    realisations=st.lists(realisations, max_size=2).map(tuple),
    plans=st.lists(plans, max_size=2).map(tuple),
    pending=st.lists(
        st.builds(PendingCleanup, of=plans | realisations, reason=text), max_size=2
    ).map(tuple),
    pods=st.lists(st.builds(ConsumerPod, name=text, uid=text), max_size=2).map(tuple),
    groups=st.lists(st.builds(ConsumerGroup, name=text, uid=text), max_size=2).map(tuple),
    pod_claim_name=st.none() | text,
)


@given(records)
def test_a_record_comes_back_as_it_was(record: ClaimRecord) -> None:
    assert decode(encode(record)) == record


@given(records, st.data())
def test_a_record_cut_off_anywhere_is_refused(record: ClaimRecord, data: st.DataObject) -> None:
    whole = encode(record)
    length = data.draw(st.integers(0, len(whole) - 1))
    with pytest.raises(StateError):
        decode(whole[:length])


@given(st.data())
def test_a_record_with_any_flipped_bit_is_refused(data: st.DataObject) -> None:
    whole = bytearray(encode(make.record(make.gpu(0), make.gpu(5))))
    bit = data.draw(st.integers(0, len(whole) * 8 - 1))
    whole[bit // 8] ^= 1 << bit % 8
    with pytest.raises(StateError):
        decode(bytes(whole))


@given(st.binary(max_size=400))
def test_arbitrary_bytes_are_no_record(data: bytes) -> None:
    with pytest.raises(StateError):
        decode(data)
