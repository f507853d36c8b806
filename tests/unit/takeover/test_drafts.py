"""What a record says of a GPU that NVIDIA's driver gave to a virtual machine."""

from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

import make
from dra_driver.admin.takeover.drafts import Drafts
from dra_driver.admin.takeover.nvidia_checkpoint import (
    PeerCheckpoint,
    PeerClaim,
    PeerDevice,
    PeerGroup,
    PeerVfio,
)
from dra_driver.claims.model.claim import ClaimUid
from dra_driver.devices.model import PassthroughGpu
from dra_driver.sharing.steps import PassThrough

VM = "gpu-vfio-0"
GPU = make.gpu(0)
IOMMUFD = make.config(kind="VfioDeviceConfig", iommu={"backendPolicy": "PreferIommuFD"})


def step(*cards: PassthroughGpu) -> PassThrough:
    """The step of a machine that has GPU as VM, on a node with these cards."""
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


def test_it_is_the_card_at_its_address_whatever_its_number_is_by_now() -> None:
    driver = "nvgrace-gpu-vfio-pci"
    mine = replace(make.passthrough(group=8, driver=driver), number=1)
    found = step(replace(make.passthrough(1), number=0), mine)
    assert (found.address, found.group, found.driver) == (GPU.pci_address, 8, driver)


@pytest.mark.parametrize("has_iommufd", [True, False])
def test_it_has_iommufd_only_where_the_node_has(*, has_iommufd: bool) -> None:
    assert step(make.passthrough(has_iommufd=has_iommufd)).iommufd is has_iommufd
