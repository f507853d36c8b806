"""Cards that change their driver: writes below /sys, and what NVML and others see of it."""

import errno
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pynvml
import pytest

from contract.simulator.conftest import MakeMachine, Nvml
from dra_driver.errors import SetupError
from dra_driver.simulator import profile as profiles
from dra_driver.simulator.kernel import Kernel, Writes
from dra_driver.simulator.layout import Fact
from dra_driver.simulator.machine import Machine
from dra_driver.simulator.sysfs import driver_of
from worlds.process import eventually

CARD, OTHER, AUDIO = "0000:18:00.0", "0000:3b:00.0", "0000:18:00.1"
HOURS = 3_600_000
PCI = "bus/pci/drivers"
PATHS = {"PYTHONPATH": os.pathsep.join(sys.path)}


class Card:
    """A function below /sys, and what writes of it do."""

    def __init__(self, machine: Machine, pci: str, writes: Writes) -> None:
        self.pci, self.sys_root = pci, machine.sys_root
        self.folder = machine.sys_root / "bus/pci/devices" / pci
        self.writes = writes

    @property
    def driver(self) -> str | None:
        return driver_of(self.sys_root, self.pci)

    def unbind(self, driver: str) -> None:
        self.writes.unbind(driver, f"{self.pci}\n")

    def bind(self, driver: str) -> None:
        self.writes.bind(driver, f"{self.pci}\n")

    def override(self, driver: str) -> None:
        (self.folder / "driver_override").write_text(f"{driver}\n")

    def give_to_vfio(self) -> None:
        self.override("vfio-pci")
        self.unbind("nvidia")
        self.bind("vfio-pci")


@dataclass(frozen=True, kw_only=True)
class Bench:
    """A machine of four T4 with an IOMMU, and its kernel."""

    machine: Machine
    writes: Writes
    said: list[str]

    def card(self, pci: str) -> Card:
        return Card(self.machine, pci, self.writes)


MakeBench = Callable[..., Bench]


@pytest.fixture
def make_bench(make_machine: MakeMachine) -> MakeBench:
    def make(iommu: object = True) -> Bench:
        machine = make_machine(profiles.changed(profiles.load("t4x4"), {"iommu": iommu}))
        assert machine.bus is not None
        said: list[str] = []
        writes = Writes(machine, machine.bus, said.append)
        return Bench(machine=machine, writes=writes, said=said)

    return make


def refused(act: Callable[[str], None], driver: str) -> int | None:
    with pytest.raises(OSError, match="Errno") as raised:
        act(driver)
    return raised.value.errno


def count_gpus(machine: Machine, nvml: Nvml) -> int:
    with nvml(machine):
        return int(pynvml.nvmlDeviceGetCount())


def test_a_card_goes_to_vfio_and_comes_back(make_bench: MakeBench, nvml: Nvml) -> None:
    bench = make_bench({"iommufd": True})
    machine = bench.machine
    card, dev = bench.card(CARD), machine.dev_root / "dev"
    group = (card.folder / "iommu_group").readlink().name
    information = machine.proc_root / "driver/nvidia/gpus" / CARD / "information"
    before = information.read_text()
    card.give_to_vfio()
    assert card.driver == "vfio-pci"
    assert (card.folder / "vfio-dev/vfio0").is_dir()
    assert (dev / "vfio" / group).exists()
    assert (dev / "vfio/devices/vfio0").exists()
    assert (dev / "nvidia0").exists()  # the kernel did not make it
    assert not information.exists()
    assert count_gpus(machine, nvml) == 3
    card.override("")
    card.unbind("vfio-pci")
    assert not (dev / "vfio" / group).exists()
    assert not list((dev / "vfio/devices").iterdir())
    assert not (card.folder / "vfio-dev").exists()
    card.bind("nvidia")
    assert (card.driver, information.read_text()) == ("nvidia", before)
    assert (dev / "nvidia0").exists()
    assert count_gpus(machine, nvml) == 4


def test_the_kernel_refuses_what_no_driver_takes(make_bench: MakeBench) -> None:
    bench = make_bench({"functions": [{"pci": AUDIO, "beside": CARD, "device": "0x10f8"}]})
    card, audio, nothing = (bench.card(pci) for pci in (CARD, AUDIO, "0000:ff:00.0"))
    assert refused(nothing.unbind, "nvidia") == errno.ENODEV
    assert refused(card.unbind, "vfio-pci") == errno.ENODEV
    assert refused(card.bind, "nvidia") == errno.EBUSY
    card.unbind("nvidia")
    assert refused(card.bind, "vfio-pci") == errno.ENODEV  # nobody has named it
    card.override("vfio-pci")
    assert refused(card.bind, "nvidia") == errno.ENODEV
    assert card.driver is None
    audio.unbind("snd_hda_intel")
    assert refused(audio.bind, "nvidia") == errno.ENODEV
    audio.bind("snd_hda_intel")
    assert audio.driver == "snd_hda_intel"


