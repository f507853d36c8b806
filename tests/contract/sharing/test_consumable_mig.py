"""Parts of a MIG device that exists, by consumable capacity: prepared, limited, given back."""

import pytest

import make
from dra_driver.errors import ConfigError, ConflictError
from dra_driver.mps.domain import shared_domain
from dra_driver.slices.consumable import Consumable
from dra_driver.slices.offer.shares import ShareOffer
from dra_driver.slices.project import projection
from resource_nvidia_com.quantity import quantity_bytes
from worlds.configs import MPS_ON_MIG
from worlds.node import MakeNode, Node

LIMIT = "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"
THREADS = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"
DEVICE = "gpu-0-mig-3g40gb-9-4"
MIB = 1024**2


@pytest.fixture
def node(make_node: MakeNode) -> Node:
    """Its first GPU has two MIG devices that somebody else made."""
    node = make_node()
    node.machine.set_mig_mode(node.uuid(0), enabled=True)
    node.machine.create_mig(node.uuid(0), "3g.40gb", 4)
    node.machine.create_mig(node.uuid(0), "1g.10gb", 0)
    node.look()
    return node


def mig_uuid(node: Node, profile: str = "3g.40gb") -> str:
    (found,) = [mig.uuid for mig in node.migs() if mig.profile == profile]
    return found


def left(node: Node) -> list[str]:
    """What claims have left; the MIG devices and their mode were there before."""
    before = {"MIG mode of gpu-0", "1g.10gb@0 on gpu-0", "3g.40gb@4 on gpu-0"}
    return [one for one in node.left() if one not in before]


def published_memory(node: Node) -> int:
    """What the scheduler may give out of the larger MIG device's memory, in MiB."""
    found = projection(node.inventory, share=ShareOffer(consumable=Consumable.of("unlimited")))
    (memory,) = [
        device["capacity"]["memory"]["value"]  # type: ignore[index]
        for device in found.devices
        if device["name"] == DEVICE
    ]
    return quantity_bytes(memory) // MIB


def test_tenants_of_a_mig_device_are_limited_to_what_they_were_allocated(node: Node) -> None:
    first_mib = 10 * 1024
    second_mib = published_memory(node) - first_mib
    with node.mps.supervised():
        first = node.claim_parts(
            "one", device=DEVICE, memory=f"{first_mib}Mi", cores=20, configs=(MPS_ON_MIG,)
        )
        second = node.claim_parts(
            "two", device=DEVICE, memory=f"{second_mib}Mi", cores=80, configs=(MPS_ON_MIG,)
        )
        third = node.claim_parts("three", device=DEVICE, memory="0", configs=(MPS_ON_MIG,))
        for ref in (first, second, third):
            node.driver.prepare(ref)

        uuid = mig_uuid(node)
        assert node.mps.requests.list() == {shared_domain(uuid)}
        found = [
            node.part_env(ref, share_id, DEVICE)
            for ref, share_id in ((first, "one"), (second, "two"), (third, "three"))
        ]
        assert [(one.get(LIMIT), one.get(THREADS)) for one in found] == [
            (f"{uuid}={first_mib}M", "20"),
            (f"{uuid}={second_mib}M", "80"),
            (None, None),
        ]
        for ref in (first, second):
            node.driver.unprepare(ref)
        assert node.mps.requests.list() == {shared_domain(uuid)}
        node.driver.unprepare(third)
        assert left(node) == []
    assert node.mig_shapes() == {0: ["1g.10gb@0", "3g.40gb@4"]}


def test_a_mig_device_is_used_as_a_whole_or_in_parts(node: Node) -> None:
    part = node.claim_parts("one", device=DEVICE, configs=())
    whole = node.claim(DEVICE, name="whole")
    node.driver.prepare(part)
    with pytest.raises(ConflictError, match="already allocated to different claim default/one"):
        node.driver.prepare(whole)
    node.driver.unprepare(part)
    node.driver.prepare(whole)
    with pytest.raises(ConflictError, match="already allocated to different claim default/whole"):
        node.driver.prepare(part)
    node.driver.unprepare(whole)
    assert left(node) == []


def test_a_config_for_gpus_does_not_hold_for_parts_of_a_mig_device(node: Node) -> None:
    config = make.config("gpu", sharing={"strategy": "MPS"})
    with pytest.raises(ConfigError, match="MigDeviceConfig"):
        node.driver.prepare(node.claim_parts("one", device=DEVICE, configs=(config,)))
    assert left(node) == []
