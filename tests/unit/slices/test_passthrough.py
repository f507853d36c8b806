"""GPUs for virtual machines in a ResourceSlice: each bound to a VFIO driver, and nothing else."""

from typing import Any

import make
from dra_driver.devices.device import Device, NodeDevice, Vfio
from dra_driver.slices.consumable import NO_CONSUMABLES
from dra_driver.slices.offer.mig import MigOffer, MigSource
from dra_driver.slices.project import Projection, projection
from dra_driver.slices.wire import wire_form

AUTO = MigOffer(source=MigSource.AUTO, why="by default")


def named(found: Projection) -> dict[str, dict[str, Any]]:
    return {str(device["name"]): device for device in found.devices}


def test_it_has_the_names_of_nvidias_driver() -> None:
    card = make.passthrough(has_iommufd=True)
    device = named(projection(make.inventory(passthrough=(card,)), mig=AUTO))["gpu-vfio-0"]
    assert device["attributes"] == {
        "type": {"string": "vfio"},
        "uuid": {"string": "GPU-pci-0000-10-00-0"},
        "productName": {"string": ""},
        "brand": {"string": ""},
        "architecture": {"string": ""},
        "cudaComputeCapability": {"version": "0.0.0"},
        "driverVersion": {"version": "535.261.3"},
        "cudaDriverVersion": {"version": "12.2.0"},
        "vendorID": {"string": "0x10de"},
        "deviceID": {"string": "0x2330"},
        "iommuFDEnabled": {"bool": True},
        "resource.kubernetes.io/pciBusID": {"string": "0000:10:00.0"},
        "resource.kubernetes.io/pcieRoot": {"string": "pci0000:0f"},
        "resource.kubernetes.io/numaNode": {"int": 0},
    }
    assert device["capacity"] == {
        "memory": {"value": "0"},
        "addressableMemory": {"value": "128Gi"},
    }


def test_available_ones_are_offered_without_counters() -> None:
    cards = (
        make.passthrough(0, driver="nvidia", problem="it is bound to nvidia"),
        make.passthrough(1),
        make.passthrough(2, problem="it is in no IOMMU group"),
        make.passthrough(3),
    )
    inventory = make.inventory(make.gpu(0), passthrough=cards)
    for with_counters in (True, False):
        found = projection(inventory, mig=AUTO, with_counters=with_counters)
        assert list(named(found)) == ["gpu-0", "gpu-vfio-1", "gpu-vfio-3"]
        assert found.counter_sets == ()
        assert not any("consumesCounters" in device for device in found.devices)


def test_memory_counters_are_those_of_other_gpus() -> None:
    inventory = make.inventory(make.gpu(0), passthrough=(make.passthrough(1),))
    found = projection(inventory, mig=AUTO, memory_counters=True)
    assert "consumesCounters" in named(found)["gpu-0"]
    assert "consumesCounters" not in named(found)["gpu-vfio-1"]
    assert len(found.counter_sets) == 1


def test_its_facts_are_those_of_its_address_whatever_its_number_was_before() -> None:
    other, card = (
        make.passthrough(0, device_id="0x20b0", addressable_bytes=1024**3),
        make.passthrough(1),
    )
    base = Vfio(gpu=card.gpu.uuid, address=card.gpu.pci_address, number=other.number)
    form = wire_form(
        NodeDevice(gpu=card.gpu, device=Device(base=base)),
        make.inventory(passthrough=(other, card)),
        joined={},
        in_parts=False,
        consumable_by=NO_CONSUMABLES,
    )
    wire: Any = form.wire
    assert wire["attributes"]["deviceID"] == {"string": "0x2330"}
    assert wire["capacity"]["addressableMemory"] == {"value": "128Gi"}
