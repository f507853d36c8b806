"""Attributes of GPUs that NVLink joins: who has them, and that there is room for them."""

import make
from dra_driver.devices.device import Device, NodeDevice
from dra_driver.devices.model import Fabric, Inventory, NvLink
from dra_driver.devices.shares import ConsumedShare, Division, ShareStrategy
from dra_driver.slices.attributes import Attributes, describe
from dra_driver.slices.consumable import Consumable
from dra_driver.slices.offer.shares import NO_SHARES, ShareOffer
from dra_driver.slices.project import projection

CLUSTER = "9f0b1d1e-36b1-4ad2-8b4e-5b5ad8f6c001"
MOST = 32
"""Attributes and capacities together (ResourceSliceMaxAttributesAndCapacitiesPerDevice)."""


def joined_pair() -> Inventory:
    """Two H100 with everything that a card can have, joined by NVSwitch."""
    links = (NvLink(number=0, is_active=True, to_switch=True),)
    fabric = Fabric(state=3, status=0, cluster=CLUSTER, clique=7)
    gpus = (make.gpu(n, mig=make.mig(), nvlinks=links, fabric=fabric) for n in range(2))
    return make.inventory(*gpus)


def published(share: ShareOffer = NO_SHARES) -> list[dict[str, object]]:
    return [dict(device) for device in projection(joined_pair(), share=share).devices]


def about_nvlink(device: dict[str, object]) -> dict[str, str]:
    names = ("nvlinkIsland", "fabricClusterUUID", "fabricClique")
    attributes = device["attributes"]
    assert isinstance(attributes, dict)
    return {name: attributes[name]["string"] for name in names if name in attributes}


def test_whole_gpus_say_with_which_they_are_joined_and_mig_devices_nothing() -> None:
    first = make.gpu(0).uuid
    said = {
        "nvlinkIsland": first,
        "fabricClusterUUID": CLUSTER,
        "fabricClique": f"{CLUSTER}.7",
    }
    found = {str(device["name"]): about_nvlink(device) for device in published()}
    assert (found.pop("gpu-0"), found.pop("gpu-1")) == (said, said)
    assert found
    assert set(map(len, found.values())) == {0}


def test_shares_of_a_gpu_say_the_same_as_the_gpu() -> None:
    gpu = joined_pair().gpus[0]
    division = Division(
        count=4, strategy=ShareStrategy.MPS, served_as="nvidia.com/gpu", combines=False
    )
    devices = published(ShareOffer(divisions={make.place(gpu): division}))
    found = {str(device["name"]): about_nvlink(device) for device in devices}
    assert found["gpu-0-single-share-3-of-4"] == found["gpu-0"] != {}


def test_a_part_of_a_device_by_capacity_is_described_as_the_device() -> None:
    """As the device metadata of a claim has it."""
    node = make.inventory(make.gpu(0, mig=make.mig()))
    (gpu,) = node.gpus
    share = ConsumedShare(share_id="a", strategy=ShareStrategy.MPS)
    for device in (make.device(gpu), make.device(make.mig_device(0, "2g.20gb", 2))):
        found = []
        for one in (device, Device(base=device.base, share=share)):
            attributes = Attributes(device="a")
            describe(NodeDevice(gpu=gpu, device=one), node, attributes, {})
            found.append(attributes.values)
        assert found[0] == found[1]
        assert found[0]["uuid"] == {"string": device.uuid}


def test_a_device_never_has_more_than_the_api_takes() -> None:
    for share in (NO_SHARES, ShareOffer(consumable=Consumable.of("2"))):
        for device in published(share):
            assert len(device["attributes"]) + len(device.get("capacity", ())) <= MOST  # type: ignore[arg-type]
