"""What a record says of a GPU that NVIDIA's driver gave to a virtual machine."""

from pathlib import Path
from typing import Any

import pytest

import make
from dra_driver.claims.model.claim import ClaimUid
from dra_driver.claims.takeover.drafts import Drafts
from dra_driver.claims.takeover.nvidia_checkpoint import (
    PeerCheckpoint,
    PeerClaim,
    PeerDevice,
    PeerGroup,
    PeerVfio,
)
from dra_driver.devices.model import PassthroughGpu
from dra_driver.sharing.steps import PassThrough

VM = "gpu-vfio-0"
GPU, OTHER = make.gpu(0), make.gpu(1)
IOMMUFD = make.config(kind="VfioDeviceConfig", iommu={"backendPolicy": "PreferIommuFD"})


def step(*cards: PassthroughGpu) -> PassThrough:
    """What is to be undone for a machine that has GPU as VM, on a node with these cards."""
    told: dict[str, Any] = {"requests": ("gpu",), "pool": "node-1", "name": VM}
    device = PeerDevice(device=PeerVfio(address=GPU.pci_address), cdi_device_ids=(), **told)
    claim = PeerClaim(
        uid=ClaimUid("uid"),
        namespace="",
        name="",
        is_prepared=True,
        status=make.claim_object(VM, configs=[IOMMUFD])["status"],
        groups=(PeerGroup(devices=(device,), mps_daemon=None, time_sliced=False),),
    )
    drafts = Drafts(
        PeerCheckpoint(boot_id="boot-1", claims=(claim,)),
        make.inventory(passthrough=cards),
        boot_id="boot-1",
        mps_folder=Path("/nowhere"),
        makes_mig=False,
    )
    record = drafts.of(claim)
    assert record is not None
    (found,) = record.steps
    assert isinstance(found, PassThrough)
    return found


@pytest.mark.parametrize(
    ("bound", "noted"),
    [
        ("vfio-pci", "vfio-pci"),
        ("nvgrace-gpu-vfio-pci", "nvgrace-gpu-vfio-pci"),
        (None, "vfio-pci"),
        ("nvidia", "vfio-pci"),
    ],
)
def test_its_driver_is_the_one_for_machines_to_which_it_is_bound(
    bound: str | None, noted: str
) -> None:
    assert step(make.passthrough(GPU, 0, driver=bound)).driver == noted


def test_it_is_the_card_at_its_address_whatever_its_number_is_by_now() -> None:
    cards = make.passthrough(OTHER, 0, driver="nvidia"), make.passthrough(GPU, 1, group=8)
    found = step(*cards)
    assert (found.address, found.group) == (GPU.pci_address, 8)


@pytest.mark.parametrize("has_iommufd", [True, False])
def test_it_has_iommufd_only_where_the_node_has(*, has_iommufd: bool) -> None:
    assert step(make.passthrough(GPU, 0, has_iommufd=has_iommufd)).iommufd is has_iommufd
