"""The real pynvml over simulated GPUs: what the inventory says, and how it survives faults."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from dra_driver.devices.model import MigMode
from dra_driver.devices.nvml.library import NvmlLibrary, find_library
from dra_driver.devices.session import DriverSession, discover
from dra_driver.errors import DeviceError
from dra_driver.simulator.layout import Fact
from dra_driver.simulator.machine import Machine
from dra_driver.slices.project import projection
from worlds.session import session_on

NOT_SUPPORTED, FUNCTION_NOT_FOUND = 3, 13
NO_PERMISSION = 4
NOT_SUPPORTED, FUNCTION_NOT_FOUND = 3, 13
UNKNOWN = 999


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine.create(tmp_path / "h100", "h100x8")


@pytest.fixture
def session(machine: Machine) -> Iterator[DriverSession]:
    session = session_on(machine)
    yield session
    session.close()


def test_every_gpu_is_found_with_the_identity_and_place_it_has(
    machine: Machine, session: DriverSession
) -> None:
    inventory = session.look()

    expected = sorted(machine.gpus, key=lambda gpu: gpu.pci)
    assert [gpu.pci_address for gpu in inventory.gpus] == [gpu.pci for gpu in expected]
    assert [gpu.uuid for gpu in inventory.gpus] == [gpu.uuid for gpu in expected]
    assert [gpu.minor for gpu in inventory.gpus] == [gpu.minor for gpu in expected]
    assert [gpu.numa_node for gpu in inventory.gpus] == [gpu.numa_node for gpu in expected]
    assert [gpu.pcie_root for gpu in inventory.gpus] == [f"pci{gpu.root_bus}" for gpu in expected]
    assert inventory.sick == ()
    assert inventory.problem is None


UNIFIED = """
driver_version: 580.95.05
cuda_version: "13.0"
cards:
  gb10:
    name: NVIDIA GB10
    brand: nvidia-rtx
    architecture: blackwell
    compute_capability: "12.1"
    device_id: "0x2e12"
    subsystem_id: "0x0001"
    power: {idle: 4}
    temperature: {idle: 40}
    idle_clocks: {graphics: 208, memory: 8000, video: 600}
    clocks: {graphics: 3003, memory: 8000, video: 2400}
    cores: 6144
    pcie_generation: 5
    nvlink: {links: 1, version: 5}
gpus:
  - {card: gb10, pci: "10000:e1:00.0", minor: 1, nvlinks: ["f000:01:00.0"]}
  - card: gb10
    pci: "f000:01:00.0"
    minor: 0
    bridges: ["f000:00:01.0"]
    nvlinks: ["10000:e1:00.0"]
