"""The real pynvml over simulated MIG: what is found, made, destroyed, and what is refused."""

import queue
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pynvml
import pytest
from msgspec.structs import replace

from dra_driver.devices.device import Mig, MigIds, mig_of
from dra_driver.devices.mig.making import MigInstances
from dra_driver.devices.mig.partitions import partition_named, partitions
from dra_driver.devices.model import BareInstance, Gpu, MigDevice, MigMode, MigSlot, Placement
from dra_driver.errors import ConflictError, DeviceError, TransientError
from dra_driver.simulator.machine import Machine
from worlds.session import session_on

IN_USE = 19
NO_PERMISSION = 4
UNKNOWN = 999
CARDS = ["a100-80x8", "a30x4", "h100x8", "h200x8", "b200x8", "rtxpro6000x8"]


class Card:
    """A simulated machine, a session on it, and the slots that the driver says are its own."""

    def __init__(self, root: Path, profile: str) -> None:
        self.machine = Machine.create(root, profile)
        self.made: set[MigSlot] = set()
        self.session = session_on(self.machine, made_here=lambda: self.made)
        self.session.look()
        self.mig = MigInstances(self.session.mig)

    @property
    def gpu(self) -> Gpu:
        return self.session.look().gpus[0]

    def turn_on(self) -> None:
        """Turn MIG mode on as an admin does, with a reset where the card wants one."""
        uuid = self.gpu.uuid
        if not self.machine.set_mig_mode(uuid, enabled=True):
            self.machine.reset_gpu(uuid)

    def partition(self, profile_id: int, start: int) -> Mig:
        found = partition_named(self.gpu, profile_id, start)
        assert found is not None
        return found

    def make(self, place: Mig) -> MigIds:
        """Make the MIG device at a place; return by what NVML knows it."""
        self.mig.set_mode(place.gpu, MigMode.ENABLED)
        made = self.mig.make(place)
        assert replace(made, instance=None) == place
        assert made.instance is not None
        return made.instance

    def present(self) -> list[tuple[str, int]]:
        gpu = self.gpu
        assert gpu.mig is not None
        return [(entry.profile.name, entry.placement.start) for entry in gpu.mig.instances]


@pytest.fixture
def h100(tmp_path: Path) -> Iterator[Card]:
    """One whose first GPU is in MIG mode."""
    card = Card(tmp_path / "h100", "h100x8")
    card.mig.set_mode(card.gpu.uuid, MigMode.ENABLED)
    yield card
    card.session.close()


@pytest.fixture
def a100(tmp_path: Path) -> Iterator[Card]:
    card = Card(tmp_path / "a100", "a100x8")
    yield card
    card.session.close()


@pytest.mark.parametrize("profile", CARDS)
def test_every_partition_of_every_card_can_be_made_and_destroyed(
    tmp_path: Path, profile: str
) -> None:
    card = Card(tmp_path / "m", profile)
    card.turn_on()
    possible = partitions(card.gpu)
    for partition in possible:
        assert card.make(partition).uuid.startswith("MIG-")
        assert card.present() == [(partition.profile, partition.placement.start)]
        card.mig.destroy(partition.slot)
    assert card.present() == []
    assert len(possible) >= 10
    card.session.close()


def test_a_hopper_gpu_is_known_as_what_it_can_be_divided_into(h100: Card) -> None:
    mig = h100.gpu.mig

    assert mig is not None
    assert (mig.needs_reset, mig.is_virtual) == (False, False)
    places = [place for profile in mig.profiles for place in profile.placements]
    assert max(place.start + place.size for place in places) == 8
    assert {profile.name for profile in mig.profiles} == {
        "1g.10gb",
        "1g.10gb+me",
        "1g.20gb",
        "2g.20gb",
        "3g.40gb",
        "4g.40gb",
        "7g.80gb",
    }
    (whole,) = (profile for profile in mig.profiles if profile.name == "7g.80gb")
    assert (whole.id, whole.compute_slices, whole.multiprocessors) == (0, 7, 132)
    assert whole.memory_bytes == 81152 << 20


def test_the_mode_is_on_at_once_on_hopper(h100: Card) -> None:
    assert h100.gpu.mig_mode is MigMode.ENABLED
    device = h100.make(h100.partition(9, 4))

    assert h100.machine.mig_devices(h100.gpu.uuid)[0].uuid == device.uuid
    assert h100.present() == [("3g.40gb", 4)]


