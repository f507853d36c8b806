"""MPS on MIG devices, made for a claim, with NVIDIA's real control daemon kept by a supervisor."""

from collections.abc import Callable
from contextlib import AbstractContextManager

import make
from dra_driver.claims.model import ClaimRef
from dra_driver.claims.reconcile import Pace
from dra_driver.devices.partitions import partition_name, partitions
from dra_driver.mps.domain import DomainId
from sharing_world import HALF, Node

Supervised = Callable[..., AbstractContextManager[None]]

CONFIG = make.config(kind="MigDeviceConfig", sharing=HALF)


def claim(node: Node, *starts: int, name: str = "claim") -> ClaimRef:
    """Allocate a claim: a small MIG device at each start on the first GPU, all under MPS."""
    gpu = node.inventory.gpus[0]
    names = [
        partition_name(gpu, place)
        for place in partitions(gpu)
        if place.profile.name == "1g.10gb" and place.placement.start in starts
    ]
    return node.world.api.add(*names, uid=f"uid-{name}", name=name, configs=[CONFIG])


def instances(node: Node) -> int:
    return len(node.machine.mig_devices(node.inventory.gpus[0].uuid))


def answers(node: Node, domain: str, *commands: str) -> list[str]:
    return node.mps.control.ask(node.mps.files.paths(DomainId(domain)), list(commands))


def test_each_mig_device_of_a_claim_has_a_daemon_that_goes_before_it(
    node: Node, supervised: Supervised
) -> None:
    with supervised(node):
        ref = claim(node, 0, 1)
        node.prepare(ref)
        assert instances(node) == 2
        domains = [f"{ref.uid}_mig_{number}" for number in range(2)]
        assert sorted(node.mps.desk.list()) == domains
        for domain in domains:
            assert answers(node, domain, "get_default_active_thread_percentage") == ["50.0"]
            assert answers(node, domain, "get_default_device_pinned_mem_limit 0") == ["10G"]
        assert node.modes() == {}
        node.unprepare(ref)
        assert instances(node) == 0
        assert node.left() == []


def test_without_a_supervisor_the_pod_ends_and_the_mig_device_goes_later(
    node: Node, supervised: Supervised
) -> None:
    with supervised(node):
        ref = claim(node, 3)
        node.prepare(ref)
    node.world.unprepare(ref, 1.0)
    assert instances(node) == 1
    assert [strategy for strategy, _ in node.debts(ref)] == ["MPS", "MIG"]
    with supervised(node):
        assert node.world.reconciler(Pace()).mend() == set()
        assert instances(node) == 0
        assert node.left() == []
