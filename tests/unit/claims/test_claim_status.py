"""What a claim's own status says of its devices, of each kind of device."""

import json
from typing import Any

import pytest
from msgspec.structs import replace

import make
from dra_driver.claims.model.record import ClaimRecord
from dra_driver.claims.report.claim_status import (
    Entries,
    entries,
    key_of,
    updated,
)
from dra_driver.claims.report.device_health import WELL, DeviceHealth, HealthState
from dra_driver.devices.device import Device, equal_shares, name_of
from dra_driver.devices.model import Inventory, MigUuid
from dra_driver.devices.shares import ConsumedShare, Division, ShareStrategy
from dra_driver.sharing.limiters import Limiter
from dra_driver.sharing.steps import ShareLimits, TimeSlice, UseShares
from resource_nvidia_com.v1beta1.names import Interval

GPU = make.gpu(0, mig=make.mig())
MIG = make.mig_device(0, start=2, made_here=True)
NODE = make.inventory(GPU)
CARD = {
    "productName": "NVIDIA H100 80GB HBM3",
    "pciBusID": "0000:10:00.0",
    "driverVersion": "535.261.03",
}
QUARTERS = Division(
    count=4, strategy=ShareStrategy.TIME_SLICING, served_as="nvidia.com/gpu", combines=False
)
OF_MIG = equal_shares(make.device(MIG).base, QUARTERS)[0]
NOW, LATER = "2026-01-02T03:04:05Z", "2026-01-02T04:00:00Z"


def claim(*devices: Device, share_id: str | None = None, **facts: Any) -> ClaimRecord:
    (entry,) = make.record(GPU).devices
    return make.record(
        devices=tuple(
            replace(entry, name=name_of(GPU, device), device=device, share_id=share_id)
            for device in devices
        ),
        **facts,
    )


def use(device: Device, by: Limiter, why: str = "") -> UseShares:
    """What sharing/shares.py writes down for one share."""
    share = device.share
    assert share
    limits = ShareLimits(
        taken=1,
        count=share.division.count if share.division else None,
        consumed_memory_mib=0 if share.division else 10240,
        consumed_cores=0 if share.division else 20,
        active_thread_percentage=25,
        memory_mib=None if by is Limiter.NOTHING else 20252,
    )
    return UseShares(
        devices=(device,),
        strategy=share.strategy,
        limits=(limits,),
        limited_by=by,
        why=why,
    )


def told(record: ClaimRecord, inventory: Inventory = NODE, health: DeviceHealth = WELL) -> Entries:
    return entries(record, inventory, lambda *_: health)


def only(record: ClaimRecord, health: DeviceHealth = WELL) -> dict[str, Any]:
    (entry,) = told(record, health=health).values()
    return entry


def test_a_whole_gpu_is_named_by_what_people_and_other_tools_know_of_it() -> None:
    entry = only(make.record(GPU))
    assert key_of(entry) == ("gpu.nvidia.com", "node-1", "gpu-0", "")
    assert entry["data"] == {
        "version": "v1",
        "type": "gpu",
        "uuid": GPU.uuid,
        **CARD,
        "sharing": {"strategy": "Exclusive"},
    }
    assert [one["reason"] for one in entry["conditions"]] == ["Prepared", "Well"]


def test_a_time_sliced_gpu_has_its_interval() -> None:
    step = TimeSlice(devices=(make.device(GPU),), interval=Interval.LONG)
    entry = only(make.record(GPU, steps=(step,)))
    assert entry["data"]["sharing"] == {"strategy": "TimeSlicing", "interval": "Long"}


def test_a_mig_device_has_its_own_uuid_and_its_ids() -> None:
    entry = only(claim(make.device(MIG)))
    assert entry["device"] == "gpu-0-mig-1g10gb-19-2"
    assert entry["data"] == {
        "version": "v1",
        "type": "mig",
        "uuid": MIG.uuid,
        **CARD,
        "parentUUID": GPU.uuid,
        "migProfile": "1g.10gb",
        "mig": {
            "parentUUID": GPU.uuid,
            "profile": "1g.10gb",
            "start": 2,
            "size": 1,
            "gpuInstanceID": 3,
            "computeInstanceID": 0,
        },
        "sharing": {"strategy": "Exclusive"},
    }


