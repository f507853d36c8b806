"""Who is on a device, as monitoring finds it: by the kubelet's PodResources and the ResourceSlices.

dcgm-exporter takes pool and device of each claim of a container from PodResources, looks them up in
the ResourceSlices of driver gpu.nvidia.com, and reads four attributes there by their bare names:
`type`, `uuid`, `parentUUID`, `profile`. A MIG device is mapped to its parent, and known by its own
UUID there; one without `uuid` is lost, and so is a device of another type. The kubelet names a
device in a pod's status by its first CDI id, so that one has to be the device's alone.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pytest
from msgspec.structs import replace

import make
from dra_driver.cdi.model import claim_device_id
from dra_driver.claims.model.record import ClaimRecord, DeviceRecord
from dra_driver.claims.report.claim_status import entries
from dra_driver.claims.report.device_health import WELL
from dra_driver.devices.device import Device, equal_shares, name_of
from dra_driver.devices.model import Gpu, MigMode
from dra_driver.devices.shares import ConsumedShare, Division, ShareStrategy
from dra_driver.slices.consumable import Consumable
from dra_driver.slices.offer.mig import MigOffer, MigSource
from dra_driver.slices.offer.shares import ShareOffer
from dra_driver.slices.project import projection

POOL = "node-1"
MIG = make.mig_device(0, start=2)
CARD = make.gpu(0, mig=make.mig(MIG), mig_mode=MigMode.ENABLED)
WHOLE = make.gpu(1)
ALL = make.device(WHOLE)
FOUR = Division(count=4, strategy=ShareStrategy.MPS, served_as="nvidia.com/gpu", combines=True)
PART = ConsumedShare(share_id="s1", strategy=ShareStrategy.TIME_SLICING, memory_mib=10240)
EXISTING = MigOffer(source=MigSource.EXISTING, why="a test says so")

KINDS: Mapping[str, tuple[Gpu, Device, ShareOffer]] = {
    "whole": (WHOLE, ALL, ShareOffer()),
    "MIG device": (CARD, make.device(MIG), ShareOffer()),
    "share": (WHOLE, equal_shares(ALL.base, FOUR)[2], ShareOffer(divisions={ALL.base: FOUR})),
    "share of a MIG device": (
        CARD,
        equal_shares(make.device(MIG).base, FOUR)[1],
        ShareOffer(divisions={make.place(MIG): FOUR}),
    ),
    "part by capacity": (
        WHOLE,
        replace(ALL, share=PART),
        ShareOffer(consumable=Consumable.of("memory")),
    ),
}


@dataclass(frozen=True, kw_only=True)
class Mapped:
    """What a metric of a GPU is joined with."""

    gpu: str
    mig: str | None = None
    profile: str | None = None


def published(gpu: Gpu, share: ShareOffer, mig: MigOffer = EXISTING) -> list[dict[str, Any]]:
    """The devices in the node's slices."""
    return [
        dict(device) for device in projection(make.inventory(gpu), mig=mig, share=share).devices
    ]


def mapped(devices: list[dict[str, Any]], pool: str, name: str) -> Mapped | None:
    """As dcgm-exporter does it with one device of PodResources."""
    by_key = {f"{POOL}/{device['name']}": device["attributes"] for device in devices}
    attributes = by_key.get(f"{pool}/{name}", {})
    text = {key: value.get("string") for key, value in attributes.items()}
    match text.get("type"):
        case "gpu":
            return Mapped(gpu=text["uuid"]) if text.get("uuid") else None
        case "mig" if text.get("uuid"):
            return Mapped(gpu=text["parentUUID"], mig=text["uuid"], profile=text["profile"])
        case _:
            return None


def prepared(gpu: Gpu, *devices: Device) -> ClaimRecord:
    uid = "11111111-0000-4000-8000-000000000000"

    def entry(device: Device) -> DeviceRecord:
        share_id = device.share.share_id if isinstance(device.share, ConsumedShare) else None
        name = name_of(gpu, device)
        return DeviceRecord(
            name=name,
            device=device,
            pool=POOL,
            request_names=("gpu",),
            cdi_device_ids=(claim_device_id(uid, name, share_id),),
            share_id=share_id,
        )

    return make.record(devices=tuple(map(entry, devices)))


@pytest.mark.parametrize("kind", KINDS)
def test_monitoring_finds_the_device_that_the_claims_status_names(kind: str) -> None:
    gpu, device, share = KINDS[kind]
    record = prepared(gpu, device)
    devices = published(gpu, share)
    (answered,) = record.devices  # what the kubelet tells in PodResources
    found = mapped(devices, answered.pool, answered.name)
    (entry,) = entries(record, make.inventory(gpu), lambda *_: WELL).values()
    mig: Any = entry["data"].get("mig")
    assert found is not None
    assert found == (
        Mapped(gpu=str(entry["data"]["uuid"]))
        if mig is None
        else Mapped(gpu=mig["parentUUID"], mig=str(entry["data"]["uuid"]), profile=mig["profile"])
    )


def test_monitoring_misses_mig_devices_made_on_demand_and_the_status_names_them() -> None:
    gpu = make.gpu(0, mig=make.mig())
    made = replace(MIG, made_here=True)
    record = prepared(gpu, make.device(made))
    devices = published(gpu, ShareOffer(), MigOffer())
    (answered,) = record.devices
    assert answered.name in {device["name"] for device in devices}
    assert mapped(devices, answered.pool, answered.name) is None
    (entry,) = entries(record, make.inventory(gpu), lambda *_: WELL).values()
    assert entry["data"]["uuid"] == made.uuid


def test_the_first_cdi_id_is_each_devices_own() -> None:
    several = [replace(ALL, share=replace(PART, share_id=one)) for one in "ab"]
    record = prepared(WHOLE, ALL, *equal_shares(ALL.base, FOUR), *several)
    first = [device.cdi_device_ids[0] for device in record.devices]
    assert len(set(first)) == len(first) == 7
