"""A driver as a process whose share config changes while claims wait for their preparing."""

import math
from collections.abc import Iterator
from pathlib import Path

import pytest
from testbed.kubelet import ClaimName, KubeletClient

from apiserver.server import ApiServer
from dra_driver.simulator.machine import Machine
from worlds.process import ProcessNode, eventually

CLAIMS = "resourceclaims"


class SharedNode(ProcessNode):
    """A node with simulated T4s and a share config."""

    def __init__(self, root: Path, api: ApiServer) -> None:
        super().__init__(root, api)
        self.file = root / "shares.yaml"
        self.driver.env["SHARE_CONFIG"] = str(self.file)

    def divide(self, replicas: int) -> None:
        temporary = self.root / "shares.new"
        resources = f"resources: [{{name: gpu, replicas: {replicas}, devices: [0]}}]"
        text = f"sharing: {{timeSlicing: {{{resources}}}}}" if replicas else ""
        temporary.write_text(f"version: v1\n{text}\n")
        temporary.replace(self.file)

    def shares(self, count: int) -> None:
        """Wait until the first GPU has so many shares."""
        names = {f"gpu-0-share-{index}-of-{count}" for index in range(count)}
        eventually(
            lambda: {one for one in self.devices() if "share" in one} == names, f"{count} shares"
        )

    def prepare(self, claim: ClaimName) -> str:
        with KubeletClient(self.place.registry) as kubelet:
            kubelet.register(driver=self.driver)
            error: str = kubelet.prepare(claim)[claim.uid].error
            return error

    def unprepare(self, claim: ClaimName) -> None:
        with KubeletClient(self.place.registry) as kubelet:
            kubelet.register()
            assert kubelet.unprepare(claim)[claim.uid].error == ""

    def delete(self, claim: ClaimName) -> None:
        """Delete it from the API server; what the kubelet has of it stays."""
        assert [one["metadata"]["name"] for one in self.api.objects(CLAIMS)] == [claim.name]
        self.api.delete_all(CLAIMS)

    def waiting(self) -> list[str]:
        """The claims that the driver has said it waits for."""
        return [
            name
            for line in self.driver.events("division waits for claims")
            for name in line["claims"]
        ]


@pytest.fixture
def node(tmp_path: Path, api: ApiServer) -> Iterator[SharedNode]:
    node = SharedNode(tmp_path, api)
    node.divide(4)
    yield node
    node.driver.kill()


@pytest.fixture
def machine(node: SharedNode) -> Machine:
    return node.install_gpus("t4-x4")


@pytest.mark.usefixtures("machine")
def test_a_claim_that_was_allocated_before_a_change_gets_its_share_and_the_change_waits(
    node: SharedNode,
) -> None:
    node.driver.start()
    node.shares(4)
    early = node.allocate("early", "gpu-0-share-1-of-4")
    node.divide(2)
    eventually(lambda: "default/early" in node.waiting(), "the driver to find the claim")
    node.shares(4)
    assert node.prepare(early) == ""
    node.delete(early)
    node.unprepare(early)
    node.shares(2)


@pytest.mark.usefixtures("machine")
def test_a_driver_that_starts_after_a_change_finds_what_was_allocated_before(
    node: SharedNode,
) -> None:
    node.driver.start()
    node.shares(4)
    node.driver.stop()
    early = node.allocate("early", "gpu-0-share-1-of-4")
    node.divide(0)
    node.driver.start()
    assert node.prepare(early) == ""
    node.shares(4)
    node.delete(early)
    node.unprepare(early)
    node.shares(0)
    node.wait_device("gpu-0")


@pytest.mark.usefixtures("machine")
def test_a_claim_that_is_deleted_unprepared_holds_nothing_up(node: SharedNode) -> None:
    node.driver.start()
    node.shares(4)
    early = node.allocate("early", "gpu-0-share-1-of-4")
    node.divide(2)
    eventually(lambda: "default/early" in node.waiting(), "the driver to find the claim")
    node.delete(early)
    node.shares(2)


@pytest.mark.usefixtures("machine")
def test_where_claims_cannot_be_listed_nothing_changes_until_they_can(
    node: SharedNode, api: ApiServer
) -> None:
    node.driver.start()
    node.shares(4)
    early = node.allocate("early", "gpu-0-share-1-of-4")
    fault = api.fail("list", CLAIMS, status=503, times=math.inf)
    node.divide(2)
    node.driver.wait_log("division not changed yet")
    node.shares(4)
    assert node.prepare(early) == ""
    node.delete(early)
    node.unprepare(early)
    fault.times = 0
    node.shares(2)


@pytest.mark.usefixtures("machine")
def test_a_driver_that_may_not_list_claims_says_so_and_divides_all_the_same(
    node: SharedNode, api: ApiServer
) -> None:
    node.driver.start()
    node.shares(4)
    api.fail("list", CLAIMS, status=403, times=math.inf)
    node.divide(2)
    node.shares(2)
    (line,) = node.driver.events("claims not looked for")
    assert "manifests/install.yaml" in line["reason"]
