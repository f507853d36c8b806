"""Claims with GPUs for virtual machines, on a simulated node whose kernel acts on what is written.

The kernel, NVML and the looks for processes are what the driver meets on a node; of a virtual
machine there is only what it would be given.
"""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import make
from dra_driver.claims.model.record import RecordState
from dra_driver.claims.reconcile.orphans import ReconcileTiming
from dra_driver.devices.model import PciAddress
from dra_driver.errors import DeviceError, DriverError, TransientError
from dra_driver.sharing import passthrough
from dra_driver.simulator import profile as profiles
from dra_driver.simulator.kernel import Kernel
from dra_driver.simulator.layout import Fact
from dra_driver.slices.project import projection
from worlds.node import Node, no_step
from worlds.nvidia import NvidiaDriver, taken_over
from worlds.nvidia_files import entry_of
from worlds.process import eventually

pytestmark = pytest.mark.usefixtures("needs_root")
SOON = 0.5
FIRST = "gpu-vfio-0"


class Vms(Node):
    """A node with four T4, whose kernel is there for as long as the node is."""

    kernel: Kernel

    def address(self, number: int = 0) -> PciAddress:
        return PciAddress(self.machine.gpus[number].pci)

    def drivers(self) -> list[str | None]:
        return [self.pci.driver_of(PciAddress(gpu.pci)) for gpu in self.machine.gpus]

    def seen(self) -> list[int]:
        """The minor numbers of the GPUs that the driver has seen."""
        return sorted(gpu.minor for gpu in self.inventory.gpus)


MakeVms = Callable[..., Vms]


@pytest.fixture
def make_vms(tmp_path: Path, needs_root: None, real_userspace: None) -> Iterator[MakeVms]:
    made: list[Vms] = []

    def make_one(iommu: object = True) -> Vms:
        profile = profiles.changed(profiles.load("t4x4"), {"iommu": iommu})
        node = Vms.create(tmp_path / "node", profile, "real")
        assert isinstance(node, Vms)
        made.append(node)
        node.kernel = Kernel(node.machine)
        node.kernel.__enter__()
        node.look()
        return node

    yield make_one
    for node in made:
        node.close()
        node.machine.clear_faults()
        node.kernel.__exit__(None, None, None)


@pytest.fixture
def vms(make_vms: MakeVms) -> Vms:
    return make_vms()


def test_a_gpu_is_taken_from_the_gpu_driver_and_given_back(vms: Vms) -> None:
    uuid, address = vms.machine.gpus[0].uuid, vms.address()
    ref = vms.claim(FIRST)
    (device,) = vms.driver.prepare(ref)
    assert (device.name, device.device.gpu) == (FIRST, uuid)
    assert vms.drivers() == ["vfio-pci", "nvidia", "nvidia", "nvidia"]
    assert vms.seen() == [1, 2, 3]
    group = vms.inventory.passthrough[0].group
    assert vms.driver.nodes(ref) == [f"/dev/vfio/{group}"]
    assert vms.driver.env(ref, FIRST)["NVIDIA_VISIBLE_DEVICES"] == "void"
    assert "containerEdits" not in vms.driver.spec(ref)
    vms.driver.unprepare(ref)
    assert vms.drivers() == ["nvidia"] * 4
    assert vms.pci.override_of(address) == ""
    vms.look()
    assert vms.seen() == [0, 1, 2, 3]
    assert vms.left() == []


def test_the_metadata_names_the_pci_address(vms: Vms) -> None:
    ref = vms.claim(FIRST)
    vms.driver.prepare(ref)
    (file,) = (vms.driver.plugin / "device-metadata" / ref.uid).iterdir()
    for line in file.read_text().splitlines():
        (request,) = json.loads(line)["requests"]
        (device,) = request["devices"]
        address = device["attributes"]["resource.kubernetes.io/pciBusID"]
        assert address == {"string": vms.address()}


