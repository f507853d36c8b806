"""Which GPUs of a PCI bus virtual machines can have, and why they cannot have the others."""

from pathlib import Path

import pytest

from dra_driver.devices.model import Inventory, PassthroughGpu, PciAddress
from dra_driver.devices.passthrough.bus import PciBus
from dra_driver.devices.passthrough.rules import PassthroughGpus, PassthroughRules
from worlds.pci import PciTree

GPU = PciAddress("0000:10:00.0")
AUDIO, USB = "0000:10:00.1", "0000:10:00.2"
OTHER = "0000:11:00.0"
AUDIO_CLASS, USB_CLASS, NIC_CLASS, BRIDGE_CLASS = "0x040300", "0x0c0330", "0x020700", "0x060400"
HOST_BRIDGE_CLASS, NVSWITCH_CLASS = "0x060000", "0x068000"
GIB = 1024**3


class Bus:
    """A tree, and what is found on it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.tree = PciTree(root / "sys")
        pci = PciBus(root / "sys")
        self.rules = PassthroughRules(pci, root / "proc")
        self.gpus = PassthroughGpus(
            pci, self.rules, sys_root=root / "sys", dev=lambda: root / "dev"
        )

    def found(self) -> tuple[PassthroughGpu, ...]:
        return self.gpus.look(Inventory(driver_version=None, cuda_version=None)).passthrough

    def problems(self) -> list[str | None]:
        """Why each GPU is not offered, which has to be why none of its claims is prepared."""
        problems = [card.problem for card in self.found()]
        assert [self.rules.why_not(card.gpu.pci_address) for card in self.found()] == problems
        return problems

    def problem(self) -> str:
        (problem,) = self.problems()
        return problem or ""


@pytest.fixture
def bus(tmp_path: Path) -> Bus:
    return Bus(tmp_path)


def test_a_gpu_alone_in_its_group_at_vfio_is_offered(bus: Bus) -> None:
    bus.tree.add(GPU, group=7)
    (card,) = bus.found()
    assert card.problem is None
    assert (card.number, card.group, card.driver) == (0, 7, "vfio-pci")
    assert (card.vendor_id, card.device_id) == ("0x10de", "0x2330")
    assert (card.gpu.uuid, card.gpu.pci_address) == ("GPU-pci-0000-10-00-0", GPU)
    assert not card.has_iommufd


def test_its_identity_is_its_address_whatever_it_is_bound_to(bus: Bus) -> None:
    bus.tree.add(GPU, group=7, driver="nvidia")
    (before,) = bus.found()
    bus.tree.bind(GPU, "vfio-pci")
    (after,) = bus.found()
    assert before.gpu == after.gpu


def test_only_64_bit_memory_regions_count_rounded_up(bus: Bus) -> None:
    folder = bus.tree.add(GPU, group=7)
    (folder / "resource").write_text(
        "0x0 0xffffff 0x40200\n"  # 32 bits
        "0x1000000000 0x17ffffffff 0x14220c\n"  # 32 GiB
        "0x2000000000 0x2001ffffff 0x14220c\n"  # 32 MiB
        "not a region\n"
    )
    (card,) = bus.found()
    assert card.addressable_bytes == 64 * GIB


def test_numbers_go_by_address_and_skip_other_devices(bus: Bus) -> None:
    bus.tree.add("0000:90:00.0", group=3)
    bus.tree.add("0000:20:00.0", group=2, class_id="0x030000", driver="nvidia")
    bus.tree.add("0000:20:00.1", group=2, class_id=AUDIO_CLASS, driver="snd_hda_intel")
    bus.tree.add("0000:20:00.4", group=9, is_virtual=True)
    bus.tree.add("0000:01:00.0", group=1, vendor="0x15b3", class_id=NIC_CLASS)
    bus.tree.add("10000:01:00.0", group=4)
    assert [(card.number, card.gpu.pci_address) for card in bus.found()] == [
        (0, "0000:20:00.0"),
        (1, "0000:90:00.0"),
        (2, "10000:01:00.0"),
    ]


@pytest.mark.parametrize("driver", ["vfio-pci", "nvgrace-gpu-vfio-pci", "nvgrace_gpu_vfio_pci"])
def test_a_variant_of_vfio_pci_is_a_vfio_driver(bus: Bus, driver: str) -> None:
    bus.tree.add(GPU, group=7, driver=driver)
    assert bus.problems() == [None]


@pytest.mark.parametrize("driver", ["nvidia", "nouveau", None])
def test_a_gpu_at_another_driver_is_refused_with_advice(bus: Bus, driver: str | None) -> None:
    bus.tree.add(GPU, group=7, driver=driver)
    reason, _, advice = bus.problem().partition(": ")
    assert reason == f"it is bound to {driver or 'no driver'}"
    for way in ("vfio-pci.ids=10de:2330", "driverctl", "GPU Operator's vfio-manager", "restart"):
        assert way in advice


def test_without_iommu_no_gpu_is_offered(bus: Bus) -> None:
    bus.tree.add(GPU)
    assert "no IOMMU" in bus.problem()


def test_a_gpu_in_no_group_is_refused(bus: Bus) -> None:
    bus.tree.add(GPU)
    bus.tree.add(OTHER, group=7)
    assert bus.problems() == ["it is in no IOMMU group", None]


@pytest.mark.parametrize("one", ["vfio-pci", "nvidia", None])
@pytest.mark.parametrize("other", ["vfio-pci", "nvidia", None])
def test_two_gpus_in_one_group_are_both_refused_whatever_their_drivers(
    bus: Bus, one: str | None, other: str | None
) -> None:
    """A machine gets the whole group, so two of them would have both GPUs."""
    bus.tree.add(GPU, group=7, driver=one)
    bus.tree.add(OTHER, group=7, driver=other)
    first, second = bus.problems()
    assert first is not None
    assert second is not None
    assert f"its IOMMU group, 7, also has {OTHER} ({other or 'no driver'})" in first
    assert f"its IOMMU group, 7, also has {GPU} ({one or 'no driver'})" in second


def test_a_second_display_function_of_the_card_is_another_gpu(bus: Bus) -> None:
    bus.tree.add(GPU, group=7)
    bus.tree.add("0000:10:00.1", group=7, class_id="0x038000")
    assert "also has 0000:10:00.1" in bus.problem()


@pytest.mark.parametrize("driver", ["mlx5_core", "vfio-pci", None])
def test_a_network_card_in_the_group_refuses_the_gpu_whatever_its_driver(
    bus: Bus, driver: str | None
) -> None:
    bus.tree.add(GPU, group=7)
    nic = {"vendor": "0x15b3", "class_id": NIC_CLASS, "driver": driver}
    bus.tree.add("0000:12:00.0", group=8, **nic)  # type: ignore[arg-type]
    assert bus.problems() == [None]
    bus.tree.add("0000:12:00.1", group=7, **nic)  # type: ignore[arg-type]
    assert f"also has 0000:12:00.1 ({driver or 'no driver'})" in bus.problem()


def test_bridges_in_the_group_do_not_matter(bus: Bus) -> None:
    bus.tree.add(GPU, group=7)
    bus.tree.add("0000:00:01.0", group=7, class_id=HOST_BRIDGE_CLASS, driver=None)
    bus.tree.add("0000:00:01.1", group=7, class_id=BRIDGE_CLASS, driver="pcieport")
    assert bus.problems() == [None]
    bus.tree.add("0000:00:1f.0", group=7, class_id="0x060100", driver="lpc_ich")  # to another bus
    assert "also has 0000:00:1f.0 (lpc_ich)" in bus.problem()


@pytest.mark.parametrize("free", ["vfio-pci", None])
def test_the_cards_own_functions_may_have_a_vfio_driver_or_none(bus: Bus, free: str | None) -> None:
    bus.tree.add(GPU, group=7)
    bus.tree.add(AUDIO, group=7, class_id=AUDIO_CLASS, driver="snd_hda_intel")
    bus.tree.add(USB, group=7, class_id=USB_CLASS, driver="xhci_hcd")
    assert f"{AUDIO} (snd_hda_intel), {USB} (xhci_hcd), are in use" in bus.problem()
    bus.tree.bind(AUDIO, free)
    assert f"its other functions, {USB} (xhci_hcd), are in use" in bus.problem()
    bus.tree.bind(USB, free)
    assert bus.problems() == [None]


@pytest.mark.parametrize("other", ["0000:10:01.0", "0001:10:00.1"])
def test_a_function_of_another_card_is_not_the_gpus_own(bus: Bus, other: str) -> None:
    bus.tree.add(GPU, group=7)
    bus.tree.add(other, group=7, class_id=AUDIO_CLASS, driver=None)
    assert f"also has {other} (no driver)" in bus.problem()


def test_virtual_functions_keep_a_gpu(bus: Bus) -> None:
    bus.tree.add(GPU, group=7, virtual_functions=0)
    assert bus.problems() == [None]
    (bus.tree.root / "bus/pci/devices" / GPU / "sriov_numvfs").write_text("1\n")
    assert "SR-IOV" in bus.problem()


def test_a_virtual_function_is_never_offered(bus: Bus) -> None:
    bus.tree.add(GPU, group=7, is_virtual=True)
    assert bus.problems() == []
    assert bus.rules.why_not(GPU) == "it is an SR-IOV virtual function"


def test_a_gpu_on_a_machine_with_nvswitches_is_refused_without_a_gpu_driver(bus: Bus) -> None:
    bus.tree.add(GPU, group=7)
    assert bus.problems() == [None]
    bus.tree.add("0000:c0:00.0", group=8, class_id=NVSWITCH_CLASS, driver=None)
    assert "NVSwitches" in bus.problem()


def test_another_vendors_bridge_is_not_an_nvswitch(bus: Bus) -> None:
    bus.tree.add(GPU, group=7)
    bus.tree.add("0000:c0:00.0", group=8, class_id=NVSWITCH_CLASS, vendor="0x8086", driver=None)
    assert bus.problems() == [None]


def test_nvswitches_of_the_gpu_driver_count_too(bus: Bus) -> None:
    bus.tree.add(GPU, group=7)
    (bus.root / "proc/driver/nvidia-nvswitch/devices").mkdir(parents=True)
    assert bus.problems() == [None]
    (bus.root / "proc/driver/nvidia-nvswitch/devices/0000:c0:00.0").mkdir()
    assert "NVSwitches" in bus.problem()


def test_an_unreadable_function_may_be_an_nvswitch(bus: Bus) -> None:
    bus.tree.add(GPU, group=7)
    (bus.tree.add("0000:c0:00.0", group=8, class_id=NIC_CLASS) / "class").unlink()
    assert "0000:c0:00.0 on the PCI bus cannot be read" in bus.problem()


def test_where_the_bus_cannot_be_read_nothing_is_offered(bus: Bus) -> None:
    bus.tree.add(GPU, group=7)
    (bus.tree.root / "bus/pci").rename(bus.tree.root / "bus/away")
    assert bus.found() == ()
    assert bus.rules.why_not(GPU) == f"{GPU} is not on the PCI bus any more"


def test_a_group_whose_members_cannot_be_read_is_refused(bus: Bus) -> None:
    bus.tree.add(GPU, group=7)
    bus.tree.add(OTHER, group=8)
    (bus.tree.root / "kernel/iommu_groups/7/devices").rename(bus.root / "away")
    assert bus.problems() == ["the functions of its IOMMU group, 7, cannot be read", None]


def test_a_group_with_a_member_that_is_not_on_the_bus_is_refused(bus: Bus) -> None:
    bus.tree.add(GPU, group=7)
    (bus.tree.root / "kernel/iommu_groups/7/devices/0000:12:00.0").symlink_to(bus.root)
    assert bus.problem() == "the functions of its IOMMU group, 7, cannot be read"
