"""What has to be done to GPUs before a claim's devices exist, and what is never done to them."""

from collections.abc import Sequence
from typing import Any

import pytest
from msgspec.structs import replace

import make
from dra_driver.claims.model.devices import DeviceRecord, RecordedMig, RecordedShare, recorded
from dra_driver.claims.model.record import ClaimRecord, MakeMigDevices, TurnMigModeOff
from dra_driver.claims.prepare.realise import Realiser
from dra_driver.devices.kinds import Device, NodeDevice
from dra_driver.devices.model import MigMode, Partition
from dra_driver.devices.shares import Division, Share, ShareStrategy
from dra_driver.errors import DeviceError, StateError

GPU = make.gpu(0, mig=make.mig())
WITHOUT_MIG = make.gpu(1)
MIG = make.mig_device(0, start=2)
PLACE = Partition(parent=GPU.uuid, profile=MIG.profile, placement=MIG.placement)
DIVISION = Division(count=2, strategy=ShareStrategy.MPS, served_as="nvidia.com/gpu", combines=True)


class Node:
    """GPUs whose MIG modes are as they are set, and a place where a MIG device may be."""

    def __init__(self, *, switches_modes: bool = False) -> None:
        self.on: set[str] = set()
        self.ours: set[str] = set()
        self.there: Any = None
        self.done: list[tuple[object, ...]] = []
        node: Any = self
        self.realiser = Realiser(node, node, node, switches_modes=switches_modes)

    def mode(self, gpu: str) -> MigMode:
        return MigMode.ENABLED if gpu in self.on else MigMode.DISABLED

    def set_mode(self, gpu: str, mode: MigMode) -> None:
        self.done.append((gpu, mode))

    def turned_on(self, gpu: str) -> bool:
        return gpu in self.ours

    def forget_mode(self, gpu: str) -> None:
        self.done.append(("forgotten", gpu))

    def find(self, entry: Any, place: Any, gpu: Any, uid: str) -> Any:
        assert (gpu, uid) == (GPU, "uid-1")
        return self.there or place

    def make(self, todo: MakeMigDevices, uid: str) -> Any:
        self.done.append(("made", uid))
        return {place: recorded(MIG) for place in todo.places}

    def unmake(self, done: MakeMigDevices, uid: str) -> None:
        self.done.append(("unmade", uid))

    def remake(self, entry: Any, device: Any, record: Any) -> Any:
        return replace(device, gpu_instance=77)


def claim(
    *devices: Device, admin_access: Sequence[int] = ()
) -> tuple[ClaimRecord, dict[str, NodeDevice]]:
    entries = tuple(
        DeviceRecord(
            name=f"device-{number}",
            device=recorded(one),
            pool="node-1",
            request_names=("gpu",),
            cdi_device_ids=(),
            admin_access=number in admin_access,
        )
        for number, one in enumerate(devices)
    )
    allocated = {
        entry.name: NodeDevice(gpu=WITHOUT_MIG if one is WITHOUT_MIG else GPU, device=one)
        for entry, one in zip(entries, devices, strict=True)
    }
    return make.record(uid="uid-1", devices=entries), allocated


def found(node: Node, *devices: Device, admin_access: Sequence[int] = ()) -> ClaimRecord:
    return node.realiser.find(*claim(*devices, admin_access=admin_access))


def test_a_whole_gpu_is_there_and_one_without_mig_is_not_asked_for_its_mode() -> None:
    node = Node()
    node.on = {WITHOUT_MIG.uuid}
    assert found(node, GPU, WITHOUT_MIG).realisations == ()


