"""A driver as a process whose share config changes before and after claims are prepared."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from testbed.apiserver.server import ApiServer
from testbed.kubelet import ClaimName, KubeletClient

from dra_driver.simulator.machine import Machine
from worlds.process import ProcessNode, eventually


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
            lambda: {device for device in self.devices() if "share" in device} == names,
            f"{count} shares",
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
def test_a_claim_that_is_prepared_keeps_a_division_and_its_end_is_heard_of(
    node: SharedNode,
) -> None:
    node.driver.start()
    node.shares(4)
    early = node.allocate("early", "gpu-0-share-1-of-4")
    assert node.prepare(early) == ""
    node.divide(2)
    eventually(lambda: len(node.driver.events("share config taken")) == 2, "the new config")
    node.shares(4)
    late = node.allocate("late", "gpu-0-share-2-of-4")
    assert node.prepare(late) == ""
    node.unprepare(early)
    node.unprepare(late)
    node.shares(2)


@pytest.mark.usefixtures("machine")
def test_a_driver_that_starts_after_a_change_keeps_what_claims_are_prepared_with(
    node: SharedNode,
) -> None:
    node.driver.start()
    node.shares(4)
    early = node.allocate("early", "gpu-0-share-1-of-4")
    assert node.prepare(early) == ""
    node.driver.stop()
    node.divide(0)
    node.driver.start()
    node.shares(4)
    assert node.prepare(early) == ""
    node.unprepare(early)
    node.shares(0)
    node.wait_device("gpu-0")
