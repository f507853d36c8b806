"""Which GPUs of a PCI bus virtual machines can have, and by which driver."""

from collections.abc import Mapping
from pathlib import Path

import pytest

import make
from dra_driver.devices.model import GpuUuid, Inventory, PassthroughGpu, PciAddress
from dra_driver.devices.passthrough.bus import PciBus
from dra_driver.devices.passthrough.gpus import PassthroughGpus, companions
from dra_driver.devices.passthrough.variants import module_for, vfio_driver
from worlds.pci import PciTree

GPU = "0000:10:00.0"  # the first of make.gpu
GIB = 1024**3


class Bus:
    """A tree, and what is found on it beside what NVML found."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.tree = PciTree(root / "sys", "snd_hda_intel", "pcieport", "mlx5_core")
        self.recorded: dict[PciAddress, GpuUuid] = {}
        self.gpus = PassthroughGpus(
            PciBus(root / "sys"),
            sys_root=root / "sys",
            proc_root=root / "proc",
            dev=lambda: root / "dev",
            recorded=self._recorded,
        )

    def _recorded(self) -> Mapping[PciAddress, GpuUuid]:
        return self.recorded

    def found(self, inventory: Inventory | None = None) -> tuple[PassthroughGpu, ...]:
        none = Inventory(driver_version="580.1", cuda_version=(13, 0))
        return self.gpus.look(inventory or none).passthrough

    def problem(self) -> str | None:
        (card,) = self.found(make.inventory(make.gpu(0)))
        return card.problem


@pytest.fixture
def bus(tmp_path: Path) -> Bus:
    return Bus(tmp_path)


def test_a_gpu_on_its_own_in_its_group_can_be_passed_through(bus: Bus) -> None:
    bus.tree.add(GPU, group=7)
    (card,) = bus.found(make.inventory(make.gpu(0)))
    assert card.problem is None
    assert (card.number, card.group, card.driver, card.is_away) == (0, 7, "nvidia", False)
    assert (card.vendor_id, card.device_id) == ("0x10de", "0x2330")
    assert card.gpu == make.gpu(0)
    assert not card.has_iommufd


def test_of_memory_regions_the_64_bit_ones_count_rounded_up(bus: Bus) -> None:
    folder = bus.tree.add(GPU, group=7)
    (folder / "resource").write_text(
        "0x0 0xffffff 0x40200\n"  # 32 bits
        "0x1000000000 0x17ffffffff 0x14220c\n"  # 32 GiB
        "0x2000000000 0x2001ffffff 0x14220c\n"  # 32 MiB
        "not a region\n"
    )
    (card,) = bus.found()
    assert card.addressable_bytes == 64 * GIB


def test_numbers_go_by_address_and_skip_what_is_no_gpu(bus: Bus) -> None:
    bus.tree.add("0000:90:00.0", group=3)
    bus.tree.add("0000:20:00.0", group=2, class_id="0x030000")
    bus.tree.add("0000:20:00.1", group=2, class_id="0x040300", driver="snd_hda_intel")
    bus.tree.add("0000:20:00.4", group=9, is_virtual=True)
    bus.tree.add("0000:01:00.0", group=1, vendor="0x15b3", class_id="0x020700")
    bus.tree.add("10000:01:00.0", group=4)
    found = bus.found()
    assert [(card.number, card.gpu.pci_address) for card in found] == [
        (0, "0000:20:00.0"),
        (1, "0000:90:00.0"),
        (2, "10000:01:00.0"),
    ]


def test_without_iommu_no_gpu_can_be(bus: Bus) -> None:
    bus.tree.add(GPU)
    assert "no IOMMU" in (bus.problem() or "")


def test_a_stranger_in_the_group_is_named(bus: Bus) -> None:
    bus.tree.add(GPU, group=7)
    bus.tree.add("0000:10:00.1", group=7, class_id="0x040300", driver="snd_hda_intel")
    bus.tree.add("0000:11:00.0", group=7, class_id="0x060400", driver="pcieport")
    bus.tree.add("0000:12:00.0", group=7, class_id="0x020700", driver=None)
    assert bus.problem() is None
    bus.tree.bind("0000:12:00.0", "mlx5_core")
    assert "IOMMU group 7 also has 0000:12:00.0 (driver mlx5_core)" in (bus.problem() or "")


def test_virtual_functions_keep_a_gpu(bus: Bus) -> None:
    bus.tree.add(GPU, group=7, virtual_functions=4)
    assert "SR-IOV" in (bus.problem() or "")


def test_a_gpu_behind_nvswitches_cannot_be(bus: Bus) -> None:
    bus.tree.add(GPU, group=7)
    (bus.root / "proc/driver/nvidia-nvswitch/devices").mkdir(parents=True)
    assert bus.problem() is None
    (bus.root / "proc/driver/nvidia-nvswitch/devices/0000:c0:00.0").mkdir()
    assert "NVSwitch" in (bus.problem() or "")


def test_a_gpu_of_another_driver_cannot_be(bus: Bus) -> None:
    bus.tree.add(GPU, group=7, driver="mlx5_core")
    assert "is bound to mlx5_core" in (bus.problem() or "")


def test_a_gpu_that_is_away_keeps_what_was_known_of_it(bus: Bus) -> None:
    bus.tree.add(GPU, group=7)
    bus.found(make.inventory(make.gpu(0)))
    bus.tree.bind(GPU, "vfio-pci")
    (card,) = bus.found()
    assert card.is_away
    assert card.problem is None
    assert card.gpu == make.gpu(0)


def test_one_that_the_gpu_driver_has_not_let_go_of_hangs(bus: Bus) -> None:
    bus.tree.add(GPU, group=7, driver=None)
    (bus.root / "proc/driver/nvidia/gpus" / GPU).mkdir(parents=True)
    (card,) = bus.found()
    assert card.hangs


def test_after_a_restart_the_record_tells_whose_address_it_is(bus: Bus) -> None:
    bus.tree.add(GPU, group=7, driver="vfio-pci")
    bus.recorded[PciAddress(GPU)] = make.gpu(0).uuid
    (card,) = bus.found()
    assert card.gpu.uuid == make.gpu(0).uuid
    assert card.gpu.pci_address == GPU


def test_one_that_nobody_knows_is_called_by_its_address(bus: Bus) -> None:
    bus.tree.add(GPU, group=7, driver=None)
    (card,) = bus.found()
    assert (card.gpu.uuid, card.is_away, card.problem) == ("GPU-pci-0000-10-00-0", True, None)


def test_what_is_in_the_same_slot_goes_with_the_gpu(bus: Bus) -> None:
    bus.tree.add(GPU, group=7)
    bus.tree.add("0000:10:00.1", group=7, class_id="0x040300", driver="snd_hda_intel")
    bus.tree.add("0000:10:01.0", group=7, class_id="0x040300", driver=None)
    pci = PciBus(bus.root / "sys")
    function = pci.function(PciAddress(GPU))
    assert function is not None
    assert [each.address for each in companions(pci, function)] == ["0000:10:00.1"]


ALIASES = """\
alias pci:v000010DEd*sv*sd*bc03sc02i00* nvidia
alias vfio_pci:v000010DEd00002342sv*sd*bc*sc*i* nvgrace_gpu_vfio_pci
alias vfio_pci:v000010DEd*sv*sd*bc*sc*i* generic_vfio_pci
alias vfio_pci:v00008086d*sv*sd*bc*sc*i* other_vfio_pci
"""
GRACE = "pci:v000010DEd00002342sv000010DEsd000016EBbc03sc02i00"


@pytest.mark.parametrize(
    ("modalias", "loaded", "driver"),
    [
        (GRACE, {"nvgrace-gpu-vfio-pci", "vfio-pci"}, "nvgrace-gpu-vfio-pci"),
        (GRACE, {"nvgrace_gpu_vfio_pci"}, "nvgrace_gpu_vfio_pci"),
        (GRACE, {"vfio-pci"}, None),  # one that does not work with it is no substitute
        (GRACE.replace("2342", "2330"), {"generic_vfio_pci"}, "generic_vfio_pci"),
        (GRACE.replace("10DE", "1002", 1), {"vfio-pci"}, "vfio-pci"),
    ],
)
def test_the_variant_that_fits_best_holds(
    tmp_path: Path, modalias: str, loaded: set[str], driver: str | None
) -> None:
    aliases = tmp_path / "modules.alias"
    aliases.write_text(ALIASES)
    files = (tmp_path / "none", aliases)
    assert vfio_driver(modalias, files, loaded.__contains__) == driver


def test_without_a_table_it_is_vfio_pci(tmp_path: Path) -> None:
    assert module_for(GRACE, [tmp_path / "none"]) == "vfio-pci"