def test_prepared_again_it_answers_the_same_and_touches_nothing(vms: Vms) -> None:
    ref = vms.claim(FIRST)
    first = vms.driver.prepare(ref)
    before = (vms.machine.sys_root / "bus/pci/devices" / vms.address() / "driver").lstat()
    assert vms.driver.prepare(ref) == first
    after = (vms.machine.sys_root / "bus/pci/devices" / vms.address() / "driver").lstat()
    assert after.st_ctime_ns == before.st_ctime_ns


def test_four_claims_have_four_gpus(vms: Vms) -> None:
    refs = [vms.claim(f"gpu-vfio-{number}", name=f"vm-{number}") for number in range(4)]
    for ref in refs:
        vms.driver.prepare(ref)
    assert vms.drivers() == ["vfio-pci"] * 4
    for ref in refs:
        vms.driver.unprepare(ref)
    assert vms.drivers() == ["nvidia"] * 4
    assert vms.left() == []


def test_what_one_claim_has_of_a_gpu_no_other_gets(vms: Vms) -> None:
    whole, machine = vms.claim("gpu-0", name="whole"), vms.claim(FIRST, name="machine")
    vms.driver.prepare(whole)
    with pytest.raises(DriverError, match="is already allocated to different claim"):
        vms.driver.prepare(machine, SOON)
    vms.driver.unprepare(whole)
    vms.driver.prepare(machine)
    with pytest.raises(DriverError):
        vms.driver.prepare(whole, SOON)
    assert vms.drivers()[0] == "vfio-pci"


@pytest.mark.parametrize("has_address", [True, False])
def test_one_that_nvidias_driver_gave_to_a_machine_is_given_back_at_its_end(
    vms: Vms, *, has_address: bool
) -> None:
    theirs, ref = NvidiaDriver(vms), vms.claim("gpu-vfio-1")
    theirs.prepare(ref)
    if not has_address:  # as its v25.12 has it
        del entry_of(theirs.claims[ref.uid])["vfio"]["info"]["pciBusID"]
        theirs.write()
    vms.restart()
    taken_over(vms)
    (record,) = vms.holdings.records.readable()
    assert record.steps[0].devices[0].base.address == vms.address(1)  # type: ignore[union-attr]
    (answer,) = vms.driver.prepare(ref)
    assert answer.cdi_device_ids == (f"k8s.gpu.nvidia.com/claim={ref.uid}-gpu-vfio-1",)
    assert vms.drivers() == ["nvidia", "vfio-pci", "nvidia", "nvidia"]
    vms.driver.unprepare(ref)
    assert vms.drivers() == ["nvidia"] * 4
    assert vms.pci.override_of(vms.address(1)) == ""
    vms.look()
    assert vms.seen() == [0, 1, 2, 3]
    assert vms.left() == []


@pytest.mark.parametrize("bound_to", ["nvidia", None, "vfio-pci"])
def test_what_nvidias_driver_had_begun_for_a_machine_is_given_back(
    vms: Vms, bound_to: str | None
) -> None:
    theirs, ref = NvidiaDriver(vms), vms.claim(FIRST)
    theirs.begin(ref)
    if bound_to != "nvidia":
        with vms.session.apart():
            vms.pci.switch(vms.address(), bound_to, override="vfio-pci", seconds=10)
    vms.restart()
    taken_over(vms)
    assert vms.drivers() == ["nvidia"] * 4
    assert vms.left() == []


def test_its_audio_goes_with_it(make_vms: MakeVms) -> None:
    card = profiles.load("t4x4").gpus[0].pci
    audio = PciAddress(card[:-1] + "1")
    vms = make_vms({"functions": [{"pci": audio, "beside": card, "device": "0x10f8"}]})
    ref = vms.claim(FIRST)
    vms.driver.prepare(ref)
    assert vms.pci.driver_of(audio) == "vfio-pci"
    vms.driver.unprepare(ref)
    assert vms.pci.driver_of(audio) == "snd_hda_intel"