def test_the_mode_is_turned_off_once_nothing_is_left(h100: Card) -> None:
    partition = h100.partition(9, 4)
    h100.mig.make(partition)
    with pytest.raises(ConflictError, match=r"3g\.40gb at 4"):
        h100.mig.set_mode(partition.gpu, MigMode.DISABLED)
    h100.mig.destroy(partition.slot)
    h100.mig.set_mode(partition.gpu, MigMode.DISABLED)

    assert h100.gpu.mig_mode is MigMode.DISABLED


def test_ampere_is_never_left_waiting_for_a_reset(a100: Card) -> None:
    before = a100.gpu
    with pytest.raises(DeviceError, match="only by a reset"):
        a100.mig.set_mode(before.uuid, MigMode.ENABLED)

    assert a100.gpu == before


def test_instances_made_and_removed_by_hand_are_seen_at_the_next_look(h100: Card) -> None:
    h100.turn_on()
    uuid = h100.machine.create_mig(h100.gpu.uuid, "2g.20gb", 2)
    mig = h100.gpu.mig
    assert mig is not None
    (device,) = mig.instances
    assert (device.uuid, device.placement.start, device.made_here) == (uuid, 2, False)
    h100.machine.destroy_mig(uuid)
    assert h100.present() == []


def test_holes_in_the_mig_index_hide_nothing(h100: Card) -> None:
    h100.turn_on()
    made = [h100.machine.create_mig(h100.gpu.uuid, "1g.10gb", start) for start in range(4)]
    h100.machine.destroy_mig(made[1])

    assert h100.gpu.mig is not None
    found = [one for one in h100.gpu.mig.instances if isinstance(one, MigDevice)]
    assert [one.placement.start for one in found] == [0, 2, 3]


def meanwhile(monkeypatch: pytest.MonkeyPatch, *doing: Callable[[], object]) -> None:
    """Let others do something each time that MIG devices are listed, before the second one."""
    ask, left = pynvml.nvmlDeviceGetMigDeviceHandleByIndex, list(doing)

    def asked(handle: object, index: int) -> object:
        if index == 1 and left:
            left.pop(0)()
        return ask(handle, index)

    monkeypatch.setattr(pynvml, "nvmlDeviceGetMigDeviceHandleByIndex", asked)


def test_changes_during_a_scan_neither_hide_nor_repeat_devices(
    h100: Card, monkeypatch: pytest.MonkeyPatch
) -> None:
    h100.turn_on()
    uuid = h100.gpu.uuid
    big = h100.machine.create_mig(uuid, "3g.40gb", 4)
    h100.machine.create_mig(uuid, "1g.10gb", 0)
    h100.machine.destroy_mig(big)
    meanwhile(
        monkeypatch,
        lambda: h100.machine.create_mig(uuid, "1g.10gb", 1),  # number 1 is number 0 now
        lambda: h100.machine.create_mig(uuid, "3g.40gb", 4),  # and number 0 is number 1
    )
    assert h100.gpu.mig is not None
    assert all(isinstance(one, MigDevice) for one in h100.gpu.mig.instances)


def test_a_device_is_known_although_others_go_and_come_while_it_is_made(
    h100: Card, monkeypatch: pytest.MonkeyPatch
) -> None:
    h100.turn_on()
    uuid = h100.gpu.uuid
    other = h100.machine.create_mig(uuid, "1g.10gb", 0)

    def others() -> None:
        h100.machine.destroy_mig(other)
        h100.machine.create_mig(uuid, "1g.10gb", 3)

    with h100.session.mig() as calls:
        number = calls.create_gpu_instance(uuid, 19, Placement(start=2, size=1))
        meanwhile(monkeypatch, others)
        made = calls.create_compute_instance(uuid, number)
    assert made[1] in [device.uuid for device in h100.machine.mig_devices(uuid)]


def test_devices_made_by_the_driver_are_marked(h100: Card) -> None:
    partition = h100.partition(9, 4)
    h100.made.add(partition.slot)
    h100.mig.make(partition)
    h100.mig.make(h100.partition(19, 0))
    mig = h100.gpu.mig
    assert mig is not None

    assert [(entry.profile.name, entry.made_here) for entry in mig.instances] == [
        ("1g.10gb", False),
        ("3g.40gb", True),
    ]


def test_making_again_returns_the_same_device(h100: Card) -> None:
    partition = h100.partition(9, 4)

    assert h100.mig.make(partition) == h100.mig.make(partition)


def test_an_overlapping_device_waits_for_the_other(h100: Card) -> None:
    h100.mig.make(h100.partition(9, 4))
    with pytest.raises(TransientError, match=r"it has GPU instance \d+ \(3g\.40gb at 4\)"):
        h100.mig.make(h100.partition(19, 5))
    h100.mig.destroy(h100.partition(9, 4).slot)

    assert h100.mig.make(h100.partition(19, 5)).placement.start == 5


