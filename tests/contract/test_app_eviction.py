"""The whole driver as a process, sent off its node before the pods that have GPUs are."""

import signal
from pathlib import Path

from testbed.driver_container import users_of
from testbed.kubelet import ClaimName, KubeletClient

from worlds.process import ProcessNode, eventually, process_node

LABEL = "nvidia.com/dra-driver"
PAUSED = "paused-for-driver-upgrade"

# Its last answer is with the kubelet before it goes.
node = process_node("t4x4", starts=True, SHUTDOWN_DELAY="1")


def label(node: ProcessNode, value: str) -> None:
    node.label({LABEL: value})


def prepare(node: ProcessNode, kubelet: KubeletClient) -> ClaimName:
    claim = node.allocate("one", "gpu-1")
    kubelet.register()
    assert kubelet.prepare(claim)[claim.uid].error == ""
    return claim


def test_it_unprepares_the_claims_of_pods_that_are_evicted_after_it(node: ProcessNode) -> None:
    with KubeletClient(node.place.registry) as kubelet:
        claim = prepare(node, kubelet)
        label(node, PAUSED)
        node.driver.send(signal.SIGTERM)
        node.driver.wait_log("claims of evicted pods waited for")
        asked = len(node.api.seen("get", "nodes"))
        eventually(lambda: len(node.api.seen("get", "nodes")) > asked, "its look for the labels")
        assert kubelet.unprepare(claim)[claim.uid].error == ""
    assert node.driver.wait(timeout=20) == 0
    assert node.place.left_over() == []
    assert users_of(node.place.driver_root) == []


def test_it_ends_when_the_labels_are_back_and_its_claims_stay(node: ProcessNode) -> None:
    with KubeletClient(node.place.registry) as kubelet:
        prepare(node, kubelet)
    label(node, PAUSED)
    node.driver.send(signal.SIGTERM)
    node.driver.wait_log("claims of evicted pods waited for")
    label(node, "true")
    assert node.driver.wait(timeout=20) == 0
    assert len(node.place.records()) == 1


def test_the_gpus_are_let_go_of_before_the_kubelet_has_noticed(node: ProcessNode) -> None:
    node.driver.stop()
    node.driver.env["SHUTDOWN_DELAY"] = "8"
    node.driver.start()
    node.driver.wait_log("driver started")
    with KubeletClient(node.place.registry) as kubelet:
        kubelet.register()
        node.driver.wait_registered()
        eventually(lambda: open_nodes(node), "the driver to have GPUs open")
        label(node, PAUSED)
        node.driver.send(signal.SIGTERM)
        eventually(lambda: not open_nodes(node), "the driver to let go of them")
        assert node.driver.running()
    assert node.driver.wait(timeout=30) == 0


def open_nodes(node: ProcessNode) -> list[str]:
    """The GPUs' device nodes that the driver has open."""
    fds = Path(f"/proc/{node.driver.pid}/fd")
    dev = str(node.place.driver_root / "dev")
    found = []
    for link in fds.iterdir():
        try:
            path = str(link.readlink())
        except OSError:
            continue
        if path.startswith(dev):
            found.append(path)
    return found
