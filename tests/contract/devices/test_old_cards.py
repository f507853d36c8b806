"""Cards before Turing through the driver: what it finds, publishes, shares and refuses.

What is published of them is held in tests/data/slices, which `dra-driver inspect` writes:
`dra-driver inspect --output yaml`, its `devices`.
"""

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

import make
from dra_driver.cli import main
from dra_driver.devices.model import Gpu, Inventory
from dra_driver.devices.session import DriverSession
from dra_driver.errors import ConfigError
from dra_driver.mps.domain import DomainDevice
from dra_driver.sharing.base import Group, Unit
from dra_driver.sharing.mps import Mps
from dra_driver.sharing.nvidia_smi import NvidiaSmi
from dra_driver.sharing.steps import JoinDomain
from dra_driver.sharing.time_slicing import TimeSlicing
from dra_driver.simulator.machine import Machine
from dra_driver.slices.project import projection
from resource_nvidia_com.decode import decode
from resource_nvidia_com.v1beta1.configs import GpuConfig

GOLDEN = Path(__file__).parents[2] / "data" / "slices"
SOON = 30.0
LIMITS = {"defaultActiveThreadPercentage": 50, "defaultPinnedDeviceMemoryLimit": "1Gi"}


@contextlib.contextmanager
def opened(machine: Machine) -> Iterator[DriverSession]:
    session = DriverSession(
        driver_root=machine.driver_root,
        dev=machine.dev_root / "dev",
        proc_root=machine.proc_root,
        sys_root=machine.sys_root,
    )
    try:
        yield session
    finally:
        session.close()


def look(machine: Machine) -> Inventory:
    with opened(machine) as session:
        return session.look()


def card(inventory: Inventory, product: str) -> Gpu:
    return next(gpu for gpu in inventory.gpus if gpu.product_name == product)


def config(strategy: str, **settings: Any) -> GpuConfig:
    field = {"MPS": "mpsConfig", "TimeSlicing": "timeSlicingConfig"}[strategy]
    sharing = {"strategy": strategy} | ({field: settings} if settings else {})
    version = "resource.nvidia.com/v1beta1"
    found = decode({"apiVersion": version, "kind": "GpuConfig", "sharing": sharing}).normalise()
    assert isinstance(found, GpuConfig)
    return found


@pytest.fixture
def laptop(tmp_path: Path) -> Machine:
    return Machine.create(tmp_path / "laptop", "laptop")


@pytest.fixture
def generations(tmp_path: Path) -> Machine:
    return Machine.create(tmp_path / "generations", "generations")


@pytest.mark.parametrize("name", ["v100x8", "laptop", "generations"])
def test_whole_gpus_are_published_as_ever(tmp_path: Path, name: str) -> None:
    published = projection(look(Machine.create(tmp_path / "root", name)))
    whole = [
        {key: value for key, value in wire.items() if key != "consumesCounters"}
        for wire, source in zip(published.devices, published.sources, strict=True)
        if source == make.whole(source.gpu)
    ]
    assert whole == yaml.safe_load((GOLDEN / f"{name}.yaml").read_text())
    assert published.withheld == ()
    assert published.omitted == ()


def test_cards_with_mig_are_divided_beside_cards_without(generations: Machine) -> None:
    published = projection(look(generations))
    parts: dict[str, set[str]] = {}
    for wire, source in zip(published.devices, published.sources, strict=True):
        attributes: Any = wire["attributes"]
        kinds = parts.setdefault(source.gpu.product_name, set())
        kinds.add(attributes["type"]["string"])
    assert parts == {
        "Tesla P100-PCIE-16GB": {"gpu"},
        "Tesla V100-PCIE-16GB": {"gpu"},
        "Tesla V100-PCIE-32GB": {"gpu"},
        "Tesla T4": {"gpu"},
        "NVIDIA A30": {"gpu"},
        "NVIDIA L4": {"gpu"},
        "NVIDIA H100 80GB HBM3": {"gpu", "mig"},
    }
    [note] = published.notes
    assert "MIG mode is off, and this card changes it only by a reset" in note.text


def inspected(machine: Machine, capsys: pytest.CaptureFixture[str]) -> str:
    words = [
        "inspect",
        f"--nvidia-driver-root={machine.driver_root}",
        f"--container-driver-root={machine.driver_root}",
        f"--sys-root={machine.sys_root}",
        f"--proc-root={machine.proc_root}",
    ]
    assert main(words) == 0
    shown = capsys.readouterr()
    assert shown.err == ""
    return shown.out