def test_a_group_has_its_node_while_one_of_it_is_bound(
    make_bench: MakeBench,
) -> None:
    bench = make_bench({"functions": [{"pci": AUDIO, "beside": CARD, "device": "0x10f8"}]})
    machine = bench.machine
    card, audio = bench.card(CARD), bench.card(AUDIO)
    group = (card.folder / "iommu_group").resolve()
    assert {path.name for path in (group / "devices").iterdir()} == {CARD, AUDIO}
    assert (card.folder / f"consumer:pci:{AUDIO}").is_symlink()
    node = machine.dev_root / "dev/vfio" / group.name
    card.give_to_vfio()
    audio.override("vfio-pci")
    audio.unbind("snd_hda_intel")
    audio.bind("vfio-pci")
    card.unbind("vfio-pci")
    assert node.exists()
    audio.unbind("vfio-pci")
    assert not node.exists()


HOLDS_A_SESSION = """
import ctypes, sys
assert ctypes.CDLL(sys.argv[1]).nvmlInit_v2() == 0
print("holds", flush=True)
sys.stdin.read()
"""
HOLDS_A_CONTEXT = """
import ctypes, sys
cuda, context = ctypes.CDLL(sys.argv[1]), ctypes.c_void_p()
assert cuda.cuInit(0) == cuda.cuCtxCreate_v2(ctypes.byref(context), 0, 0) == 0
print("holds", flush=True)
sys.stdin.readline()
assert cuda.cuCtxDestroy_v2(context) == 0
sys.stdin.read()
"""
HOLDS_A_NODE = """
import os, sys
os.open(sys.argv[1], os.O_PATH)
print("holds", flush=True)
sys.stdin.read()
"""


