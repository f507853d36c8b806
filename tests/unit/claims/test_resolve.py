"""What has to be done to GPUs before a claim's devices exist, and what is never done to them."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

import make
from dra_driver.claims.model.record import ClaimRecord, DeviceRecord
from dra_driver.claims.prepare import resolve
from dra_driver.claims.prepare.mig import MigDevices
from dra_driver.claims.state.ledger import Ledger
from dra_driver.devices.device import Device, equal_shares
from dra_driver.devices.model import Gpu, MigDevice, MigMode, MigSlot
from dra_driver.devices.shares import Division, ShareStrategy
from dra_driver.errors import DeviceError, StateError

GPU = make.gpu(0, mig=make.mig())
WITHOUT_MIG = make.gpu(1)
FOUND = make.mig_device(0, start=2)
WHOLE, MIG = make.device(GPU), make.device(FOUND)
PLACE = Device(base=make.place(FOUND))
DIVISION = Division(count=2, strategy=ShareStrategy.MPS, served_as="nvidia.com/gpu", combines=True)
SHARE = equal_shares(MIG.base, DIVISION)[1]


class Node:
    """GPUs whose MIG modes are as they are set, and MIG devices as a test puts them there."""

    def __init__(self, folder: Path) -> None:
        self.on: set[str] = set()
        self.there: dict[MigSlot, MigDevice] = {}
        ledger = Ledger(folder, boot_id="boot-1")
        node: Any = self
        self.mig = MigDevices(node, ledger, node, switches_modes=False)

    def resolve(self, record: ClaimRecord, gpu: Gpu = GPU) -> ClaimRecord:
        return resolve.resolve(self.mig, record, {one.uuid: one for one in (gpu, WITHOUT_MIG)})

    # Hardware and inventory

    def mode(self, gpu: str) -> MigMode:
        return MigMode.ENABLED if gpu in self.on else MigMode.DISABLED

    def find(self, slot: MigSlot) -> MigDevice | None:
        return self.there.get(slot)

    def current(self) -> Any:
        return make.inventory(GPU)

    def switched(self, gpu: str) -> None: ...


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def claim(*devices: Device, admin_access: Sequence[int] = ()) -> ClaimRecord:
    entries = tuple(
        DeviceRecord(
            name=f"device-{number}",
            device=one,
            pool="node-1",
            request_names=("gpu",),
            cdi_device_ids=(),
            admin_access=number in admin_access,
        )
        for number, one in enumerate(devices)
    )
    return make.record(uid="uid-1", devices=entries)


def devices(record: ClaimRecord) -> list[Device]:
    return [entry.device for entry in record.devices]


def test_a_whole_gpu_exists_and_needs_no_mig_query(node: Node) -> None:
    node.on = {WITHOUT_MIG.uuid}
    record = claim(WHOLE, make.device(WITHOUT_MIG))
    assert node.resolve(record) == record


def test_with_admin_access_no_mode_is_switched_and_a_gpu_in_mig_mode_is_seen(node: Node) -> None:
    node.on = {GPU.uuid}
    seen = claim(WHOLE, admin_access=[0])
    assert node.resolve(seen) == seen
    in_mig_mode = replace(GPU, mig_mode=MigMode.ENABLED, mig=make.mig(FOUND))
    with pytest.raises(DeviceError, match='"device-0" is in MIG mode and cannot be used as a'):
        node.resolve(claim(WHOLE), in_mig_mode)
    assert node.resolve(seen, in_mig_mode) == seen


def test_a_share_of_a_missing_device_is_refused(node: Node) -> None:
    node.on = {GPU.uuid}
    with pytest.raises(DeviceError, match='"device-0": the MIG device that it is a share of is'):
        node.resolve(claim(replace(SHARE, base=PLACE.base)))
    off = replace(GPU, mig_mode=MigMode.ENABLED, mig=make.mig(pending_mode=MigMode.ENABLED))
    with pytest.raises(DeviceError, match=r'"device-0" is in MIG mode, so it has no shares'):
        node.resolve(claim(equal_shares(WHOLE.base, DIVISION)[1]), off)


def test_devices_of_a_prepared_claim_are_made_again_but_for_those_that_are_only_seen(
    node: Node,
) -> None:
    now = replace(FOUND, gpu_instance=77)
    node.there = {FOUND.slot: now}
    again = make.device(now)
    record = resolve.remake(node.mig, claim(WHOLE, MIG, SHARE, MIG, admin_access=[3]))
    assert devices(record) == [WHOLE, again, replace(SHARE, base=again.base), MIG]
    with pytest.raises(StateError, match='the record of device "device-0" has no MIG device'):
        resolve.remake(node.mig, claim(PLACE))