def test_engines_that_are_used_up_are_waited_for_and_nothing_is_left(h100: Card) -> None:
    h100.mig.make(h100.partition(20, 0))
    with pytest.raises(TransientError, match="no room"):
        h100.mig.make(h100.partition(20, 3))

    assert h100.present() == [("1g.10gb+me", 0)]


@pytest.mark.parametrize(
    "function",
    [
        "nvmlDeviceCreateGpuInstanceWithPlacement",
        "nvmlGpuInstanceGetInfo",
        "nvmlGpuInstanceGetComputeInstanceProfileInfoV",
        "nvmlGpuInstanceCreateComputeInstance",
        "nvmlComputeInstanceGetInfo_v2",
    ],
)
def test_a_call_that_fails_leaves_no_instance(h100: Card, function: str) -> None:
    partition = h100.partition(9, 4)
    h100.machine.fail_call(function, UNKNOWN, times=1)
    with pytest.raises(DeviceError, match="Unknown Error"):
        h100.mig.make(partition)

    assert h100.present() == []
    assert h100.mig.make(partition).placement == partition.placement


def test_an_instance_in_use_is_destroyed_when_its_processes_have_ended(h100: Card) -> None:
    partition = h100.partition(9, 4)
    device = h100.make(partition)
    holder = h100.machine.hold_instance(device.uuid)
    with pytest.raises(TransientError, match="processes still use it"):
        h100.mig.destroy(partition.slot)
    assert h100.present() == [("3g.40gb", 4)]
    h100.machine.release_instance(device.uuid, pid=holder)
    h100.mig.destroy(partition.slot)

    assert h100.present() == []


def test_a_mode_in_use_is_waited_for(h100: Card) -> None:
    uuid = h100.gpu.uuid
    h100.mig.set_mode(uuid, MigMode.DISABLED)
    h100.machine.fail_call("nvmlDeviceSetMigMode", IN_USE, times=1)
    with pytest.raises(TransientError, match="cannot be switched to MIG mode while others"):
        h100.mig.set_mode(uuid, MigMode.ENABLED)

    h100.mig.set_mode(uuid, MigMode.ENABLED)
    assert h100.gpu.mig_mode is MigMode.ENABLED


def test_an_instance_lost_by_a_reset_is_simply_gone(h100: Card) -> None:
    partition = h100.partition(9, 4)
    h100.mig.make(partition)
    h100.machine.reset_gpu(partition.gpu)

    assert h100.mig.find(partition.slot) is None
    h100.mig.destroy(partition.slot)


def test_a_gpu_instance_without_compute_instance_is_found_and_destroyed(h100: Card) -> None:
    partition = h100.partition(9, 4)
    h100.machine.fail_call("nvmlGpuInstanceCreateComputeInstance", UNKNOWN, times=1)
    h100.machine.fail_call("nvmlGpuInstanceDestroy", UNKNOWN, times=1)
    with pytest.raises(DeviceError):
        h100.mig.make(partition)
    assert isinstance(h100.mig.find(partition.slot), BareInstance)
    h100.mig.destroy(partition.slot)

    assert h100.present() == []


def test_missing_rights_to_list_instances_are_reported(h100: Card) -> None:
    h100.mig.make(h100.partition(9, 4))
    h100.machine.fail_call("nvmlDeviceGetGpuInstances", NO_PERMISSION)
    mig = h100.gpu.mig

    assert mig is not None
    assert mig.instances == ()
    assert "root" in (mig.problem or "")


def test_a_scan_is_repeated_if_an_instance_disappears(h100: Card) -> None:
    h100.mig.make(h100.partition(9, 4))
    h100.machine.fail_call("nvmlDeviceGetGpuInstanceId", 6, times=1)

    assert h100.present() == [("3g.40gb", 4)]


def test_the_library_stays_open_while_it_is_lent(h100: Card) -> None:
    closed: queue.Queue[bool] = queue.Queue()
    closer = threading.Thread(target=lambda: closed.put(h100.session.close()), name="closer")
    with h100.session.mig() as calls:
        closer.start()
        assert calls.mode(h100.machine.find("0").uuid) is MigMode.ENABLED
        assert closed.empty()
    assert closed.get(timeout=30)
    closer.join(30)
    with pytest.raises(TransientError, match="not open"), h100.session.mig():
        pass


def test_a_device_is_found_as_it_was_made(h100: Card) -> None:
    device = h100.mig.make(h100.partition(5, 0))
    found = h100.mig.find(device.slot)

    assert isinstance(found, MigDevice)
    assert mig_of(replace(found, made_here=True)) == device