def hold(script: str, what: Path) -> subprocess.Popen[bytes]:
    """Let another process hold something, until its input ends."""
    child = subprocess.Popen(
        [sys.executable, "-c", script, str(what)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert child.stdout is not None
    child.stdout.readline()
    return child


class Writer(threading.Thread):
    """Writes something that may take as long as it likes."""

    def __init__(self, act: Callable[[], None]) -> None:
        super().__init__()
        self._act = act
        self.error: OSError | None = None
        self.start()

    def run(self) -> None:
        try:
            self._act()
        except OSError as error:
            self.error = error


@pytest.mark.parametrize("holder", ["session", "context", "node", "process"])
def test_nvidia_lets_go_of_a_card_when_nobody_has_it(
    holder: str, make_bench: MakeBench, nvml: Nvml
) -> None:
    bench = make_bench()
    machine = bench.machine
    card, other = bench.card(CARD), bench.card(OTHER)
    uuid = machine.gpus[0].uuid
    child = None
    if holder == "process":
        machine.hold_instance(uuid, pid=4242)
    elif holder == "session":
        child = hold(HOLDS_A_SESSION, machine.library)
    elif holder == "context":
        child = hold(HOLDS_A_CONTEXT, machine.library_folder / "libcuda.so.1")
    else:
        child = hold(HOLDS_A_NODE, machine.dev_root / "dev/nvidia0")
    card.override("vfio-pci")
    writer = Writer(lambda: card.unbind("nvidia"))
    eventually(lambda: bench.said, "the driver to wait")
    assert card.driver is None  # which goes first
    assert machine.status()[0].present
    assert (machine.proc_root / "driver/nvidia/gpus" / CARD).exists()
    if holder != "session":  # it would have the other card, too
        other.unbind("nvidia")
    assert writer.is_alive()
    assert count_gpus(machine, nvml) == (3 if holder == "session" else 2)  # no new one gets it
    if child is None:
        machine.release_instance(uuid, pid=4242)
    else:
        if holder == "context":  # the program goes on without it
            assert child.stdin is not None
            child.stdin.write(b"\n")
            child.stdin.flush()
            writer.join()
        child.communicate()
    writer.join()
    assert writer.error is None
    assert not machine.status()[0].present
    assert not (machine.proc_root / "driver/nvidia/gpus" / CARD).exists()


def test_vfio_waits_for_a_virtual_machine(make_bench: MakeBench) -> None:
    bench = make_bench()
    card = bench.card(CARD)
    card.give_to_vfio()
    group = (card.folder / "iommu_group").readlink().name
    node = bench.machine.dev_root / "dev/vfio" / group
    holder = hold(HOLDS_A_NODE, node)
    writer = Writer(lambda: card.unbind("vfio-pci"))
    eventually(lambda: bench.said, "the driver to wait")
    assert node.exists()
    assert writer.is_alive()
    holder.communicate()
    writer.join()
    assert not node.exists()


def test_an_unbind_that_hangs_is_waited_for_by_whoever_writes_next(
    make_bench: MakeBench,
) -> None:
    bench = make_bench()
    machine = bench.machine
    card = bench.card(CARD)
    card.override("vfio-pci")
    machine.slow_call("nvidia:unbind", HOURS, uuid=machine.gpus[0].uuid)
    writers = [Writer(lambda: card.unbind("nvidia"))]
    eventually(lambda: card.driver is None, "the link to go")
    writers.append(Writer(lambda: card.bind("vfio-pci")))
    bench.card(OTHER).unbind("nvidia")
    assert all(writer.is_alive() for writer in writers)
    machine.clear_faults()
    for writer in writers:
        writer.join()
    assert card.driver == "vfio-pci"


def test_a_reboot_ends_what_hangs_and_binds_all_to_their_first_driver(
    make_bench: MakeBench, nvml: Nvml
) -> None:
    bench = make_bench({"drivers": {"0000:86:00.0": "vfio-pci", "0000:af:00.0": "none"}})
    machine = bench.machine
    cards = [bench.card(gpu.pci) for gpu in machine.gpus]
    first = ["nvidia", "nvidia", "vfio-pci", None]
    assert [card.driver for card in cards] == first
    assert count_gpus(machine, nvml) == 2
    cards[2].unbind("vfio-pci")
    cards[2].bind("vfio-pci")  # the kernel's command line gave it this card's ids
    cards[2].unbind("vfio-pci")
    cards[1].give_to_vfio()
    machine.slow_call("nvidia:unbind", HOURS)
    writer = Writer(lambda: cards[0].unbind("nvidia"))
    eventually(lambda: cards[0].driver is None, "the link to go")
    machine.reboot()
    writer.join()
    assert writer.error is not None
    assert [card.driver for card in cards] == first
    assert (cards[1].folder / "driver_override").read_text() == "(null)\n"
    assert [gpu.minor for gpu in machine.gpus] == [0, 1, -1, -1]
    assert sorted(path.name for path in (machine.dev_root / "dev").glob("nvidia[0-9]*")) == [
        "nvidia0",
        "nvidia1",
    ]
    assert count_gpus(machine, nvml) == 2


def test_a_bind_fails_as_often_as_it_is_told_to(make_bench: MakeBench) -> None:
    bench = make_bench()
    machine = bench.machine
    card = bench.card(CARD)
    card.override("vfio-pci")
    card.unbind("nvidia")
    machine.fail_call("vfio-pci:bind", errno.EBUSY, uuid=machine.gpus[0].uuid, times=1)
    assert refused(card.bind, "vfio-pci") == errno.EBUSY
    assert card.driver is None
    card.bind("vfio-pci")
    machine.fail_call("vfio-pci:unbind", errno.EIO, times=1)
    assert refused(card.unbind, "vfio-pci") == errno.EIO
    assert card.driver == "vfio-pci"


def test_nvidia_refuses_a_card_that_fell_off_the_bus(make_bench: MakeBench) -> None:
    bench = make_bench()
    machine = bench.machine
    card = bench.card(CARD)
    machine.lose_gpu(machine.gpus[0].uuid)
    card.unbind("nvidia")
    assert refused(card.bind, "nvidia") == errno.EPERM
    assert card.driver is None


def test_cards_come_back_under_the_numbers_that_are_free(make_bench: MakeBench, nvml: Nvml) -> None:
    bench = make_bench()
    machine = bench.machine
    first, second = bench.card(CARD), bench.card(OTHER)
    for card in (first, second):
        card.unbind("nvidia")
    second.bind("nvidia")
    machine.fail_call("nvidia:minor", 9, uuid=machine.gpus[0].uuid, times=1)
    first.bind("nvidia")
    assert [gpu.minor for gpu in machine.gpus] == [9, 0, 2, 3]
    assert machine.find("minor:9").pci == CARD
    with nvml(machine):
        handle = pynvml.nvmlDeviceGetHandleByPciBusId(CARD.encode())
        assert pynvml.nvmlDeviceGetMinorNumber(handle) == 9


def test_nvidia_takes_what_is_free_when_its_module_is_loaded(make_bench: MakeBench) -> None:
    bench = make_bench()
    card, other = bench.card(CARD), bench.card(OTHER)
    for each in (card, other):
        each.unbind("nvidia")
    bench.machine.unload_driver()
    assert refused(card.bind, "nvidia") == errno.ENODEV
    other.override("vfio-pci")
    bench.machine.load_driver()
    assert (card.driver, other.driver) == ("nvidia", None)
    assert [gpu.minor for gpu in bench.machine.gpus] == [0, -1, 2, 3]


def test_what_nvidia_was_told_of_a_card_is_forgotten(make_bench: MakeBench) -> None:
    bench = make_bench()
    machine = bench.machine
    card, uuid = bench.card(CARD), machine.gpus[0].uuid
    machine.set_fact(uuid, Fact.PERSISTENCE_MODE, 1)
    machine.set_fact(uuid, Fact.COMPUTE_MODE, 3)
    card.unbind("nvidia")
    card.bind("nvidia")
    assert (machine.status()[0].persistence_mode, machine.compute_mode(uuid)) == (0, 0)


def test_a_pulled_card_takes_its_nodes_with_it(make_bench: MakeBench) -> None:
    bench = make_bench()
    machine = bench.machine
    card, uuid = bench.card(CARD), machine.gpus[0].uuid
    group = (card.folder / "iommu_group").resolve()
    card.give_to_vfio()
    machine.remove_gpu(uuid)
    assert not list((group / "devices").iterdir())
    assert {path.name for path in (machine.dev_root / "dev/vfio").iterdir()} == {"vfio", "devices"}
    machine.add_gpu(uuid)
    assert (card.driver, machine.gpus[0].minor) == ("nvidia", 0)
    assert (card.folder / "iommu_group").resolve() == group


def write(path: Path, text: str) -> None:
    """Write as the driver has to: a buffered file writes once more when it is closed."""
    file = os.open(path, os.O_WRONLY)
    try:
        os.write(file, text.encode())
    finally:
        os.close(file)


@pytest.mark.usefixtures("needs_root")
def test_a_write_below_sys_comes_back_when_the_kernel_has_acted(make_bench: MakeBench) -> None:
    bench = make_bench()
    card, other, drivers = bench.card(CARD), bench.card(OTHER), bench.machine.sys_root / PCI
    with Kernel(bench.machine) as kernel:
        card.override("vfio-pci")
        write(card.folder / "driver/unbind", CARD)
        assert card.driver is None
        bench.machine.fail_call("vfio-pci:bind", errno.EBUSY, times=1)
        with pytest.raises(OSError, match="busy"):
            write(drivers / "vfio-pci/bind", CARD)
        write(drivers / "vfio-pci/bind", CARD)
        assert card.driver == "vfio-pci"
        bench.machine.hold_instance(bench.machine.gpus[1].uuid, pid=4242)
        writer = Writer(lambda: write(other.folder / "driver/unbind", OTHER))
        eventually(lambda: other.driver is None, "the link to go")
        write(drivers / "vfio-pci/unbind", CARD)  # another card's write does not wait
        assert writer.is_alive()
    writer.join()  # its kernel is gone
    assert writer.error is not None
    assert "is in use" in kernel.said
    assert not (drivers / "vfio-pci/bind").is_symlink()


@pytest.mark.usefixtures("needs_root")
def test_a_kernel_ends_with_the_process_that_made_it(make_bench: MakeBench) -> None:
    bench = make_bench()
    bind = bench.machine.sys_root / PCI / "vfio-pci/bind"
    script = f"""
import os, signal
from pathlib import Path
from dra_driver.simulator.kernel import Kernel
from dra_driver.simulator.machine import Machine
with Kernel(Machine(Path({str(bench.machine.driver_root)!r}))):
    os.kill(os.getpid(), signal.SIGKILL)
"""
    subprocess.run([sys.executable, "-c", script], check=False, env=os.environ | PATHS)
    eventually(lambda: not bind.is_symlink(), "its files to go")


def test_a_machine_without_an_iommu_has_no_groups_and_no_kernel(machine: Machine) -> None:
    assert not list((machine.sys_root / "kernel/iommu_groups").iterdir())
    assert not (machine.dev_root / "dev/vfio").exists()
    assert not (machine.sys_root / "bus/pci/drivers/vfio-pci").exists()
    with pytest.raises(SetupError, match="has no IOMMU"):
        Kernel(machine)


def test_attributes_of_a_card_read_as_the_kernel_shows_them(machine: Machine) -> None:
    folder: Path = machine.sys_root / "bus/pci/devices" / machine.gpus[0].pci
    alias = "pci:v000010DEd000020B0sv000010DEsd0000134Fbc03sc02i00"
    assert (folder / "modalias").read_text() == f"{alias}\n"
    assert (folder / "driver_override").read_text() == "(null)\n"
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