"""
"""Cards that NVML tells no memory of, one in a PCI domain above ffff."""


def test_a_profile_may_have_cards_without_memory_and_any_pci_domain(tmp_path: Path) -> None:
    profile = tmp_path / "unified.yaml"
    profile.write_text(UNIFIED)
    session = session_on(Machine.create(tmp_path / "machine", str(profile)))
    inventory = session.look()
    session.close()
    assert inventory.sick == ()
    assert [gpu.pci_address for gpu in inventory.gpus] == ["f000:01:00.0", "10000:e1:00.0"]
    assert [gpu.pcie_root for gpu in inventory.gpus] == ["pcif000:00", "pci10000:e1"]
    peers = [link.peer for gpu in inventory.gpus for link in gpu.nvlinks]
    assert peers == ["10000:e1:00.0", "f000:01:00.0"]
    found = projection(inventory).devices
    assert [one["capacity"]["memory"] for one in found] == [{"value": "0"}] * 2


def test_a_lost_gpu_does_not_hide_the_others(machine: Machine, session: DriverSession) -> None:
    lost = machine.gpus[3]
    session.look()
    machine.lose_gpu(lost.uuid)
    inventory = session.look()

    assert {gpu.uuid for gpu in inventory.gpus} == {gpu.uuid for gpu in machine.gpus} - {lost.uuid}
    [sick] = inventory.sick
    assert "fallen off the bus" in sick.reason
    assert "NVML: GPU is lost" in sick.reason


@pytest.mark.parametrize(
    "function", ["nvmlDeviceGetUUID", "nvmlDeviceGetMinorNumber", "nvmlDeviceGetPciInfo_v3"]
)
def test_a_gpu_without_an_identity_is_sick(
    machine: Machine, session: DriverSession, function: str
) -> None:
    machine.fail_call(function, UNKNOWN, uuid=machine.gpus[0].uuid)
    inventory = session.look()

    assert len(inventory.gpus) == len(machine.gpus) - 1
    assert "NVML: Unknown Error" in inventory.sick[0].reason


def test_a_refusal_without_a_cause_names_the_call(machine: Machine, session: DriverSession) -> None:
    """As on WSL, whose NVML answers NOT_SUPPORTED to single calls."""
    machine.fail_call("nvmlDeviceGetMinorNumber", NOT_SUPPORTED, uuid=machine.gpus[0].uuid)
    (sick,) = session.look().sick
    assert "NVML refused nvmlDeviceGetMinorNumber (NVML: Not Supported)" in sick.reason


@pytest.mark.parametrize(
    ("function", "field", "absent"),
    [
        ("nvmlDeviceGetMemoryInfo", "memory_bytes", None),
        ("nvmlDeviceGetAddressingMode", "addressing_mode", None),
        ("nvmlDeviceGetBrand", "brand", "Unknown"),
        ("nvmlDeviceGetArchitecture", "architecture", "Unknown"),
        ("nvmlDeviceGetMigMode", "mig_mode", MigMode.UNSUPPORTED),
    ],
)
def test_a_fact_that_a_card_lacks_is_absent_and_no_fault(
    machine: Machine, session: DriverSession, function: str, field: str, absent: object
) -> None:
    machine.fail_call(function, NOT_SUPPORTED)
    not_supported = session.look()
    machine.clear_faults()
    machine.fail_call(function, FUNCTION_NOT_FOUND)
    hidden = session.look()

    for inventory in (not_supported, hidden):
        assert {getattr(gpu, field) for gpu in inventory.gpus} == {absent}
        assert inventory.sick == ()


def test_an_unloaded_driver_is_reported_and_found_once_loaded(
    machine: Machine, session: DriverSession
) -> None:
    machine.unload_driver()
    with pytest.raises(DeviceError, match="GPU driver is not loaded, or its device nodes"):
        session.look()
    machine.load_driver()

    assert len(session.look().gpus) == len(machine.gpus)


def test_for_a_loaded_driver_without_device_nodes_the_advice_is_to_make_these(
    machine: Machine, session: DriverSession
) -> None:
    nodes = machine.dev_root / "dev"
    nodes.rename(nodes.with_name("away"))
    with pytest.raises(DeviceError, match=r"kernel module is loaded, .*nvidia-modprobe -c 0 -u"):
        session.look()
    nodes.with_name("away").rename(nodes)

    assert len(session.look().gpus) == len(machine.gpus)


def test_a_driver_installed_later_is_found(tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    session = DriverSession(
        driver_root=root, dev=root / "dev", proc_root=root / "proc", sys_root=root / "sys"
    )
    with pytest.raises(DeviceError, match=r"libnvidia-ml\.so\.1 not found under"):
        session.look()
    Machine.create(root, "t4x4")

    assert len(session.look().gpus) == 4
    session.close()


def test_removed_gpus_disappear_and_return(machine: Machine, session: DriverSession) -> None:
    pulled = machine.gpus[2]
    before = session.look()
    machine.remove_gpu(pulled.uuid)
    without = session.look()
    machine.add_gpu(pulled.uuid)

    assert {gpu.uuid for gpu in without.gpus} == {gpu.uuid for gpu in before.gpus} - {pulled.uuid}
    assert without.sick == ()
    assert session.look() == before


def test_a_removed_gpu_is_not_mistaken_for_the_next_one(machine: Machine) -> None:
    library = NvmlLibrary(find_library(machine.driver_root))
    library.open()
    pulled = library.gpu_facts(2).uuid
    library.close()
    machine.remove_gpu(pulled)
    library.open()
    with pytest.raises(DeviceError):
        library.compute_mode(pulled)
    library.close()


def test_a_stale_library_is_reopened_before_giving_up(
    machine: Machine, session: DriverSession
) -> None:
    before = session.look()
    machine.fail_call("nvmlDeviceGetCount_v2", UNKNOWN, times=1)

    assert session.look() == before


def test_the_library_is_found_by_its_real_name(machine: Machine) -> None:
    path = find_library(machine.driver_root)

    assert path.is_absolute()
    assert not path.is_symlink()
    assert path.samefile(machine.library)


def test_missing_rights_are_reported(machine: Machine) -> None:
    library = NvmlLibrary(find_library(machine.driver_root))
    machine.fail_call("nvmlSystemGetDriverVersion", NO_PERMISSION)
    library.open()
    try:
        with pytest.raises(DeviceError, match="may not use the GPU driver"):
            discover(library, machine.sys_root)
    finally:
        library.close()


def test_a_library_for_another_machine_is_reported(tmp_path: Path) -> None:
    folder = tmp_path / "usr/lib64"
    folder.mkdir(parents=True)
    (folder / "libnvidia-ml.so.1").write_bytes(b"\x7fELF, but not really")

    with pytest.raises(DeviceError, match="cannot be loaded"):
        NvmlLibrary(find_library(tmp_path)).open()


@pytest.mark.parametrize(
    ("fact", "value", "field", "name"),
    [
        (Fact.BRAND, 2, "brand", "Tesla"),
        (Fact.BRAND, 15, "brand", "GeForceRTX"),
        (Fact.BRAND, 99, "brand", "Unknown"),
        (Fact.ARCHITECTURE, 8, "architecture", "Ada Lovelace"),
        (Fact.ARCHITECTURE, 13, "architecture", "Rubin"),
        (Fact.ARCHITECTURE, 99, "architecture", "Unknown"),
        (Fact.ADDRESSING_MODE, 2, "addressing_mode", "ATS"),
        (Fact.ADDRESSING_MODE, 99, "addressing_mode", None),
        (Fact.MIG_CURRENT, 1, "mig_mode", MigMode.ENABLED),
    ],
)
def test_numbers_of_nvml_become_the_texts_that_claims_select_by(
    machine: Machine, session: DriverSession, fact: Fact, value: int, field: str, name: str | None
) -> None:
    machine.set_fact(machine.gpus[0].uuid, fact, value)
    inventory = session.look()

    [gpu] = [gpu for gpu in inventory.gpus if gpu.uuid == machine.gpus[0].uuid]
    assert getattr(gpu, field) == name
