"""Several drivers of one name on one node: of this program, and NVIDIA's own."""

import socket
import time

import pytest
from testbed.kubelet import KubeletClient

from worlds.nvidia import checkpoint
from worlds.process import SLICES, ProcessNode, eventually, process_node

QUIET_SECONDS = 3.0
"""Longer than a driver takes to put back what another one has changed."""

node = process_node("t4x4")


def registered(node: ProcessNode, pod: str) -> None:
    with KubeletClient(node.place.registry, pattern=f"*-{pod}-reg.sock") as kubelet:
        kubelet.register()


def writes(node: ProcessNode) -> int:
    return sum(len(node.api.seen(verb, SLICES)) for verb in ("create", "update", "delete"))


def is_quiet(node: ProcessNode) -> bool:
    """Whether nobody writes slices for some seconds."""
    before = writes(node)
    time.sleep(QUIET_SECONDS)
    return writes(node) == before


def test_of_two_drivers_the_one_that_the_kubelet_registered_last_publishes(
    node: ProcessNode,
) -> None:
    old = node.driver
    old.env["POD_UID"] = "old"
    new = node.make_driver(**(old.env | {"POD_UID": "new", "EXCLUDE_GPUS": "0"}))
    try:
        old.start()
        registered(node, "old")
        node.wait_devices(4)
        new.start()
        new.wait_log("publishing failed")
        assert is_quiet(node)
        assert len(node.devices()) == 4  # it never becomes ready: the old one goes on

        registered(node, "new")
        node.wait_devices(3)
        assert is_quiet(node)
        assert len(node.devices()) == 3

        new.kill()
        node.wait_devices(4)  # the kubelet calls the old one again
    finally:
        new.kill()
    said = " ".join(str(event["error"]) for event in old.events("publishing failed"))
    assert "the driver that the kubelet registered last publishes" in said
    assert "dra-new.sock" in said


def test_a_driver_that_ends_is_no_rival_of_the_next(node: ProcessNode) -> None:
    for pod in ("one", "two"):
        node.driver = node.make_driver(**(node.driver.env | {"POD_UID": pod}))
        node.driver.start()
        registered(node, pod)
        node.wait_devices(4)
        assert node.driver.events("publishing failed") == []
        if pod == "one":
            node.driver.kill()
    assert [path.name for path in (node.place.data / "registered").iterdir()] == ["dra-two.sock"]
    node.driver.stop()
    assert list((node.place.data / "registered").iterdir()) == []


@pytest.mark.parametrize("pod", ["", "ours"])
def test_a_node_is_not_taken_over_while_nvidias_driver_runs(node: ProcessNode, pod: str) -> None:
    node.place.data.mkdir(parents=True)
    file = node.place.data / "checkpoint.json"
    file.write_bytes(checkpoint({}))
    theirs = node.place.data / "dra.sock"
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(theirs))
        listening.listen()
        node.driver.env["POD_UID"] = pod
        node.driver.start()
        line = node.driver.wait_log("node not taken over from nvidia's driver")
        assert f"NVIDIA's DRA driver runs on this node, and listens on {theirs}" in line["reason"]
        assert "remove NVIDIA's DRA driver from this node" in line["advice"]
        node.driver.wait_log("publishing failed" if pod else "socket not made")
        assert is_quiet(node)
        assert file.exists()
        assert writes(node) == 0
    theirs.unlink(missing_ok=True)
    node.wait_devices(4)
    eventually(lambda: not file.exists(), "the checkpoint to be taken over")