def test_one_that_was_given_to_vfio_at_boot_stays_there(make_vms: MakeVms) -> None:
    """NVIDIA's driver gives it to nvidia at the end (its issues 1089 and 1099)."""
    card = profiles.load("t4x4").gpus[0].pci
    vms = make_vms({"drivers": {card: "vfio-pci"}})
    assert vms.seen() == [1, 2, 3]
    ref = vms.claim(FIRST)
    vms.driver.prepare(ref)
    vms.driver.unprepare(ref)
    assert vms.drivers()[0] == "vfio-pci"
    assert vms.left() == []


def test_a_node_whose_gpus_all_have_a_vfio_driver_needs_no_gpu_driver(make_vms: MakeVms) -> None:
    cards = [gpu.pci for gpu in profiles.load("t4x4").gpus]
    vms = make_vms({"drivers": dict.fromkeys(cards, "vfio-pci")})
    vms.machine.unload_driver()
    (vms.machine.proc_root / "driver/nvidia/version").unlink()
    vms.machine.library.unlink()
    vms.restart()
    offered = [device["name"] for device in projection(vms.inventory).devices]
    assert offered == [f"gpu-vfio-{number}" for number in range(4)]
    ref = vms.claim(FIRST)
    vms.driver.prepare(ref)
    assert vms.driver.nodes(ref) == [f"/dev/vfio/{vms.inventory.passthrough[0].group}"]
    vms.driver.unprepare(ref)
    assert vms.drivers() == ["vfio-pci"] * 4
    assert vms.left() == []
    vms.pci.switch(vms.address(), None, override="", seconds=20)
    with pytest.raises(DeviceError, match="not found"):  # one is free for a driver that may come
        vms.look()


def test_what_others_take_from_the_gpu_driver_this_driver_does_not_keep(vms: Vms) -> None:
    """The kernel waits for all who have the GPU open, and NVML has it."""
    unbind = vms.machine.sys_root / "bus/pci/drivers/nvidia/unbind"
    other = subprocess.Popen(["sh", "-c", f"printf {vms.address()} >{unbind}"])
    eventually(lambda: vms.drivers()[0] is None, "its link to go")
    assert other.poll() is None
    vms.look()
    assert other.wait(20) == 0
    vms.look()
    assert vms.seen() == [1, 2, 3]


def test_persistence_mode_is_as_before(vms: Vms) -> None:
    for number, mode in enumerate((1, 0)):
        vms.machine.set_fact(vms.machine.gpus[number].uuid, Fact.PERSISTENCE_MODE, mode)
    vms.look()
    refs = [vms.claim(f"gpu-vfio-{number}", name=f"vm-{number}") for number in range(2)]
    for ref in refs:
        vms.driver.prepare(ref)
    for ref in refs:
        vms.driver.unprepare(ref)
    assert [status.persistence_mode for status in vms.machine.status()[:2]] == [1, 0]


def test_a_process_that_has_the_gpu_open_is_named_before_anything_is_written(
    vms: Vms, monkeypatch: pytest.MonkeyPatch
) -> None:
    """NVIDIA's driver waits in the kernel then, for ever (its issue 1255)."""
    monkeypatch.setattr(passthrough, "_RELEASE_SECONDS", SOON)
    node = vms.machine.dev_root / "dev/nvidia0"
    holder = subprocess.Popen(
        [
            sys.executable,
            "-c",
            f"import os,sys; os.open({str(node)!r}, os.O_PATH); sys.stdin.read()",
        ],
        stdin=subprocess.PIPE,
    )
    try:
        eventually(lambda: bool(vms.holders.of(0)), "the process to have it open")
        ref = vms.claim(FIRST)
        with pytest.raises(TransientError, match=rf"python\S* \(PID {holder.pid}\) has it open"):
            vms.driver.prepare(ref, SOON)
        assert vms.drivers()[0] == "nvidia"
        assert vms.left() == []
    finally:
        holder.communicate()
    vms.driver.prepare(ref)
    assert vms.drivers()[0] == "vfio-pci"


