"""Claims with GPUs for virtual machines, on a simulated node whose admin has bound some at boot.

Of a virtual machine there is only what it would be given.
"""

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from structlog.testing import capture_logs

import make
from dra_driver.cdi.roots import find_roots
from dra_driver.claims.model.claim import ClaimRef
from dra_driver.claims.reconcile.reconciler import ReconcileTiming
from dra_driver.devices.model import Inventory, PciAddress
from dra_driver.errors import DeviceError, DriverError
from dra_driver.node.passthrough import passthrough_gpus
from dra_driver.simulator import profile as profiles
from dra_driver.simulator import sysfs
from dra_driver.simulator.machine import Machine
from dra_driver.slices.project import projection
from worlds.node import Node
from worlds.nvidia import NvidiaDriver, taken_over
from worlds.nvidia_files import entry_of

pytestmark = pytest.mark.usefixtures("needs_root")
SOON = 0.5
FIRST, SECOND = "gpu-vfio-0", "gpu-vfio-1"
CARDS = [PciAddress(gpu.pci) for gpu in profiles.load("t4x4").gpus]
AUDIO = PciAddress(CARDS[0][:-1] + "1")
AT_BOOT = {CARDS[0]: "vfio-pci", CARDS[1]: "vfio-pci"}


class Vms(Node):
    """A node with four T4, two of them for virtual machines."""

    def bind(self, address: PciAddress, driver: str | None) -> None:
        """Have somebody else on the node bind a function."""
        sysfs.set_driver(self.machine.sys_root, address, driver)

    def group(self, number: int = 0) -> str:
        return f"/dev/vfio/{self.inventory.passthrough[number].group}"

    def drivers(self) -> list[str | None]:
        return [self.pci.driver_of(address) for address in CARDS]

    def offered(self) -> list[object]:
        return [device["name"] for device in projection(self.inventory).devices]


MakeVms = Callable[..., Vms]


@pytest.fixture
def make_vms(tmp_path: Path, needs_root: None, real_userspace: None) -> Iterator[MakeVms]:
    made: list[Vms] = []

    def make_one(**iommu: object) -> Vms:
        profile = profiles.changed(profiles.load("t4x4"), {"iommu": {"drivers": AT_BOOT} | iommu})
        node = Vms.create(tmp_path / "node", profile, "real")
        assert isinstance(node, Vms)
        made.append(node)
        return node

    yield make_one
    for node in made:
        node.close()


@pytest.fixture
def vms(make_vms: MakeVms) -> Vms:
    return make_vms()


def test_a_claim_gets_the_group_of_its_gpu_and_nothing_on_the_node_changes(vms: Vms) -> None:
    assert vms.offered() == ["gpu-2", "gpu-3", FIRST, SECOND]
    before, ref = vms.drivers(), vms.claim(FIRST)
    (device,) = vms.driver.prepare(ref)
    assert device.name == FIRST
    assert vms.driver.nodes(ref) == [vms.group()]
    assert vms.driver.env(ref, FIRST)["NVIDIA_VISIBLE_DEVICES"] == "void"
    assert "containerEdits" not in vms.driver.spec(ref)
    vms.driver.unprepare(ref)
    assert vms.drivers() == before
    assert vms.left() == []


def told_address(vms: Vms, ref: ClaimRef) -> object:
    """The PCI address of a claim's only device, as each document of its metadata file has it."""
    (file,) = (vms.driver.plugin / "device-metadata" / ref.uid).iterdir()
    found = set()
    for line in file.read_text().splitlines():
        (request,) = json.loads(line)["requests"]
        (device,) = request["devices"]
        found.add(device["attributes"]["resource.kubernetes.io/pciBusID"]["string"])
    (address,) = found
    return address


def test_the_metadata_names_the_pci_address(vms: Vms) -> None:
    ref = vms.claim(FIRST)
    vms.driver.prepare(ref)
    assert told_address(vms, ref) == CARDS[0]


