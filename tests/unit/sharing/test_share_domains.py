"""Claims of shares under MPS join their domain, wait for it and leave it; no supervisor runs."""

from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

import make
from dra_driver.devices.shares import Division, Share, ShareStrategy
from dra_driver.errors import StateError
from dra_driver.mps.domain import Domain, DomainDevice, domain_of, shared_domain
from dra_driver.mps.members import SharedDomains
from dra_driver.mps.requests import DomainRequests
from dra_driver.sharing.base import DeviceUuid, Group, ShareUnit, SharingPlan, share_key
from dra_driver.sharing.shares import Shares, limits_in

GPU, OTHER = make.gpu(0), make.gpu(1)
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
        modes: Any = None
        self.shares = Shares(
            self.requests,
            self.members,
            modes,
            lambda: 10.0,
            memory=make.limited_by_mps(),
            ready_seconds=2.0,
        )

    def plan(self, claim: str = "uid", division: Division = TENTH) -> SharingPlan:
        share = Share(of=GPU, index=3, division=division)
        unit = ShareUnit(name="gpu-0-share-3-of-10", request="a", gpu=GPU, share=share)
        config: Any = make.gpu_config(None)
        (made,) = self.shares.plan([Group(claim=claim, config=config, shares=(unit,))], 0.0)
        return made


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def test_a_membership_that_is_lost_is_made_again(node: Node) -> None:
    plan = node.plan()
    node.shares.apply(plan, 0.0)
    assert node.members.members(DOMAIN) == {"uid"}
    node.members.leave(DOMAIN, "uid")
    node.shares.ensure(plan)
    assert node.members.members(DOMAIN) == {"uid"}
    assert node.requests.list() == {DOMAIN}


def test_the_last_claim_that_is_undone_ends_the_domain(node: Node) -> None:
    first, second = node.plan("first"), node.plan("second")
    node.shares.apply(first, 0.0)
    node.shares.apply(second, 0.0)
    node.shares.undo(first, 0.0)
    assert node.members.members(DOMAIN) == {"second"}
    node.shares.undo(second, 0.0)
    assert node.requests.list() == frozenset()
    assert node.shares.claims() == frozenset()


def test_a_claim_waits_for_its_daemon_and_no_longer_than_a_start_may_take(node: Node) -> None:
    plan = node.plan()
    node.shares.wait_ready(plan, 100.0, lambda: False)
    assert node.requests.waited == (DOMAIN, 12.0)
    node.shares.wait_ready(plan, 11.0, lambda: False)
    assert node.requests.waited == (DOMAIN, 11.0)


def test_people_are_told_the_domain(node: Node) -> None:
    key = share_key(DeviceUuid(GPU.uuid), "3")
    assert Shares.describe(node.plan(), key).domain == DOMAIN


def test_gpus_that_one_daemon_serves_have_a_domain_by_the_name_of_their_resource(
    node: Node,
) -> None:
    plan = node.plan(division=replace(TENTH, together=(GPU.uuid, OTHER.uuid)))
    domain = domain_of(plan.changes["domain"])
    assert domain.id == shared_domain("nvidia.com.gpu")
    assert domain.devices == (DomainDevice(uuid=GPU.uuid), DomainDevice(uuid=OTHER.uuid))


def test_a_claim_of_shares_is_prepared_again_after_a_reboot() -> None:
    assert Shares.survives_reboot is True


def test_a_record_from_before_there_were_parts_has_consumed_nothing(node: Node) -> None:
    plan = node.plan()
    shares: Any = plan.changes["shares"]
    older = {
        key: {name: one for name, one in value.items() if not name.startswith("consumed")}
        for key, value in shares.items()
    }
    (found,) = limits_in(replace(plan, changes={**plan.changes, "shares": older})).values()
    assert (found.consumed_memory_mib, found.consumed_cores) == (0, 0)


def test_a_plan_whose_limits_cannot_be_read_says_so(node: Node) -> None:
    plan = node.plan()
    with pytest.raises(StateError, match="cannot be read"):
        limits_in(replace(plan, changes={**plan.changes, "shares": {"key": {}}}))