def test_a_share_says_which_it_is_its_limits_and_what_enforces_them() -> None:
    division = Division(
        count=4, strategy=ShareStrategy.MPS, served_as="nvidia.com/gpu", combines=False
    )
    share = equal_shares(make.device(GPU).base, division)[1]
    entry = only(claim(share, steps=(use(share, Limiter.CONTROL_GROUPS),)))
    assert entry["data"]["uuid"] == GPU.uuid
    assert entry["data"]["share"] == {"index": 1, "replicas": 4, "resourceName": "nvidia.com/gpu"}
    assert entry["data"]["sharing"] == {
        "strategy": "MPS",
        "shares": 1,
        "of": 4,
        "activeThreadPercentage": 25,
        "memoryMiB": 20252,
        "enforcedBy": "control groups (NVML)",
    }


def test_an_unlimited_share_has_the_reason() -> None:
    share = OF_MIG
    entry = only(claim(share, steps=(use(share, Limiter.NOTHING, "too old"),)))
    sharing: Any = entry["data"]["sharing"]
    assert (sharing["strategy"], sharing["enforcedBy"]) == ("TimeSlicing", "nothing")
    assert sharing["whyNotBetter"] == "too old"
    assert "memoryMiB" not in sharing
    assert (entry["data"]["type"], entry["data"]["uuid"]) == ("mig", MIG.uuid)


def test_a_part_by_capacity_has_its_share_id_and_what_it_consumes() -> None:
    share = ConsumedShare(
        share_id="s1", strategy=ShareStrategy.TIME_SLICING, memory_mib=10240, cores=20
    )
    part = replace(make.device(GPU), share=share)
    entry = only(claim(part, share_id="s1", steps=(use(part, Limiter.MPS),)))
    assert key_of(entry) == ("gpu.nvidia.com", "node-1", "gpu-0", "s1")
    assert entry["shareID"] == "s1"
    assert entry["data"]["share"] == {"memoryMiB": 10240, "cores": 20}


def test_devices_with_admin_access_are_not_shown_as_shared() -> None:
    (device,) = make.record(GPU).devices
    seen = make.record(devices=(replace(device, admin_access=True),))
    assert only(seen)["data"]["sharing"] == {"strategy": "AdminAccess"}
    both = make.record(devices=(replace(device, admin_access=True), device))
    assert only(both)["data"]["sharing"] == {"strategy": "Exclusive"}


def test_long_texts_are_cut_and_the_api_takes_what_is_left() -> None:
    long = "<" * 5000  # each is six bytes as the API server writes it
    gpu = make.gpu(0)
    share = equal_shares(make.device(gpu).base, replace(QUARTERS, served_as=long))[0]
    record = claim(share, steps=(use(share, Limiter.NOTHING, long),))
    (entry,) = told(record, make.inventory(gpu)).values()
    data: Any = entry["data"]
    assert data["share"]["resourceName"] == data["sharing"]["whyNotBetter"] == "<" * 512
    assert len(json.dumps(data)) + 5 * json.dumps(data).count("<") < 10 * 1024


@pytest.mark.parametrize(
    ("state", "status"),
    [
        (HealthState.HEALTHY, "True"),
        (HealthState.UNHEALTHY, "False"),
        (HealthState.UNKNOWN, "Unknown"),
    ],
)
def test_a_devices_health_is_its_second_condition(state: HealthState, status: str) -> None:
    found = DeviceHealth(state=state, reason="Why", message="b" * 9999)
    ready, healthy = only(make.record(GPU), found)["conditions"]
    assert (ready["type"], ready["status"], ready["reason"]) == ("Ready", "True", "Prepared")
    assert healthy == {
        "type": "Healthy",
        "status": status,
        "reason": "Why",
        "message": "b" * 1024,
    }


def test_a_condition_keeps_since_when_it_has_been_so() -> None:
    before = updated(told(make.record(GPU)), {}, NOW)
    assert updated(told(make.record(GPU)), before, LATER) == before
    lost = DeviceHealth(state=HealthState.UNHEALTHY, reason="GpuLost")
    (entry,) = updated(told(make.record(GPU), health=lost), before, LATER).values()
    assert [one["lastTransitionTime"] for one in entry["conditions"]] == [NOW, LATER]


def test_what_a_gpu_does_not_report_now_stays() -> None:
    record = claim(make.device(MIG))
    before = updated(told(record), {}, NOW)
    silent = told(record, make.inventory(make.gpu(1), driver_version=None))
    (entry,) = silent.values()
    assert not CARD.keys() & entry["data"].keys()
    assert updated(silent, before, LATER) == before
    # Of another MIG device in its place nothing is known.
    another = make.device(replace(MIG, uuid=MigUuid("MIG-other")))
    silent = told(claim(another), make.inventory(make.gpu(1)))
    (entry,) = updated(silent, before, LATER).values()
    assert not CARD.keys() & entry["data"].keys()