def test_prepared_again_and_after_a_restart_it_answers_the_same(vms: Vms) -> None:
    """NVIDIA's driver finds no such device after a restart (its issue 1331)."""
    ref = vms.claim(FIRST)
    first, spec = vms.driver.prepare(ref), vms.driver.spec(ref)
    assert vms.driver.prepare(ref) == first
    vms.restart()
    assert vms.driver.prepare(ref) == first
    assert vms.driver.spec(ref) == spec
    vms.restart()
    vms.driver.unprepare(ref)
    assert vms.left() == []


def test_two_claims_never_have_one_gpu_before_and_after_a_restart(vms: Vms) -> None:
    one, two, other = vms.claim(FIRST, name="one"), vms.claim(FIRST, name="two"), vms.claim(SECOND)
    vms.driver.prepare(one)
    vms.driver.prepare(other)
    assert vms.driver.nodes(one) != vms.driver.nodes(other)
    for _ in range(2):
        with pytest.raises(DriverError, match="is already allocated to different claim"):
            vms.driver.prepare(two, SOON)
        vms.restart()
    vms.driver.unprepare(one)
    vms.driver.prepare(two)
    assert vms.driver.nodes(two) == [vms.group()]


def test_after_a_reboot_it_is_prepared_again(vms: Vms) -> None:
    ref = vms.claim(FIRST)
    vms.driver.prepare(ref)
    vms.close()
    vms.machine.reboot()
    vms.restart()
    (device,) = vms.driver.prepare(ref)
    assert (device.name, vms.driver.nodes(ref)) == (FIRST, [vms.group()])
    vms.driver.unprepare(ref)
    assert vms.left() == []


def test_after_a_reboot_without_another_card_it_has_the_same_card(vms: Vms) -> None:
    """Its name, which counts the GPUs on the bus, would mean the next card now."""
    ref = vms.claim(SECOND)
    vms.driver.prepare(ref)
    before = vms.driver.nodes(ref)
    vms.close()
    vms.machine.reboot()
    vms.machine.remove_gpu(vms.machine.gpus[0].uuid)
    vms.restart()
    assert vms.offered() == ["gpu-2", "gpu-3", FIRST]
    vms.driver.prepare(ref)
    assert vms.driver.nodes(ref) == before
    assert told_address(vms, ref) == CARDS[1]


def test_after_a_reboot_without_its_card_it_gets_no_other(make_vms: MakeVms) -> None:
    vms = make_vms(drivers=dict.fromkeys(CARDS, "vfio-pci"))
    ref = vms.claim(SECOND)
    vms.driver.prepare(ref)
    vms.close()
    vms.machine.reboot()
    vms.machine.remove_gpu(vms.machine.gpus[1].uuid)
    vms.restart()
    assert SECOND in vms.offered()
    with pytest.raises(DeviceError, match=f'"{SECOND}" is not on this node any more'):
        vms.driver.prepare(ref, SOON)


def test_a_damaged_record_costs_nothing(vms: Vms) -> None:
    ref = vms.claim(FIRST)
    first = vms.driver.prepare(ref)
    (path,) = (vms.driver.plugin / "claims").glob(f"{ref.uid}*")
    path.write_bytes(path.read_bytes()[:-9])
    vms.restart()
    assert vms.offered() == ["gpu-2", "gpu-3", FIRST, SECOND]
    assert vms.driver.prepare(ref) == first
    vms.driver.unprepare(ref)
    assert vms.left() == []


def test_a_claim_that_was_deleted_by_force_ends(vms: Vms) -> None:
    ref, before = vms.claim(FIRST), vms.drivers()
    vms.driver.prepare(ref)
    del vms.driver.api.claims["default", ref.name]
    reconciler = vms.driver.reconciler(ReconcileTiming(grace=0.0))
    for _ in range(2):  # seen to be gone, and still gone
        reconciler.compare()
    assert vms.drivers() == before
    assert vms.left() == []


