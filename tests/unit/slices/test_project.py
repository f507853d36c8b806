"""GPUs as devices of a ResourceSlice."""

from typing import Any

import pytest

import make
from dra_driver.devices.model import Inventory, MigMode, SickGpu
from dra_driver.slices.attributes import strict_semver
from dra_driver.slices.project import projection
from dra_driver.slices.wire import WireDevice


def project(inventory: Inventory) -> tuple[WireDevice, ...]:
    return projection(inventory).devices


def attributes(**changes: object) -> dict[str, Any]:
    (device,) = project(make.inventory(make.gpu(3, **changes)))
    found: dict[str, Any] = device["attributes"]  # type: ignore[assignment]
    return found


def test_a_whole_gpu_has_the_names_attributes_and_capacity_of_nvidias_driver() -> None:
    (device,) = project(make.inventory(make.gpu(3)))
    assert device == {
        "name": "gpu-3",
        "attributes": {
            "type": {"string": "gpu"},
            "uuid": {"string": "GPU-00000000-0000-4000-8000-000000000003"},
            "productName": {"string": "NVIDIA H100 80GB HBM3"},
            "brand": {"string": "Nvidia"},
            "architecture": {"string": "Hopper"},
            "cudaComputeCapability": {"version": "9.0.0"},
            "driverVersion": {"version": "535.261.3"},
            "cudaDriverVersion": {"version": "12.2.0"},
            "addressingMode": {"string": "HMM"},
            "resource.kubernetes.io/pciBusID": {"string": "0000:13:00.0"},
            "resource.kubernetes.io/pcieRoot": {"string": "pci0000:12"},
            "resource.kubernetes.io/numaNode": {"int": 0},
        },
        "capacity": {"memory": {"value": "80Gi"}},
    }


def test_the_device_is_named_by_its_minor_number_and_not_by_its_index() -> None:
    (device,) = project(make.inventory(make.gpu(6, index=0)))
    assert device["name"] == "gpu-6"


def test_facts_that_a_card_lacks_are_left_out() -> None:
    found = attributes(pcie_root=None, numa_node=None, addressing_mode=None)
    assert not {
        "addressingMode",
        "resource.kubernetes.io/pcieRoot",
        "resource.kubernetes.io/numaNode",
    } & set(found)


def test_an_unknown_numa_node_is_omitted() -> None:
    assert "resource.kubernetes.io/numaNode" not in attributes(numa_node=-1)


def test_unknown_memory_is_0_so_memory_selectors_are_false() -> None:
    (device,) = project(make.inventory(make.gpu(0, memory_bytes=None)))
    assert device["capacity"] == {"memory": {"value": "0"}}


def test_memory_is_written_as_kubernetes_prints_it() -> None:
    (device,) = project(make.inventory(make.gpu(0, memory_bytes=85520809984)))
    assert device["capacity"] == {"memory": {"value": "81559Mi"}}


@pytest.mark.parametrize(
    ("name", "cut"),
    [
        ("x" * 65, "x" * 64),
        ("x" * 63 + "é", "x" * 63),
        ("🦜" * 17, "🦜" * 16),
        ("x" * 64, "x" * 64),
        ("\udc80", "?"),
    ],
)
def test_a_string_is_cut_at_64_bytes_without_splitting_a_character(name: str, cut: str) -> None:
    assert attributes(product_name=name)["productName"] == {"string": cut}


@pytest.mark.parametrize(
    ("text", "semver"),
    [
        ("580.126.09", "580.126.9"),
        ("535.261.03", "535.261.3"),
        ("570.86.15", "570.86.15"),
        ("550.054", "550.54.0"),
        ("12", "12.0.0"),
        ("000.00.0", "0.0.0"),
        ("535.104.05-tegra.1", "535.104.5-tegra.1"),
        ("535.104.05+build.007", "535.104.5+build.007"),
        (" 535.1.2 ", "535.1.2"),
        ("535.104.05-01", None),
        ("470.57.02.1", None),
        ("", None),
        ("v1.2.3", None),
        ("1..2", None),
        ("1.2.3-", None),
        ("\u0661.2.3", None),
        ("1.2." + "3" * 80, None),
    ],
)
def test_versions_become_strict_semver_or_nothing(text: str, semver: str | None) -> None:
    assert strict_semver(text) == semver


def test_a_version_that_cannot_be_written_is_omitted_with_a_reason() -> None:
    found = projection(make.inventory(make.gpu(0), driver_version="nightly"))
    (device,) = found.devices
    assert "driverVersion" not in device["attributes"]  # type: ignore[operator]
    (entry,) = found.omitted
    assert (entry.device, entry.attribute) == ("gpu-0", "driverVersion")
    assert "'nightly'" in entry.reason


def test_attributes_missing_on_a_whole_gpu_are_reported_once() -> None:
    found = projection(make.inventory(make.gpu(0, mig=make.mig()), driver_version="nightly"))
    assert len(found.devices) > 2
    assert len([entry for entry in found.omitted if entry.attribute == "driverVersion"]) == 1


def test_a_gpu_in_mig_mode_is_withheld_with_what_to_do() -> None:
    found = projection(make.inventory(make.gpu(0), make.gpu(1, mig_mode=MigMode.ENABLED)))
    assert [device["name"] for device in found.devices] == ["gpu-0"]
    (entry,) = found.withheld
    assert entry.index == 1
    assert "nvidia-smi -i 0000:11:00.0 -mig 0" in entry.reason


def test_a_sick_gpu_is_withheld_and_hides_no_other() -> None:
    found = projection(make.inventory(make.gpu(0), sick=(SickGpu(index=1, reason="lost"),)))
    assert [device["name"] for device in found.devices] == ["gpu-0"]
    assert [(entry.index, entry.reason) for entry in found.withheld] == [(1, "lost")]


def test_without_a_driver_there_are_no_devices() -> None:
    assert project(make.inventory(gpus=(), driver_version=None, cuda_version=None)) == ()
