"""Whatever a claim has, the API server takes what its status says, and takes it once."""

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from testbed.apiserver.apply import applied as merged
from testbed.apiserver.claim_rules import check_claim_status

import make
from dra_driver.claims.model.record import ClaimRecord, DeviceRecord
from dra_driver.claims.report.claim_status import (
    applied,
    entries,
    stored_entries,
    updated,
)
from dra_driver.claims.report.device_health import DeviceHealth, HealthState
from dra_driver.devices.device import Device, name_of
from dra_driver.devices.model import Gpu
from dra_driver.devices.shares import ConsumedShare, ShareStrategy
from dra_driver.sharing.limiters import Limiter
from dra_driver.sharing.steps import ShareLimits, UseShares
from sampling import examples

NOTHING = Limiter.NOTHING
NOW = "2026-01-02T03:04:05Z"
MOST = 32  # AllocationResultsMaxSize of the API
texts = st.text(st.characters(exclude_categories=("Cs",)), max_size=40) | st.sampled_from(
    ["<" * 5000, "é" * 5000, '"\\' * 5000, ""]
)
reasons = st.from_regex(r"[A-Z][A-Za-z]{0,30}", fullmatch=True)
health = st.builds(DeviceHealth, state=st.sampled_from(HealthState), reason=reasons, message=texts)


@st.composite
def gpus(draw: st.DrawFn) -> list[Gpu]:
    count = draw(st.integers(1, 8))
    return [make.gpu(minor, product_name=draw(texts)) for minor in range(count)]


@st.composite
def claims(draw: st.DrawFn, cards: list[Gpu]) -> ClaimRecord:
    """A claim with up to as many devices as a claim can have, whole or by capacity."""
    devices, steps = [], []
    for number in range(draw(st.integers(0, MOST))):
        card = cards[number % len(cards)]
        share_id = f"share-{number}"
        if number < len(cards):
            devices.append(_device(card, make.device(card), None, number, draw(st.booleans())))
            continue
        share = ConsumedShare(share_id=share_id, strategy=ShareStrategy.MPS, memory_mib=number)
        part = Device(base=make.place(card), share=share)
        devices.append(_device(card, part, share_id, number, False))
        limits = ShareLimits(taken=1, count=None, consumed_memory_mib=number, memory_mib=number)
        steps.append(
            UseShares(
                devices=(part,),
                strategy=ShareStrategy.MPS,
                limits=(limits,),
                limited_by=NOTHING,
                why=draw(texts),
            )
        )
    return make.record(devices=tuple(devices), steps=tuple(steps))


def _device(card: Gpu, one: Device, share_id: str | None, number: int, admin: bool) -> DeviceRecord:
    return DeviceRecord(
        name=name_of(card, one),
        device=one,
        pool="node-1",
        request_names=(f"request-{number}",),
        cdi_device_ids=(f"k8s.gpu.nvidia.com/claim=uid-{number}",),
        admin_access=admin,
        share_id=share_id,
    )


def claim_object(record: ClaimRecord) -> dict[str, Any]:
    found = make.claim_object()
    found["status"]["allocation"]["devices"]["results"] = [
        {
            "request": "gpu",
            "driver": "gpu.nvidia.com",
            "pool": device.pool,
            "device": device.name,
            **({"shareID": device.share_id} if device.share_id else {}),
        }
        for device in record.devices
    ]
    return found


@settings(max_examples=examples(40))
@given(st.data(), health)
def test_the_api_server_takes_it_and_holds_what_was_asked(
    data: st.DataObject, found: DeviceHealth
) -> None:
    cards = data.draw(gpus())
    record = data.draw(claims(cards))
    node = make.inventory(*cards, driver_version=data.draw(texts))
    wanted = entries(record, node, lambda _record, _device: found)
    old = claim_object(record)
    body = applied(record.ref, updated(wanted, {}, NOW))
    new = merged(old, body, manager="driver", force=False)
    check_claim_status(new, old)
    stored = stored_entries(new)
    assert len(stored) == len({(device.name, device.share_id) for device in record.devices})
    # Every device is there with what it is known by, however long what is said beside is.
    uuids = {device.device.uuid for device in record.devices}
    assert {one["data"]["uuid"] for one in stored.values()} == uuids
    assert {one["data"]["version"] for one in stored.values()} <= {"v1"}
    again = updated(wanted, stored, "2030-01-01T00:00:00Z")
    assert again == stored
    assert merged(new, applied(record.ref, again), manager="driver", force=False) == new
    gone = merged(new, applied(record.ref, {}), manager="driver", force=False)
    check_claim_status(gone, new)
    assert stored_entries(gone) == {}