def test_a_gpu_that_others_took_is_reported_and_left_alone(vms: Vms) -> None:
    ref, late = vms.claim(FIRST), vms.claim(SECOND, name="late")
    vms.driver.prepare(ref)
    for card in CARDS[:2]:
        vms.bind(card, None)  # which the driver has not looked at
    with pytest.raises(DeviceError, match=r"changed by others .* bound to no driver: .*at boot"):
        vms.driver.prepare(ref, SOON)
    with pytest.raises(DeviceError, match=f'"{SECOND}" .* cannot be given to a virtual machine'):
        vms.driver.prepare(late, SOON)
    vms.driver.unprepare(ref)
    vms.look()
    assert vms.offered() == ["gpu-2", "gpu-3"]
    assert vms.drivers() == [None, None, "nvidia", "nvidia"]
    assert vms.left() == []


def test_its_own_audio_has_to_be_free_of_the_nodes_drivers(make_vms: MakeVms) -> None:
    audio = {"pci": AUDIO, "beside": CARDS[0], "device": "0x10f8"}
    vms = make_vms(functions=[audio])
    assert vms.offered() == ["gpu-2", "gpu-3", SECOND]
    vms.bind(AUDIO, "vfio-pci")
    vms.look()
    assert vms.offered() == ["gpu-2", "gpu-3", FIRST, SECOND]
    ref = vms.claim(FIRST)
    vms.driver.prepare(ref)
    assert vms.driver.nodes(ref) == [vms.group()]
    vms.bind(AUDIO, "snd_hda_intel")
    with pytest.raises(DeviceError, match=rf"{AUDIO} \(snd_hda_intel\), are in use on the node"):
        vms.driver.prepare(ref, SOON)


def test_two_gpus_in_one_group_are_not_given_out(make_vms: MakeVms) -> None:
    vms = make_vms(groups=[CARDS[:2]])
    assert vms.offered() == ["gpu-2", "gpu-3"]
    with pytest.raises(DeviceError, match=f"also has {CARDS[1]}"):
        vms.driver.prepare(vms.claim(FIRST), SOON)


def test_with_iommufd_it_gets_a_device_of_its_own(make_vms: MakeVms) -> None:
    vms = make_vms(iommufd=True)
    wanted = {"backendPolicy": "PreferIommuFD", "enableAPIDevice": True}
    config = make.config(kind="VfioDeviceConfig", iommu=wanted)
    ref = vms.claim(SECOND, configs=[config])
    vms.driver.prepare(ref)
    assert vms.driver.nodes(ref) == ["/dev/iommu", "/dev/vfio/devices/vfio1"]
    assert (vms.machine.dev_root / "dev/vfio/devices/vfio1").exists()


def test_a_claim_may_have_a_gpu_of_either_kind(vms: Vms) -> None:
    """NVIDIA's driver overwrites what the containers of the other need."""
    ref = vms.driver.api.add(FIRST, "gpu-2", uid="uid-both", requests=("vm", "cuda"))
    vms.driver.prepare(ref)
    nodes = vms.driver.nodes(ref)
    assert "/dev/nvidia2" in nodes
    assert vms.group() in nodes


def test_a_node_whose_gpus_all_have_a_vfio_driver_needs_no_gpu_driver(make_vms: MakeVms) -> None:
    vms = make_vms(drivers=dict.fromkeys(CARDS, "vfio-pci"))
    vms.machine.unload_driver()
    (vms.machine.proc_root / "driver/nvidia/version").unlink()
    vms.machine.library.unlink()
    vms.restart()
    assert vms.offered() == [f"gpu-vfio-{number}" for number in range(4)]
    ref = vms.claim(FIRST)
    vms.driver.prepare(ref)
    assert vms.driver.nodes(ref) == [vms.group()]
    vms.driver.unprepare(ref)
    assert vms.left() == []
    vms.bind(CARDS[0], None)
    with pytest.raises(DeviceError, match="not found"):  # one is free for a driver that may come
        vms.look()