def test_a_kernel_that_does_not_come_back_costs_one_gpu(
    vms: Vms, monkeypatch: pytest.MonkeyPatch
) -> None:
    uuid = vms.machine.gpus[0].uuid
    vms.machine.slow_call("nvidia:unbind", 3_600_000, uuid=uuid)
    ref = vms.claim(FIRST)
    with monkeypatch.context() as hurried:
        hurried.setattr(passthrough, "SWITCH_SECONDS", SOON)
        with pytest.raises(TransientError, match="the kernel does not let go of"):
            vms.driver.prepare(ref, SOON)
    vms.look()
    assert [card.number for card in vms.inventory.passthrough if card.hangs] == [0]
    assert [name for name, _ in vms.driver.cleanups(ref)] == ["VFIO"]
    other = vms.claim("gpu-vfio-1", name="other")
    vms.driver.prepare(other)
    vms.driver.unprepare(ref)  # ends although the GPU hangs
    vms.machine.clear_faults()
    eventually(lambda: not vms.pci.hanging(), "the kernel to come back")
    vms.driver.reconciler(ReconcileTiming(grace=0.0)).mend()
    assert vms.drivers() == ["nvidia", "vfio-pci", "nvidia", "nvidia"]


def test_a_bind_that_fails_is_taken_back(vms: Vms) -> None:
    vms.machine.fail_call("vfio-pci:bind", 16, uuid=vms.machine.gpus[0].uuid, times=1)
    ref = vms.claim(FIRST)
    with pytest.raises(DriverError, match=r"cannot be changed: .*bind: Device or resource busy"):
        vms.driver.prepare(ref, SOON)
    assert vms.drivers()[0] == "nvidia"
    assert vms.left() == []


def test_it_may_come_back_under_another_number(vms: Vms) -> None:
    uuid = vms.machine.gpus[0].uuid
    ref = vms.claim(FIRST)
    vms.driver.prepare(ref)
    vms.machine.fail_call("nvidia:minor", 9, uuid=uuid, times=1)
    vms.driver.unprepare(ref)
    vms.look()
    assert vms.seen() == [1, 2, 3, 9]
    again = vms.claim("gpu-9", name="again")
    (device,) = vms.driver.prepare(again)
    assert device.device.uuid == uuid


def test_a_restart_knows_whose_the_gpu_is(vms: Vms) -> None:
    """NVIDIA's driver finds no such device then, and leaves the card stranded (its issue 1331)."""
    uuid, ref = vms.machine.gpus[0].uuid, vms.claim(FIRST)
    first = vms.driver.prepare(ref)
    vms.restart()
    assert vms.inventory.passthrough[0].gpu.uuid == uuid
    assert vms.driver.prepare(ref) == first
    vms.restart()
    vms.driver.unprepare(ref)
    assert vms.drivers()[0] == "nvidia"
    assert vms.left() == []


def test_a_claim_that_was_deleted_by_force_gives_its_gpu_back(vms: Vms) -> None:
    ref = vms.claim(FIRST)
    vms.driver.prepare(ref)
    del vms.driver.api.claims["default", ref.name]
    reconciler = vms.driver.reconciler(ReconcileTiming(grace=0.0))
    for _ in range(2):  # seen to be gone, and still gone
        reconciler.compare()
    assert vms.drivers()[0] == "nvidia"
    assert vms.left() == []


def test_after_a_reboot_it_is_taken_again(vms: Vms) -> None:
    ref = vms.claim(FIRST)
    vms.driver.prepare(ref)
    vms.close()
    vms.machine.reboot()
    vms.restart()
    assert vms.drivers()[0] == "nvidia"
    vms.driver.prepare(ref)
    assert vms.drivers()[0] == "vfio-pci"
    vms.driver.unprepare(ref)
    assert vms.drivers()[0] == "nvidia"
    assert vms.left() == []


