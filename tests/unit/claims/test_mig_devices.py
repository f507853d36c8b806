"""MIG devices of claims on a GPU that does not give them."""

from typing import Any

import pytest
from msgspec.structs import replace
from structlog.testing import capture_logs

import make
from dra_driver.claims.model.claim import ClaimUid
from dra_driver.claims.model.record import MakeMigDevices
from dra_driver.claims.prepare.mig import MigDevices
from dra_driver.devices.device import Device
from dra_driver.devices.mig.partitions import partitions
from dra_driver.devices.model import MigMode
from dra_driver.errors import DeviceError, TransientError

GPU = make.gpu(0, mig=make.mig(), mig_mode=MigMode.DISABLED)
PLACE = partitions(GPU)[0]
TODO = MakeMigDevices(devices=(Device(base=PLACE),), claim=ClaimUid("uid-1"))


class Node:
    """A GPU whose MIG mode is off and, once this driver has turned it on, stays on."""

    def __init__(self) -> None:
        self.ownership = self.holdings = self
        self.gpus = make.inventory(GPU)
        self.refuse = ""

    def current(self) -> Any:
        return self.gpus

    def mode(self, gpu: str) -> MigMode:
        return MigMode.DISABLED

    def set_mode(self, gpu: str, mode: MigMode) -> None:
        raise DeviceError(self.refuse)

    def note(self, slot: object, uid: ClaimUid) -> None: ...

    def turned_on(self, gpu: str) -> bool:
        return True

    def made(self, gpu: str) -> dict[object, ClaimUid]:
        return {}


def devices(node: Any) -> MigDevices:
    return MigDevices(node, node, node, node, switches_modes=False)


def test_where_no_mode_is_switched_a_gpu_out_of_mig_mode_is_said_with_what_to_do() -> None:
    with pytest.raises(DeviceError) as caught:
        devices(Node()).do(TODO)
    assert str(caught.value) == (
        f"{GPU.uuid} is not in MIG mode, so no MIG device can be made on it: MIG mode was turned "
        "off after the claim was allocated, and this driver turns it on only with --mig "
        f"on-demand. Turn it on again (nvidia-smi -i {GPU.uuid} -mig 1), or delete the pod and "
        "its claim so that they are scheduled again"
    )


def test_a_profile_that_the_gpu_does_not_report_now_is_waited_for() -> None:
    node = Node()
    node.gpus = make.inventory(replace(GPU, mig=make.mig(profiles=())))
    with pytest.raises(TransientError) as caught:
        devices(node).do(TODO)
    slot = PLACE.slot
    assert str(caught.value) == (
        f"{GPU.uuid} does not report now that it has MIG profile {slot.profile_id} at {slot.start}"
    )


def test_a_mode_that_cannot_be_turned_off_is_warned_of_once_for_each_reason() -> None:
    node = Node()
    mig = devices(node)
    with capture_logs() as logs:
        for node.refuse in ("lost", "lost", "busy"):
            assert not mig.tidy(GPU.uuid)
    assert [log["reason"] for log in logs] == ["lost", "busy"]