def test_behind_nvswitches_none_is_offered_without_a_gpu_driver_either(tmp_path: Path) -> None:
    profile = profiles.load("h100x8")
    iommu = {"drivers": {gpu.pci: "vfio-pci" for gpu in profile.gpus}}
    machine = Machine.create(tmp_path / "hgx", profiles.changed(profile, {"iommu": iommu}))
    roots = find_roots(
        driver_root=machine.driver_root, proc_root=machine.proc_root, sys_root=machine.sys_root
    )
    nothing = Inventory(driver_version=None, cuda_version=None)
    found = passthrough_gpus(roots).look(nothing)
    assert ["NVSwitches" in (card.problem or "") for card in found.passthrough] == [True] * 8
    assert projection(found).devices == ()


def test_a_claim_ends_whose_gpu_a_virtual_machine_took_by_itself(vms: Vms) -> None:
    """The way of KubeVirt before it had claims (issue 1330 of NVIDIA's driver)."""
    ref = vms.claim("gpu-2", configs=[make.config(sharing={"strategy": "TimeSlicing"})])
    vms.driver.prepare(ref)
    vms.machine.remove_gpu(vms.machine.gpus[2].uuid)
    vms.look()
    vms.driver.unprepare(ref)
    assert vms.driver.left() == []


# Claims of NVIDIA's driver


def told_of_taking_over(vms: Vms) -> list[str]:
    """Take the node over; the addresses of GPUs that are said to stay at their VFIO driver."""
    with capture_logs() as logs:
        taken_over(vms)
    told = [log for log in logs if log["event"] == "gpu stays with its vfio driver"]
    for log in told:
        assert {log["log_level"]} == {"warning"}
        assert f"/sys/bus/pci/devices/{log['address']}/driver_override" in log["advice"]
    return [log["address"] for log in told]


@pytest.mark.parametrize("has_address", [True, False])
def test_a_claim_of_nvidias_driver_goes_on_and_its_gpu_stays_where_it_is(
    vms: Vms, *, has_address: bool
) -> None:
    theirs, ref, before = NvidiaDriver(vms), vms.claim(SECOND), vms.drivers()
    theirs.prepare(ref)
    if not has_address:  # as its v25.12 has it
        del entry_of(theirs.claims[ref.uid])["vfio"]["info"]["pciBusID"]
        theirs.write()
    assert told_of_taking_over(vms) == [CARDS[1]]
    (record,) = vms.ledger.readable()
    assert record.steps[0].devices[0].base.address == CARDS[1]  # type: ignore[union-attr]
    (answer,) = vms.driver.prepare(ref)
    assert answer.cdi_device_ids == (f"k8s.gpu.nvidia.com/claim={ref.uid}-gpu-vfio-1",)
    assert [one["name"] for one in vms.driver.spec(ref)["devices"]] == [f"{ref.uid}-gpu-vfio-1"]
    assert not theirs.spec(ref).exists()
    vms.driver.unprepare(ref)
    assert vms.drivers() == before
    assert vms.left() == []


def test_nvidias_claims_for_other_gpus_are_not_reported(vms: Vms) -> None:
    NvidiaDriver(vms).begin(vms.claim("gpu-vfio-2"))
    assert told_of_taking_over(vms) == []
    assert vms.left() == []


def test_nvidias_unfinished_passthrough_claims_are_dropped(vms: Vms) -> None:
    theirs, ref = NvidiaDriver(vms), vms.claim(FIRST)
    theirs.begin(ref)
    assert told_of_taking_over(vms) == [CARDS[0]]
    assert list(vms.ledger.readable()) == []
    assert vms.left() == []
    vms.driver.prepare(ref)
    assert vms.driver.nodes(ref) == [vms.group()]
