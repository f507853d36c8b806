"""The whole driver on a node whose disk is read-only or full when it starts."""

import signal
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from testbed.disk import SmallDisk
from testbed.kubelet import KubeletClient

from worlds.process import ProcessNode, eventually, process_node

READ_ONLY, FULL = "Read-only file system", "No space left on device"

Block = Callable[[SmallDisk], AbstractContextManager[None]]

node = process_node("h100x8", HEALTHCHECK_PORT="0")


@pytest.fixture
def disk(node: ProcessNode, small_disk: Callable[[Path], SmallDisk]) -> SmallDisk:
    """The disk on which the driver's directory is."""
    return small_disk(node.place.plugins / "gpu.nvidia.com")


@pytest.mark.parametrize(
    ("block", "reason"),
    [(SmallDisk.read_only, READ_ONLY), (SmallDisk.full, FULL)],
    ids=["read-only", "full"],
)
def test_a_driver_that_starts_on_a_blocked_disk_serves_as_soon_as_it_can(
    node: ProcessNode, disk: SmallDisk, block: Block, reason: str
) -> None:
    with block(disk):
        node.driver.start()
        node.driver.wait_log("driver started")
        assert len(node.wait_devices(8)) == 8
        (line,) = node.driver.events("socket not made")
        assert f"dra.sock cannot be made: {reason}; free space" in line["error"]
        port = node.driver.wait_log("health port opened")["port"]
        with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
            probe = health_pb2_grpc.HealthStub(channel)
            answer = probe.Check(health_pb2.HealthCheckRequest(), timeout=60)
        assert answer.status == health_pb2.HealthCheckResponse.SERVING, "a restart mends nothing"
        node.driver.send(signal.SIGUSR2)
        eventually(lambda: "hread 0x" in node.driver.log.read_text(), "the threads' stacks")
        assert node.driver.running()
    claim = node.allocate("one", "gpu-1")
    eventually(lambda: list(node.place.registry.glob("[!.]*")), "a socket")
    with KubeletClient(node.place.registry) as kubelet:
        kubelet.register()
        assert kubelet.prepare(claim)["uid-one"].error == ""
        assert kubelet.unprepare(claim)["uid-one"].error == ""
    assert len(node.driver.events("socket not made")) == 1
    assert node.driver.stop() == 0


def test_claims_outlast_a_driver_that_starts_on_a_full_disk(
    node: ProcessNode, disk: SmallDisk
) -> None:
    node.driver.start()
    node.wait_devices(8)
    kept, other = node.allocate("kept", "gpu-0"), node.allocate("other", "gpu-1")
    with KubeletClient(node.place.registry) as kubelet:
        kubelet.register()
        answer = kubelet.prepare(kept)["uid-kept"]
        assert answer.error == ""
    node.driver.kill()  # which leaves its sockets
    with disk.full():
        node.driver.start()
        node.driver.wait_log("driver started")
        assert len(node.place.cdi_files()) == 1
        removed = [Path(line["socket"]) for line in node.driver.events("dead socket removed")]
        assert node.place.plugins / "gpu.nvidia.com/dra.sock" in removed
    with eventually(lambda: reached(node), "the kubelet's way to the driver") as kubelet:
        assert list(kubelet.prepare(kept)["uid-kept"].devices) == list(answer.devices)
        assert kubelet.prepare(other)["uid-other"].error == ""
        for claim in (kept, other):
            assert kubelet.unprepare(claim)[claim.uid].error == ""
    assert node.place.cdi_files() == []


def reached(node: ProcessNode) -> KubeletClient | None:
    if not node.driver.events("sockets opened"):
        return None
    kubelet = KubeletClient(node.place.registry)
    kubelet.register()
    return kubelet


def test_a_driver_ends_on_a_disk_that_has_become_read_only(
    node: ProcessNode, disk: SmallDisk
) -> None:
    node.driver.start()
    node.driver.wait_log("driver started")
    with disk.read_only():
        assert node.driver.stop() == 0
    assert list(node.place.registry.iterdir()) == []
    node.driver.start()
    socket = node.place.plugins / "gpu.nvidia.com/dra.sock"
    assert node.driver.wait_log("dead socket removed")["socket"] == str(socket)
    node.driver.wait_log("sockets opened")
