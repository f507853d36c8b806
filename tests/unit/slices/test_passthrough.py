"""GPUs for virtual machines in a ResourceSlice: beside the rest of a GPU, never given with it."""

from typing import Any

import pytest

import make
from dra_driver.devices.device import Whole
from dra_driver.devices.model import Gpu, Inventory, MigMode
from dra_driver.devices.shares import Division, ShareStrategy
from dra_driver.slices.offer.mig import ALL, MigOffer, MigSource
from dra_driver.slices.offer.shares import NO_SHARES, ShareOffer
from dra_driver.slices.project import Projection, projection, with_memory_counters

AUTO = MigOffer(source=MigSource.AUTO, why="by default")


def node(*gpus: Gpu, **changes: object) -> Inventory:
    cards = tuple(make.passthrough(gpu, number, **changes) for number, gpu in enumerate(gpus))
    return make.inventory(*gpus, passthrough=cards)


def named(found: Projection) -> dict[str, dict[str, Any]]:
    return {str(device["name"]): device for device in found.devices}


def divided(**changes: Any) -> Division:
    facts: dict[str, Any] = {
        "count": 4,
        "strategy": ShareStrategy.TIME_SLICING,
        "served_as": "nvidia.com/gpu",
        "combines": True,
    }
    return Division(**(facts | changes))


def never_together(found: Projection, counter_set: str) -> None:
    """What is published of a GPU beside its passthrough has no room beside that."""
    (there,) = (each["counters"] for each in found.counter_sets if each["name"] == counter_set)
    taken: dict[str, Any] = {}
    for name, device in named(found).items():
        for consumed in device["consumesCounters"]:
            if consumed["counterSet"] == counter_set:
                taken[name] = consumed["counters"]
    (passed,) = (name for name in taken if name.startswith("gpu-vfio-"))
    counters: Any = there
    assert taken[passed] == {name: each for name, each in counters.items() if each["value"] != "0"}
    assert all(taken[name].keys() & counters.keys() for name in taken)
    assert len(taken) > 1


def test_it_has_the_names_of_nvidias_driver() -> None:
    gpu = make.gpu(0)
    device = named(projection(node(gpu, has_iommufd=True), mig=AUTO))["gpu-vfio-0"]
    assert device["attributes"] == {
        "type": {"string": "vfio"},
        "uuid": {"string": gpu.uuid},
        "productName": {"string": "NVIDIA H100 80GB HBM3"},
        "brand": {"string": "Nvidia"},
        "architecture": {"string": "Hopper"},
        "cudaComputeCapability": {"version": "9.0.0"},
        "driverVersion": {"version": "535.261.3"},
        "cudaDriverVersion": {"version": "12.2.0"},
        "addressingMode": {"string": "HMM"},
        "vendorID": {"string": "0x10de"},
        "deviceID": {"string": "0x2330"},
        "iommuFDEnabled": {"bool": True},
        "resource.kubernetes.io/pciBusID": {"string": gpu.pci_address},
        "resource.kubernetes.io/pcieRoot": {"string": "pci0000:0f"},
        "resource.kubernetes.io/numaNode": {"int": 0},
    }
    assert device["capacity"] == {
        "memory": {"value": "80Gi"},
        "addressableMemory": {"value": "128Gi"},
    }


def test_a_whole_gpu_gets_a_counter_for_it() -> None:
    found = projection(node(make.gpu(0), make.gpu(1)), mig=AUTO)
    assert list(named(found)) == ["gpu-0", "gpu-1", "gpu-vfio-0", "gpu-vfio-1"]
    never_together(found, "gpu-0-counter-set")
    never_together(found, "gpu-1-counter-set")


def test_nothing_changes_where_none_is_offered() -> None:
    plain = projection(make.inventory(make.gpu(0)), mig=AUTO)
    kept = projection(node(make.gpu(0), problem="no IOMMU"), mig=AUTO)
    assert kept.devices == plain.devices
    assert kept.counter_sets == plain.counter_sets == ()
    (note,) = kept.notes
    assert note.text == "it is not offered to virtual machines: no IOMMU"


def test_partitions_have_no_room_beside_it() -> None:
    found = projection(node(make.gpu(0, mig=make.mig())), mig=ALL)
    assert "gpu-0-mig-1g10gb-19-0" in named(found)
    never_together(found, "gpu-0-counter-set")


@pytest.mark.parametrize("alone", [None, "a setting"])
def test_shares_have_no_room_beside_it(alone: str | None) -> None:
    gpu = make.gpu(0)
    division = divided()
    share = ShareOffer(divisions={Whole(gpu=gpu.uuid): division}, alone=alone)
    found = projection(node(gpu), mig=AUTO, share=share)
    assert "gpu-0-share-3-of-4" in named(found)
    assert ("gpu-0" in named(found)) == (alone is None)
    never_together(found, "gpu-0-counter-set")


def test_without_counters_nothing_would_keep_them_apart() -> None:
    found = projection(node(make.gpu(0)), mig=AUTO, with_counters=False)
    assert list(named(found)) == ["gpu-0"]
    assert "DRAPartitionableDevices" in found.notes[0].text


def test_a_gpu_that_its_admin_divides_is_not_offered() -> None:
    by_hand = make.mig_device(0, "1g.10gb", 0)
    gpu = make.gpu(0, mig=make.mig(by_hand), mig_mode=MigMode.ENABLED)
    found = projection(node(gpu), mig=AUTO)
    assert not any(name.startswith("gpu-vfio") for name in named(found))


def test_a_gpu_that_is_away_is_offered_as_nothing_else() -> None:
    here, away = make.gpu(0), make.gpu(1)
    cards = (make.passthrough(here), make.passthrough(away, 1, driver="vfio-pci"))
    found = projection(make.inventory(here, passthrough=cards), mig=AUTO)
    assert list(named(found)) == ["gpu-0", "gpu-vfio-0", "gpu-vfio-1"]
    assert "consumesCounters" not in named(found)["gpu-vfio-1"]


def test_a_gpu_that_is_withheld_is_withheld_from_machines_too() -> None:
    gpu = make.gpu(0)
    share = NO_SHARES.refusing_all(make.inventory(gpu), "a device plugin gives it out")
    assert not projection(node(gpu), mig=AUTO, share=share).devices


def test_memory_counters_stay_as_they_are() -> None:
    found = projection(node(make.gpu(0)), mig=AUTO)
    assert with_memory_counters(found) == found
