"""What /sys, /dev and NVML show of cards that are bound to other drivers, and of groups."""

from pathlib import Path

from dra_driver.simulator import profile as profiles
from dra_driver.simulator import sysfs
from dra_driver.simulator.machine import Machine

T4X4 = profiles.load("t4x4")
CARD, FREE, *_ = (gpu.pci for gpu in T4X4.gpus)
AUDIO = CARD[:-1] + "1"


def made(folder: Path, **iommu: object) -> Machine:
    return Machine.create(folder / "machine", profiles.changed(T4X4, {"iommu": iommu}))


def vfio_nodes(machine: Machine) -> set[str]:
    dev = machine.dev_root / "dev/vfio"
    return {str(path.relative_to(dev)) for path in dev.rglob("*") if not path.is_dir()}


def test_a_card_at_vfio_pci_has_the_node_of_its_group_and_with_iommufd_its_own(
    tmp_path: Path,
) -> None:
    machine = made(tmp_path, drivers={CARD: "vfio-pci"}, iommufd=True)
    folder = sysfs.device(machine.sys_root, CARD)
    group = (folder / "iommu_group").resolve()
    assert [path.name for path in (group / "devices").iterdir()] == [CARD]
    assert [path.name for path in (folder / "vfio-dev").iterdir()] == ["vfio0"]
    assert vfio_nodes(machine) == {"vfio", group.name, "devices/vfio0"}
    uuid = machine.gpus[0].uuid
    machine.remove_gpu(uuid)
    assert not list((group / "devices").iterdir())
    assert vfio_nodes(machine) == {"vfio"}
    machine.add_gpu(uuid)
    assert (sysfs.device(machine.sys_root, CARD) / "iommu_group").resolve() == group
    assert vfio_nodes(machine) == {"vfio", group.name, "devices/vfio0"}
    assert not machine.status()[0].present


def test_other_functions_are_in_the_group_of_their_card(tmp_path: Path) -> None:
    audio = {"pci": AUDIO, "beside": CARD, "device": "0x10f8"}
    machine = made(tmp_path, functions=[audio])
    card = sysfs.device(machine.sys_root, CARD)
    assert {path.name for path in (card / "iommu_group/devices").iterdir()} == {CARD, AUDIO}
    assert (card / f"consumer:pci:{AUDIO}").is_symlink()
    assert sysfs.driver_of(machine.sys_root, AUDIO) == "snd_hda_intel"


def test_nvswitches_are_on_the_bus(tmp_path: Path) -> None:
    machine = Machine.create(tmp_path / "machine", "h100x8")
    devices = machine.sys_root / "bus/pci/devices"
    classes = {path.name: (path / "class").read_text().strip() for path in devices.iterdir()}
    switches = {address for address, name in classes.items() if name == "0x068000"}
    profile = machine.description.profile.nvswitch
    assert profile is not None
    assert switches == {*profile.addresses}


def test_attributes_of_a_card_read_as_the_kernel_shows_them(machine: Machine) -> None:
    folder: Path = machine.sys_root / "bus/pci/devices" / machine.gpus[0].pci
    assert (folder / "sriov_numvfs").read_text() == "0\n"
    lines = [
        [int(word, 16) for word in line.split()]
        for line in (folder / "resource").read_text().splitlines()
    ]
    assert len(lines) == 13
    sizes = [(end - start + 1) >> 20 if flags else 0 for start, end, flags in lines]
    assert sizes[:6] == [16, 65536, 0, 32, 0, 0]
    wide = [flags & 0x100000 != 0 for _, _, flags in lines[:6]]
    assert wide == [False, True, False, True, False, False]
