"""Claims of shares under MPS join their domain, wait for it and leave it; no supervisor runs."""

from pathlib import Path
from typing import Any

import pytest

import make
from dra_driver.devices.device import DeviceUuid, equal_shares, share_key
from dra_driver.devices.shares import Division, ShareStrategy
from dra_driver.mps.domain import Domain, shared_domain
from dra_driver.mps.members import SharedDomains
from dra_driver.mps.requests import DomainRequests
from dra_driver.sharing.base import Group, Unit
from dra_driver.sharing.shares import Memberships, Shares
from dra_driver.sharing.steps import JoinDomain, UseShares

GPU = make.gpu(0)
TENTH = Division(count=10, strategy=ShareStrategy.MPS, served_as="nvidia.com/gpu", combines=True)
DOMAIN = shared_domain(GPU.uuid)


class Requests(DomainRequests):
    """What asks for domains, and notes until when one was waited for."""

    def wait_ready(self, domain: Domain, deadline: float, given_up: Any = None) -> Any:
        self.waited = domain.id, deadline


class Node:
    """The MPS files of a node, ten seconds after its start."""

    def __init__(self, root: Path) -> None:
        self.requests = Requests(root, lambda: 10.0)
        self.members = SharedDomains(root, self.requests, lambda: 10.0)
        self.memberships = Memberships(self.requests, self.members, lambda: 10.0, ready_seconds=2.0)

    def plan(self, claim: str = "uid") -> JoinDomain:
        share = equal_shares(make.place(GPU), TENTH)[3]
        unit = Unit(name="gpu-0-mps-share-3-of-10", request="a", gpu=GPU, device=share)
        config: Any = make.gpu_config(None)
        modes: Any = None
        group = Group(claim=claim, config=config, units=(unit,))
        _, made = Shares(make.limited_by_mps(), modes).plan([group], 0.0)
        assert isinstance(made, JoinDomain)
        return made


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def test_a_membership_that_is_lost_is_made_again(node: Node) -> None:
    plan = node.plan()
    node.memberships.do(plan, 0.0)
    assert node.members.members(DOMAIN) == {"uid"}
    node.members.leave(DOMAIN, "uid")
    node.memberships.ensure(plan)
    assert node.members.members(DOMAIN) == {"uid"}
    assert node.requests.list() == {DOMAIN}


def test_the_last_claim_that_is_undone_ends_the_domain(node: Node) -> None:
    first, second = node.plan("first"), node.plan("second")
    node.memberships.do(first, 0.0)
    node.memberships.do(second, 0.0)
    node.memberships.undo(first, 0.0)
    assert node.members.members(DOMAIN) == {"second"}
    node.memberships.undo(second, 0.0)
    assert node.requests.list() == frozenset()
    assert node.memberships.claims() == frozenset()


def test_a_claim_waits_for_its_daemon_and_no_longer_than_a_start_may_take(node: Node) -> None:
    plan = node.plan()
    node.memberships.wait(plan, 100.0, lambda: False)
    assert node.requests.waited == (DOMAIN, 12.0)
    node.memberships.wait(plan, 11.0, lambda: False)
    assert node.requests.waited == (DOMAIN, 11.0)


def test_people_are_told_the_domain(node: Node) -> None:
    key = share_key(DeviceUuid(GPU.uuid), "3")
    assert node.plan().describe(key).domain == DOMAIN


def test_a_claim_of_shares_is_prepared_again_after_a_reboot() -> None:
    assert UseShares.outlives_reboot
    assert JoinDomain.outlives_reboot
