"""What of the node the driver's pod has mounted is needed: without it, this is what fails.

The driver runs as a process in a mount namespace of its own, where an empty read-only file system
covers one path, as the container's read-only root does for what is not mounted into it.
"""

import subprocess
from pathlib import Path

import pytest
from testbed.driver import DriverProcess
from testbed.kubelet import KubeletClient
from testbed.machine import DRIVER
from testbed.mounts import unmount_all

from worlds.process import ProcessNode, process_node

COVERED = """#!/bin/sh
cover='mount -t tmpfs -o ro tmpfs "$0" && exec "$@"'
exec unshare --mount sh -c "$cover" "{covered}" "{driver}" "$@"
"""

pytestmark = pytest.mark.usefixtures("needs_root")

node = process_node("t4x4")


def without(node: ProcessNode, path: Path) -> DriverProcess:
    """Start the driver where there is nothing at a path, and nothing can be made."""
    for folder in (node.place.registry, node.place.plugins, node.place.cdi_root):
        folder.mkdir(exist_ok=True)
    program = node.root / "covered"
    program.write_text(COVERED.format(covered=path, driver=DRIVER))
    program.chmod(0o755)
    node.driver.program = program
    node.driver.start()
    return node.driver


def test_without_the_registration_folder_the_driver_is_unknown(node: ProcessNode) -> None:
    said = without(node, node.place.registry).wait_log("socket not made")["error"]
    assert f"socket {node.place.registry}/" in said
    assert "cannot be made: Read-only file system" in said


def test_without_the_plugins_folder_there_is_no_socket_for_the_kubelets_calls(
    node: ProcessNode,
) -> None:
    said = without(node, node.place.plugins).wait_log("socket not made")["error"]
    assert f"socket {node.place.data}/dra.sock cannot be made: Read-only file system" in said


def test_without_the_folder_of_cdi_specs_no_claim_is_prepared(node: ProcessNode) -> None:
    without(node, node.place.cdi_root)
    node.wait_devices(4)
    claim = node.allocate("one", "gpu-1")
    with KubeletClient(node.place.registry) as kubelet:
        kubelet.register()
        assert "Read-only file system" in kubelet.prepare(claim, timeout=10)["uid-one"].error


def test_without_the_kubelets_list_a_gone_claim_stays_prepared(node: ProcessNode) -> None:
    pods = node.place.plugins.parent / "pod-resources"
    pods.mkdir()
    groups = node.root / "cgroup"
    (groups / "kubepods").mkdir(parents=True)
    (groups / "cgroup.controllers").touch()
    node.driver.env |= {"CGROUP_ROOT": str(groups)}
    said = without(node, pods).wait_log("claims that are gone will stay prepared")["reason"]
    assert f"PodResources API is not at {pods}/kubelet.sock: mount that folder" in said


def test_without_the_driver_root_there_is_no_nvml(node: ProcessNode) -> None:
    driver = without(node, node.place.driver_root / "usr")
    assert "libnvidia-ml.so.1" in driver.wait_log("gpus not available")["cause"]


def test_without_the_device_nodes_there_are_no_gpus(node: ProcessNode) -> None:
    driver = without(node, node.place.driver_root / "dev")
    cause = driver.wait_log("gpus not available")["cause"]
    assert "has no device nodes of the GPU driver" in cause
    assert "or mount the node's /dev" in cause
    assert node.wait_devices(0) == []


@pytest.mark.parametrize(("propagation", "is_seen"), [("slave", True), ("private", False)])
def test_only_with_propagation_a_driver_is_found_that_is_mounted_later(
    node: ProcessNode, propagation: str, is_seen: bool
) -> None:
    """`slave` is what HostToContainer asks for, `private` what a mount has by default."""
    root, there = node.root / "later", node.place.driver_root
    root.mkdir()
    subprocess.run(["mount", "--bind", root, root], check=True)
    subprocess.run(["mount", "--make-shared", root], check=True)
    pod = ("unshare", "--mount", "--propagation", propagation)
    wait = ("sh", "-c", 'echo ready; read line; exec "$@" 2>&1', "-")
    roots = (f"--nvidia-driver-root={root}", f"--container-driver-root={root}")
    others = (f"--sys-root={there}/sys", f"--proc-root={there}/proc")
    words = [*pod, *wait, str(DRIVER), "inspect", *roots, *others]
    pipe = subprocess.PIPE
    try:
        with subprocess.Popen(words, stdin=pipe, stdout=pipe, text=True) as inspect:
            assert inspect.stdout is not None
            assert inspect.stdout.readline() == "ready\n"
            subprocess.run(["mount", "--bind", there, root], check=True)
            said, _ = inspect.communicate("look\n", timeout=60)
    finally:
        unmount_all(root)
    assert ("would publish" in said, "libnvidia-ml.so.1" in said) == (is_seen, not is_seen)