@pytest.mark.parametrize("is_ours", [True, False])
@pytest.mark.parametrize("switches_modes", [True, False])
def test_mig_mode_is_turned_off_for_a_whole_gpu_only_where_it_is_ours_or_may_be(
    switches_modes: bool, is_ours: bool
) -> None:
    node = Node(switches_modes=switches_modes)
    node.on = {GPU.uuid}
    node.ours = {GPU.uuid} if is_ours else set()
    if not (is_ours or switches_modes):
        with pytest.raises(
            DeviceError, match=r'"device-0" is in MIG mode and cannot be .* \(nvidia-smi -i 0 -mig'
        ):
            found(node, GPU)
        return
    record = found(node, GPU)
    off = TurnMigModeOff(gpu=GPU.uuid, restore=not is_ours)
    assert record.realisations == (off,)
    node.realiser.make(record)
    assert node.done == [(GPU.uuid, MigMode.DISABLED), ("forgotten", GPU.uuid)]
    node.done.clear()
    assert node.realiser.unmake([off], record.ref.uid) == []
    assert node.done == ([] if is_ours else [(GPU.uuid, MigMode.ENABLED)])


def test_with_admin_access_no_mode_is_switched_and_a_gpu_in_mig_mode_is_seen() -> None:
    node = Node()
    node.on = {GPU.uuid}
    assert found(node, GPU, admin_access=[0]).realisations == ()
    in_mig_mode = replace(GPU, mig_mode=MigMode.ENABLED, mig=make.mig(MIG))
    record, _ = claim(in_mig_mode)
    allocated = {"device-0": NodeDevice(gpu=in_mig_mode, device=in_mig_mode)}
    with pytest.raises(DeviceError, match='"device-0" is in MIG mode and cannot be used as a'):
        node.realiser.find(record, allocated)
    seen = make.record(uid="uid-1", devices=(replace(record.devices[0], admin_access=True),))
    assert node.realiser.find(seen, allocated).devices == seen.devices


def test_a_place_where_nothing_is_has_a_mig_device_made_that_takes_its_place() -> None:
    node = Node()
    other = replace(PLACE, placement=make.mig_device(0, start=4).placement)
    record = found(node, PLACE, other)
    places = tuple(entry.device for entry in record.devices)
    assert record.realisations == (MakeMigDevices(gpu=GPU.uuid, places=places),)  # type: ignore[arg-type]
    made = node.realiser.make(record)
    assert [entry.device for entry in made.devices] == [recorded(MIG)] * 2
    assert node.realiser.unmake(made.realisations, made.ref.uid) == []
    assert node.done == [("made", "uid-1"), ("unmade", "uid-1")]


def test_a_mig_device_that_is_there_is_taken_as_it_is() -> None:
    node = Node()
    node.there = recorded(MIG)
    record = found(node, PLACE, MIG, Share(of=MIG, index=1, division=DIVISION))
    assert [entry.device for entry in record.devices] == [
        recorded(MIG),
        recorded(MIG),
        recorded(Share(of=MIG, index=1, division=DIVISION)),
    ]
    assert record.realisations == ()


def test_a_share_of_what_is_not_there_any_more_is_refused() -> None:
    node = Node()
    with pytest.raises(DeviceError, match='"device-0": the MIG device that it is a share of is'):
        found(node, Share(of=MIG, index=1, division=DIVISION))
    record, _ = claim(Share(of=GPU, index=1, division=DIVISION))
    off = replace(GPU, mig_mode=MigMode.ENABLED, mig=make.mig(pending_mode=MigMode.ENABLED))
    with pytest.raises(DeviceError, match=r'"device-0" is in MIG mode, so it has no shares'):
        node.realiser.find(record, {"device-0": NodeDevice(gpu=off, device=off)})


def test_devices_of_a_prepared_claim_are_made_again_but_for_those_that_are_only_seen() -> None:
    node = Node()
    record, _ = claim(GPU, MIG, Share(of=MIG, index=1, division=DIVISION), MIG, admin_access=[3])
    gpu, mig, share, seen = (entry.device for entry in node.realiser.remake(record).devices)
    again = replace(recorded(MIG), gpu_instance=77)  # type: ignore[arg-type]
    assert (gpu, mig, seen) == (recorded(GPU), again, recorded(MIG))
    assert isinstance(share, RecordedShare)
    assert share.of == again
    assert isinstance(mig, RecordedMig)
    unmade, _ = claim(PLACE)
    with pytest.raises(StateError, match='the record of device "device-0" has no MIG device'):
        node.realiser.remake(unmade)
