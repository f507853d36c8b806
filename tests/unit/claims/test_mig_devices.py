"""MIG devices of claims on a GPU that does not give them."""

from typing import Any

import pytest
from msgspec.structs import replace
from structlog.testing import capture_logs

import make
from dra_driver.claims.model.claim import ClaimUid
from dra_driver.claims.model.record import MakeMigDevices, TurnMigModeOn
from dra_driver.claims.prepare.mig import MigDevices
from dra_driver.devices.device import Device, Mig, MigIds
from dra_driver.devices.mig.partitions import partitions
from dra_driver.devices.model import MigMode, MigUuid
from dra_driver.errors import BarredError, ConflictError, DeviceError, HeldError, TransientError

GPU = make.gpu(0, mig=make.mig(), mig_mode=MigMode.DISABLED)
PLACE = partitions(GPU)[0]
UID, OTHER = ClaimUid("uid-1"), ClaimUid("uid-2")
DEVICES = (Device(base=PLACE),)
MODE_ON = TurnMigModeOn(devices=DEVICES, claim=UID)
TODO = MakeMigDevices(devices=DEVICES, claim=UID)


class Node:
    """A GPU whose MIG mode is off, the ledger of its claims, and who waits for MIG devices."""

    def __init__(self) -> None:
        self.mode_now = MigMode.DISABLED
        self.error: Exception | None = None
        self.modes: dict[str, set[ClaimUid]] = {}
        self.slots: dict[object, set[ClaimUid]] = {}
        self.there: list[object] = []
        self.waiting: list[object] = []

    def mode(self, gpu: str) -> MigMode:
        return self.mode_now

    def set_mode(self, gpu: str, mode: MigMode) -> None:
        if self.error is not None:
            raise self.error
        self.mode_now = mode

    def make(self, place: Mig) -> Mig:
        if self.error is not None:
            raise self.error
        self.there.append(place.slot)
        return place

    def find(self, slot: object) -> object:
        return slot if slot in self.there else None

    def destroy(self, slot: object) -> None:
        self.there.remove(slot)

    def turned_on(self, gpu: str) -> dict[str, set[ClaimUid]]:
        return self.modes

    def made(self, gpu: str) -> dict[object, set[ClaimUid]]:
        return self.slots

    def refused(self, slot: object, user: str, error: Exception) -> None:
        self.waiting.append((slot, user))

    def switched(self, gpu: str) -> None:
        self.waiting.clear()


@pytest.fixture
def node() -> Any:
    return Node()


def devices(node: Any) -> MigDevices:
    return MigDevices(node, node, node, switches_modes=False)


def test_a_gpu_whose_mig_mode_is_off_is_refused_with_advice(node: Any) -> None:
    ids = MigIds(gpu_instance=1, compute_instance=0, uuid=MigUuid("MIG-1"), made_here=True)
    record = make.record()
    with pytest.raises(DeviceError) as caught:
        devices(node).remake(record.devices[0], replace(PLACE, instance=ids), record)
    assert str(caught.value) == (
        f"{GPU.uuid} is not in MIG mode, so no MIG device can be made on it: MIG mode was turned "
        "off after the claim was allocated, and this driver turns it on only with --mig "
        f"on-demand. Turn it on again (nvidia-smi -i {GPU.uuid} -mig 1), or delete the pod and "
        "its claim so that they are scheduled again"
    )


@pytest.mark.parametrize(
    ("step", "error"), [(MODE_ON, HeldError("open", minor=0)), (TODO, BarredError("not permitted"))]
)
def test_a_refusing_gpu_is_noted_with_the_awaited_places(
    node: Any, step: Any, error: Exception
) -> None:
    node.error = error
    with pytest.raises(type(error)):
        devices(node).do(step)
    assert node.waiting == [(PLACE.slot, UID)]
    node.error = None
    devices(node).do(TODO)
    assert node.waiting == []


def test_the_mode_goes_off_with_the_last_claim_and_the_last_device_made_for_one(node: Any) -> None:
    mig = devices(node)
    mig.do(MODE_ON)
    assert node.mode_now is MigMode.ENABLED
    mig.do(TODO)
    node.modes, node.slots = {GPU.uuid: {UID, OTHER}}, {PLACE.slot: {UID, OTHER}}
    mig.undo(TODO)
    mig.undo(MODE_ON)
    assert node.there == [PLACE.slot]
    assert node.mode_now is MigMode.ENABLED, "another claim has both"
    node.modes, node.slots = {GPU.uuid: {UID}}, {PLACE.slot: {UID}}
    with pytest.raises(TransientError, match="still there"):
        mig.undo(MODE_ON)
    mig.undo(TODO)
    mig.undo(MODE_ON)
    assert (node.there, node.mode_now) == ([], MigMode.DISABLED)


def test_a_mode_below_devices_that_others_made_is_left_on_and_one_that_cannot_be_is_tried_again(
    node: Any,
) -> None:
    mig = devices(node)
    node.error = ConflictError("GPU instance 7 is there")
    with capture_logs() as logs:
        mig.undo(MODE_ON)
    assert [(line["event"], line["reason"]) for line in logs] == [
        ("mig mode left on", "GPU instance 7 is there")
    ]
    node.error = DeviceError("lost")
    with pytest.raises(DeviceError, match="lost"):
        mig.undo(MODE_ON)
