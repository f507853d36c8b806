"""GPUs for virtual machines: what containers get of them, and when a claim is refused."""

from pathlib import Path
from typing import Any

import pytest

import make
from dra_driver.devices.device import Device, Vfio
from dra_driver.devices.model import PciAddress
from dra_driver.devices.passthrough.bus import PciBus
from dra_driver.devices.passthrough.rules import PassthroughRules
from dra_driver.errors import DeviceError
from dra_driver.sharing.base import Group, Unit
from dra_driver.sharing.passthrough import Passthrough
from dra_driver.sharing.steps import PassThrough
from resource_nvidia_com.decode import decode
from worlds.pci import PciTree

GPU = PciAddress("0000:10:00.0")
NIC_CLASS = "0x020700"


class World:
    """A GPU at vfio-pci, and all that the step asks."""

    def __init__(self, root: Path) -> None:
        self.tree = PciTree(root / "sys")
        self.folder = self.tree.add(GPU, group=7)
        self.dev = root / "dev"
        self.dev.mkdir()
        bus = PciBus(self.tree.root)
        rules = PassthroughRules(bus, root / "proc")
        self.passthrough = Passthrough(bus, rules, lambda: (self.dev, "/dev"))

    def plan(self, config: dict[str, Any] | None = None) -> PassThrough:
        gpu = make.passthrough().gpu
        device = Device(base=Vfio(gpu=gpu.uuid, address=GPU, number=0))
        unit = Unit(name="gpu-vfio-0", request="vm", gpu=gpu, device=device)
        parameters = make.config(kind="VfioDeviceConfig", **(config or {}))["opaque"]["parameters"]
        decoded = None if config is None else decode(parameters).normalise()
        group = Group(claim="uid", config=decoded, units=(unit,), owed=())
        (step,) = self.passthrough.plan([group], 100.0)
        assert isinstance(step, PassThrough)
        return step


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def test_a_step_says_what_its_gpu_is_bound_to(world: World) -> None:
    step = world.plan()
    assert (step.address, step.driver, step.group) == (GPU, "vfio-pci", 7)
    world.passthrough.do(step, 100.0)
    world.passthrough.ensure(step)


@pytest.mark.parametrize("driver", ["nvidia", None])
def test_a_gpu_that_others_bind_elsewhere_is_refused(world: World, driver: str | None) -> None:
    step = world.plan()
    world.tree.bind(GPU, driver)
    bound = f"it is bound to {driver or 'no driver'}"
    with pytest.raises(DeviceError, match=f"changed by others on the node.*{bound}.*delete the p"):
        world.passthrough.ensure(step)
    with pytest.raises(DeviceError, match=f'"gpu-vfio-0" .* cannot be given .*{bound}'):
        world.plan()


def test_a_group_that_gets_another_function_is_refused(world: World) -> None:
    step = world.plan()
    world.tree.add("0000:12:00.0", group=7, class_id=NIC_CLASS, vendor="0x15b3")
    for refused in (world.plan, lambda: world.passthrough.ensure(step)):
        with pytest.raises(DeviceError, match=r"IOMMU group, 7, also has 0000:12:00\.0 \(vfio-pc"):
            refused()


def test_a_gpu_that_is_in_another_group_now_is_refused(world: World) -> None:
    step = world.plan()
    (world.tree.root / "kernel/iommu_groups/7").rename(world.tree.root / "kernel/iommu_groups/8")
    (world.folder / "iommu_group").unlink()
    (world.folder / "iommu_group").symlink_to(world.tree.root / "kernel/iommu_groups/8")
    with pytest.raises(DeviceError, match="its IOMMU group is 8 now"):
        world.passthrough.ensure(step)
    assert world.plan().group == 8


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
    (world.folder / "vfio-dev/vfio4").mkdir(parents=True)
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