def test_what_others_bind_meanwhile_is_left_to_them(vms: Vms) -> None:
    ref = vms.claim(FIRST)
    vms.driver.prepare(ref)
    vms.pci.switch(vms.address(), "nvidia", override="", seconds=20)
    with pytest.raises(DriverError, match="was taken from vfio-pci by others"):
        vms.driver.prepare(ref, SOON)
    vms.driver.unprepare(ref)
    assert vms.drivers()[0] == "nvidia"
    assert vms.left() == []


def test_a_claim_ends_whose_gpu_a_virtual_machine_took_by_itself(vms: Vms) -> None:
    """The way of KubeVirt before it had claims (issue 1330 of NVIDIA's driver)."""
    ref = vms.claim("gpu-0", configs=[make.config(sharing={"strategy": "TimeSlicing"})])
    vms.driver.prepare(ref)
    vms.session.close()
    vms.pci.switch(vms.address(), "vfio-pci", override="vfio-pci", seconds=20)
    vms.look()
    vms.driver.unprepare(ref)
    assert vms.driver.left() == []
    assert vms.drivers()[0] == "vfio-pci"


class Killed(BaseException):
    """The driver's process is gone."""


STEPS = ("marked", "intended", "applied", "recorded", "described", "specified")


@pytest.mark.parametrize("at", STEPS)
def test_killed_at_any_step_the_claim_is_prepared_or_taken_back(vms: Vms, at: str) -> None:
    ref = vms.claim(FIRST)

    def step(name: str) -> None:
        if name == at:
            raise Killed

    vms.restart(step=step)
    with pytest.raises(Killed):
        vms.driver.prepare(ref)
    vms.restart(step=no_step)
    vms.driver.prepare(ref)
    assert vms.drivers()[0] == "vfio-pci"
    vms.driver.unprepare(ref)
    assert vms.drivers() == ["nvidia"] * 4
    assert vms.left() == []


def test_a_killed_prepare_that_nobody_repeats_is_taken_back(vms: Vms) -> None:
    ref = vms.claim(FIRST)
    vms.restart(step=lambda name: (_ for _ in ()).throw(Killed) if name == "applied" else None)
    with pytest.raises(Killed):
        vms.driver.prepare(ref)
    assert vms.drivers()[0] == "vfio-pci"
    vms.restart(step=no_step)
    record = vms.driver.claims.records.read(ref.uid)
    assert record is not None
    assert record.state is RecordState.PREPARING
    vms.driver.unprepare(ref)
    assert vms.drivers()[0] == "nvidia"


def test_iommufd_gives_the_gpus_own_node(make_vms: MakeVms) -> None:
    vms = make_vms({"iommufd": True})
    config = make.config(
        kind="VfioDeviceConfig",
        iommu={"backendPolicy": "PreferIommuFD", "enableAPIDevice": True},
    )
    ref = vms.claim(FIRST, configs=[config])
    vms.driver.prepare(ref)
    assert vms.driver.nodes(ref) == ["/dev/iommu", "/dev/vfio/devices/vfio0"]


def test_a_claim_may_have_a_gpu_of_either_kind(vms: Vms) -> None:
    """NVIDIA's driver overwrites what the containers of the other need."""
    ref = vms.driver.api.add(FIRST, "gpu-1", uid="uid-both", requests=("vm", "cuda"))
    vms.driver.prepare(ref)
    nodes = vms.driver.nodes(ref)
    assert "/dev/nvidia1" in nodes
    assert any(path.startswith("/dev/vfio/") for path in nodes)
    assert vms.drivers() == ["vfio-pci", "nvidia", "nvidia", "nvidia"]
