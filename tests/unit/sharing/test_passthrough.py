"""GPUs for virtual machines: what is done, undone, left alone and refused, in every order."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import make
from dra_driver.devices.device import Device, Vfio
from dra_driver.devices.holders import Holder
from dra_driver.devices.model import PciAddress
from dra_driver.devices.passthrough.bus import PciBus
from dra_driver.errors import DeviceError, HeldError, TransientError
from dra_driver.sharing.base import Group, Unit
from dra_driver.sharing.passthrough import Passthrough, PassthroughNode
from dra_driver.sharing.steps import PassThrough
from resource_nvidia_com.decode import decode
from worlds.pci import PciTree

GPU = PciAddress("0000:10:00.0")
AUDIO = PciAddress("0000:10:00.1")
MINOR = 3
VM = Holder(pid=7, name="vector-add")
PERSISTENCED = Holder(pid=8, name="nvidia-persistenced"[:15])  # as /proc/PID/comm has it


class PlayedBus(PciBus):
    """Its switches act at once, unless one is to fail."""

    def __init__(self, tree: PciTree, log: list[str]) -> None:
        super().__init__(tree.root)
        self.tree = tree
        self.log = log
        self.fails: dict[str, Exception] = {}

    def switch(
        self,
        address: PciAddress,
        driver: str | None,
        *,
        override: str,
        seconds: float,
    ) -> None:
        if error := self.fails.get(address):
            raise error
        self.log.append(f"{address} to {driver}")
        self.tree.bind(address, driver)
        text = override or "(null)"
        (self.tree.root / "bus/pci/devices" / address / "driver_override").write_text(text)


class World:
    """A GPU with an audio function, and all that the step asks and tells."""

    def __init__(self, root: Path) -> None:
        self.log: list[str] = []
        self.tree = PciTree(root / "sys", "snd_hda_intel")
        self.tree.add(GPU, group=7)
        self.tree.add(AUDIO, group=7, class_id="0x040300", driver="snd_hda_intel")
        self.bus = PlayedBus(self.tree, self.log)
        self.proc = root / "proc"
        self.dev = root / "dev"
        self.dev.mkdir()
        information = self.proc / "driver/nvidia/gpus" / GPU / "information"
        information.parent.mkdir(parents=True)
        information.write_text(f"Model: \t\t NVIDIA H100\nDevice Minor: \t {MINOR}\n")
        self.holders: dict[int, tuple[Holder, ...]] = {}
        self.on_pause: Callable[[], None] = lambda: None
        self.now = 0.0
        node = PassthroughNode(
            bus=self.bus,
            proc=self.proc,
            dev=lambda: (self.dev, "/dev"),
            aliases=(),
            holders=lambda minor: self.holders.get(minor, ()),
            on_switched=lambda: self.log.append("look soon"),
            clock=lambda: self.now,
            pause=self._pause,
        )
        self.passthrough = Passthrough(node, self)

    def _pause(self, seconds: float) -> None:
        self.now += seconds
        self.on_pause()

    @contextmanager
    def apart(self) -> Iterator[None]:
        self.log.append("nvml closed")
        yield
        self.log.append("nvml may open")

    def look(self) -> object:
        self.log.append("nvml opened")
        return None

    def set_persistence(self, uuid: str, *, on: bool) -> None:
        assert uuid == make.gpu(0).uuid
        self.log.append(f"persistence {'on' if on else 'off'}")

    def plan(self, config: dict[str, Any] | None = None, **changes: Any) -> PassThrough:
        gpu = make.gpu(0, **({"is_persistent": False} | changes))
        device = Device(base=Vfio(gpu=gpu.uuid, address=GPU, number=0))
        unit = Unit(name="gpu-vfio-0", request="vm", gpu=gpu, device=device)
        parameters = make.config(kind="VfioDeviceConfig", **(config or {}))["opaque"]["parameters"]
        decoded = None if config is None else decode(parameters).normalise()
        group = Group(claim="uid", config=decoded, units=(unit,), owed=self.owed)
        (step,) = self.passthrough.plan([group], 100.0)
        assert isinstance(step, PassThrough)
        return step

    owed: tuple[PassThrough, ...] = ()

    def drivers(self) -> tuple[str | None, str | None]:
        return self.bus.driver_of(GPU), self.bus.driver_of(AUDIO)


BEFORE = ("nvidia", "snd_hda_intel")
GIVEN = ("vfio-pci", "vfio-pci")


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def test_all_of_a_gpu_is_given_and_given_back(world: World) -> None:
    step = world.plan()
    world.passthrough.do(step, 100.0)
    assert world.drivers() == GIVEN
    assert world.bus.override_of(GPU) == "vfio-pci"
    switched = [f"{GPU} to vfio-pci", f"{AUDIO} to vfio-pci"]
    assert world.log == ["nvml closed", *switched, "nvml may open", "look soon"]
    world.passthrough.ensure(step)
    world.passthrough.undo(step, 100.0)
    assert world.drivers() == BEFORE
    assert world.bus.override_of(GPU) == ""


def test_every_verb_may_be_repeated(world: World) -> None:
    step = world.plan()
    for _ in range(2):
        world.passthrough.do(step, 100.0)
    for _ in range(2):
        world.passthrough.undo(step, 100.0)
    assert world.log.count("nvml closed") == 1
    assert world.drivers() == BEFORE


@pytest.mark.parametrize("found", ["vfio-pci", None])
def test_it_goes_back_to_what_it_was_bound_to(world: World, found: str | None) -> None:
    world.tree.bind(GPU, found)
    step = world.plan()
    world.passthrough.do(step, 100.0)
    world.passthrough.undo(step, 100.0)
    assert world.bus.driver_of(GPU) == found


def test_persistence_mode_goes_off_and_on_again(world: World) -> None:
    step = world.plan(is_persistent=True)
    world.passthrough.do(step, 100.0)
    assert world.log[:2] == ["persistence off", "nvml closed"]
    del world.log[:]
    world.passthrough.undo(step, 100.0)
    assert world.log[-2:] == ["nvml opened", "persistence on"]


def test_where_it_was_off_it_stays_off(world: World) -> None:
    step = world.plan(is_persistent=False)
    world.passthrough.do(step, 100.0)
    world.passthrough.undo(step, 100.0)
    assert not [line for line in world.log if "persistence" in line]


def test_nothing_is_written_while_a_process_has_the_gpu(world: World) -> None:
    world.holders[MINOR] = (VM, PERSISTENCED)
    step = world.plan(is_persistent=True)
    with pytest.raises(HeldError, match=r"while vector-add \(PID 7\) has it open"):
        world.passthrough.do(step, 100.0)
    assert world.log == []
    assert world.drivers() == BEFORE


def test_a_process_that_ends_is_waited_for(world: World) -> None:
    world.holders[MINOR] = (VM,)
    world.on_pause = world.holders.clear
    world.passthrough.do(world.plan(), 100.0)
    assert world.drivers() == GIVEN


def test_one_that_does_not_let_go_is_named_and_all_is_as_before(world: World) -> None:
    world.holders[MINOR] = (PERSISTENCED,)
    step = world.plan(is_persistent=True)
    with pytest.raises(HeldError, match="nvidia-persiste"):
        world.passthrough.do(step, 100.0)
    assert world.drivers() == BEFORE
    assert world.log[-2:] == ["look soon", "persistence on"] or "persistence on" in world.log


def test_a_switch_that_broke_off_is_undone(world: World) -> None:
    step = world.plan()
    world.bus.fails[AUDIO] = TransientError("hangs")
    with pytest.raises(TransientError):
        world.passthrough.do(step, 100.0)
    world.bus.fails.clear()
    world.tree.bind(GPU, None)  # as the kernel leaves it between unbind and bind
    world.passthrough.undo(step, 100.0)
    assert world.drivers() == BEFORE


def test_what_others_bound_is_left_to_them(world: World) -> None:
    step = world.plan()
    world.passthrough.do(step, 100.0)
    world.tree.bind(GPU, "snd_hda_intel")
    with pytest.raises(DeviceError, match="was taken from vfio-pci by others"):
        world.passthrough.ensure(step)
    world.passthrough.undo(step, 100.0)
    assert world.drivers() == ("snd_hda_intel", "snd_hda_intel")


def test_a_step_that_could_not_be_undone_says_what_stood_before(world: World) -> None:
    first = world.plan(is_persistent=True)
    world.passthrough.do(first, 100.0)
    world.owed = (first,)
    second = world.plan(is_persistent=None)
    assert second.functions == first.functions
    assert second.was_persistent


def test_a_module_that_is_not_loaded_is_named(world: World) -> None:
    (world.tree.root / "bus/pci/drivers/vfio-pci").rmdir()
    with pytest.raises(TransientError, match="kernel module vfio-pci is not loaded"):
        world.plan()


LEGACY, IOMMUFD = "LegacyOnly", "PreferIommuFD"


@pytest.mark.parametrize(
    ("policy", "api", "has_iommufd", "paths"),
    [
        (LEGACY, False, True, ["/dev/vfio/7"]),
        (LEGACY, True, True, ["/dev/vfio/7", "/dev/vfio/vfio"]),
        (IOMMUFD, False, True, ["/dev/vfio/devices/vfio4"]),
        (IOMMUFD, True, True, ["/dev/vfio/devices/vfio4", "/dev/iommu"]),
        (IOMMUFD, True, False, ["/dev/vfio/7", "/dev/vfio/vfio"]),
    ],
)
def test_a_container_gets_the_nodes_that_its_config_asks_for(
    world: World, policy: str, *, api: bool, has_iommufd: bool, paths: list[str]
) -> None:
    if has_iommufd:
        (world.dev / "iommu").touch()
    (world.tree.root / "bus/pci/devices" / GPU / "vfio-dev/vfio4").mkdir(parents=True)
    step = world.plan({"iommu": {"backendPolicy": policy, "enableAPIDevice": api}})
    ((key, edits),) = world.passthrough.edits(step).items()
    assert key == step.devices[0].key
    assert [node.path for node in edits.device_nodes] == paths
    assert edits.env == ("NVIDIA_VISIBLE_DEVICES=void",)


def test_an_old_kernel_has_no_device_of_its_own(world: World) -> None:
    (world.dev / "iommu").touch()
    step = world.plan({"iommu": {"backendPolicy": IOMMUFD}})
    with pytest.raises(DeviceError, match="missing iommufd cdev"):
        world.passthrough.edits(step)
