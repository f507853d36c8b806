"""Every kind of device has a name, a form in a record, and a type of its own in the metrics."""

from pathlib import Path
from typing import get_args

import pytest
from msgspec.structs import replace

import make
from dra_driver.cdi.edits_cache import NodeEdits
from dra_driver.cdi.model import Edits
from dra_driver.cdi.roots import Roots
from dra_driver.claims.model.record import decode, encode
from dra_driver.devices.device import Base, Device, DeviceKind, NodeDevice, Vfio, mig_at, name_of
from dra_driver.devices.names import parse_device_name
from dra_driver.devices.shares import ConsumedShare, Division, EqualShare, Share, ShareStrategy
from dra_driver.errors import StateError
from dra_driver.ops.metrics import DeviceType

MADE = make.mig_device(0, "2g.20gb", 2)
GPU = make.gpu(0, mig=make.mig(MADE))
TO_BE_MADE = mig_at(GPU.uuid, make.H100_PROFILES[0], make.H100_PROFILES[0].placements[0])
EQUAL = EqualShare(
    index=3,
    division=Division(
        count=10, strategy=ShareStrategy.MPS, served_as="nvidia.com/gpu", combines=True
    ),
)
CONSUMED = ConsumedShare(
    share_id="a671734a", strategy=ShareStrategy.MPS, memory_mib=10240, cores=20
)
EXAMPLES = {
    "gpu": make.device(GPU),
    "mig device": make.device(MADE),
    "partition": Device(base=TO_BE_MADE),
    "passthrough": Device(base=Vfio(gpu=GPU.uuid, address=GPU.pci_address, number=0)),
    "share": replace(make.device(GPU), share=EQUAL),
    "consumed share": replace(make.device(GPU), share=CONSUMED),
}


def test_there_is_an_example_of_each_kind() -> None:
    assert {type(one.base) for one in EXAMPLES.values()} == set(get_args(Base))
    assert {type(one.share) for one in EXAMPLES.values()} == {type(None), *get_args(Share)}
    assert {one.kind for one in EXAMPLES.values()} == set(DeviceKind)
    assert {one.exists for one in EXAMPLES.values()} == {True, False}


@pytest.mark.parametrize("kind", EXAMPLES)
def test_each_kind_has_a_name_that_means_it_and_a_form_in_a_record(kind: str) -> None:
    device = EXAMPLES[kind]
    assert parse_device_name(name_of(GPU, device)) is not None
    record = make.record(GPU)
    (entry,) = record.devices
    record = replace(record, devices=(replace(entry, device=device),))
    assert decode(encode(record)) == record


@pytest.mark.parametrize("kind", DeviceKind)
def test_each_kind_is_counted_under_its_own_type(kind: DeviceKind) -> None:
    assert DeviceType(kind).value == kind.value


def test_devices_not_yet_made_have_no_container_edits(tmp_path: Path) -> None:
    roots = Roots(driver=tmp_path, driver_on_host="/", dev=tmp_path, dev_on_host="/dev")
    node = NodeEdits(common=Edits(), roots=roots)
    with pytest.raises(
        StateError, match=r"1g.10gb at 0 of GPU-.* cannot be used before it is made"
    ):
        node.device(NodeDevice(gpu=GPU, device=EXAMPLES["partition"]))