def test_inspect_omits_what_a_laptop_lacks(
    laptop: Machine, capsys: pytest.CaptureFixture[str]
) -> None:
    [gpu] = laptop.gpus
    assert inspected(laptop, capsys) == (
        "driver 535.261.03, CUDA 12.2\n"
        "\n"
        "NAME   PRODUCT               UUID                                      PCI"
        "           NUMA  MEMORY   MIG\n"
        f"gpu-0  NVIDIA GeForce MX150  {gpu.uuid}  0000:01:00.0  -     2.0 GiB  unsupported\n"
        "\n"
        "would publish 1 device\n"
        f"  gpu-0: type=gpu, uuid={gpu.uuid}, productName=NVIDIA GeForce MX150, brand=GeForce,"
        " architecture=Pascal, cudaComputeCapability=6.1.0, driverVersion=535.261.3,"
        " cudaDriverVersion=12.2.0, resource.kubernetes.io/pciBusID=0000:01:00.0,"
        " resource.kubernetes.io/pcieRoot=pci0000:00, memory=2Gi\n"
    )


# Time-slicing


@contextlib.contextmanager
def time_slicing(machine: Machine) -> Iterator[tuple[TimeSlicing, Inventory]]:
    with opened(machine) as session:
        smi = NvidiaSmi(machine.driver_root, machine.proc_root, time.monotonic)
        yield TimeSlicing(smi, session), session.look()


def asked(gpu: Gpu, wanted: GpuConfig) -> list[Group]:
    unit = Unit(name=f"gpu-{gpu.minor}", request="gpu", gpu=gpu, device=make.device(gpu))
    return [Group(claim="uid", config=wanted, units=(unit,))]


@pytest.mark.parametrize("product", ["Tesla P100-PCIE-16GB", "Tesla V100-PCIE-16GB"])
def test_pascal_and_volta_have_time_slices(generations: Machine, product: str) -> None:
    deadline = time.monotonic() + SOON
    with time_slicing(generations) as (strategy, inventory):
        gpu = card(inventory, product)
        [step] = strategy.plan(asked(gpu, config("TimeSlicing", interval="Long")), deadline)
        strategy.do(step, deadline)
        assert generations.time_slice(gpu.uuid) == 3
        strategy.undo(step, deadline)
        assert generations.time_slice(gpu.uuid) == 0


# MPS


def planned(folder: Path, gpu: Gpu, wanted: GpuConfig) -> tuple[JoinDomain, ...]:
    unused: Any = None
    mps = Mps(unused, time.monotonic, ready_seconds=1.0)
    return mps.plan(asked(gpu, wanted), time.monotonic() + SOON)


def test_a_v100_can_have_mps_with_limits(tmp_path: Path, generations: Machine) -> None:
    gpu = card(look(generations), "Tesla V100-PCIE-32GB")
    [step] = planned(tmp_path, gpu, config("MPS", **LIMITS, multiUser=True))
    domain = step.wanted
    assert domain.devices == (DomainDevice(uuid=gpu.uuid, pinned_memory_mib=1024),)
    assert domain.active_thread_percentage == 50


@pytest.mark.parametrize("profile", ["generations", "laptop"])
def test_pascal_can_have_mps_without_limits(tmp_path: Path, profile: str) -> None:
    inventory = look(Machine.create(tmp_path / "root", profile))
    gpu = next(gpu for gpu in inventory.gpus if gpu.architecture == "Pascal")
    [step] = planned(tmp_path, gpu, config("MPS"))
    assert step.wanted.devices == (DomainDevice(uuid=gpu.uuid),)


@pytest.mark.parametrize(
    ("settings", "what"),
    [
        (LIMITS, "defaultActiveThreadPercentage"),
        ({"defaultPinnedDeviceMemoryLimit": "1Gi"}, "defaultPinnedDeviceMemoryLimit"),
        ({"defaultPerDevicePinnedMemoryLimit": {"0": "1Gi"}}, "defaultPerDevicePinnedMemoryLimit"),
        ({"multiUser": True}, "multiuser mode"),
    ],
)
def test_pascal_can_have_no_limits(
    tmp_path: Path, generations: Machine, settings: dict[str, Any], what: str
) -> None:
    gpu = card(look(generations), "Tesla P100-PCIE-16GB")
    with pytest.raises(ConfigError) as refused:
        planned(tmp_path, gpu, config("MPS", **settings))
    assert str(refused.value) == (
        f"{what} was requested but is not supported: {gpu.uuid} (Tesla P100-PCIE-16GB) has "
        'insufficient cudaComputeCapability "6.0", wanted >= "7.0"; leave that out of the config,'
        " or select a GPU that can: device.attributes['gpu.nvidia.com'].cudaComputeCapability"
        ".compareTo(semver('7.0.0')) >= 0"
    )
