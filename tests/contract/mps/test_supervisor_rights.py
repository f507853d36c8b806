"""What the supervisor's pod has of the node is needed: without it, this is what a claim hears.

The supervisor runs as a process in a mount namespace of its own, which shares the plugins folder's
mounts with the host as `Bidirectional` asks for; an empty read-only file system covers what is
taken away, as the container's read-only root does. The driver is a process of the host.
"""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from testbed import mps
from testbed.apiserver.server import ApiServer
from testbed.driver import SupervisorProcess
from testbed.kubelet import ClaimName, KubeletClient
from testbed.machine import DRIVER
from testbed.mounts import unmount_all

import make
from dra_driver.mps.daemon import mounts
from dra_driver.mps.files import DomainPaths
from dra_driver.simulator.driver_root import Options
from worlds.configs import HALF
from worlds.process import ProcessNode, eventually

IN_MOUNTS = """#!/bin/sh
exec {around} unshare --mount --propagation {propagation} \\
    sh -c '{before} && exec "$@"' "{path}" "{driver}" "$@"
"""
COVER = 'mount --make-slave "$(findmnt -no TARGET -T "$0")" && mount -t tmpfs -o ro tmpfs "$0"'
OWN_PIDS = "unshare --pid --fork --kill-child --mount-proc --propagation unchanged"
TWO_SHARES = """
version: v1
sharing: {mps: {resources: [{name: nvidia.com/gpu, replicas: 2}]}}
"""
BIDIRECTIONAL, HOST_TO_CONTAINER = "unchanged", "slave"

pytestmark = pytest.mark.usefixtures("needs_root", "real_userspace")


class Supervised(ProcessNode):
    """A node with a driver, and a supervisor in mounts of its own."""

    def __init__(self, root: Path, api: ApiServer) -> None:
        super().__init__(root, api)
        self.supervisor = SupervisorProcess(
            self.place, root / "supervisor.log", {"SHM_SIZE": "16Mi"}
        )

    def begin(
        self,
        *,
        propagation: str = BIDIRECTIONAL,
        before: str = "true",
        path: object = "",
        around: str = "",
        devices: int = 4,
    ) -> None:
        """Start both; the supervisor after what is done `before` in its mounts, with a path."""
        program = self.root / "in-mounts"
        words = {"propagation": propagation, "before": before, "path": path, "around": around}
        program.write_text(IN_MOUNTS.format(**words, driver=DRIVER))
        program.chmod(0o755)
        self.supervisor.program = program
        self.supervisor.start()
        self.driver.start()
        self.wait_devices(devices)

    def claim(self) -> ClaimName:
        return self.allocate("one", "gpu-0", configs=[make.config(sharing=HALF)])

    def said(self) -> str:
        """What the claim's pod hears."""
        claim = self.claim()
        with KubeletClient(self.place.registry) as kubelet:
            kubelet.register()
            return str(kubelet.prepare(claim)[claim.uid].error)

    def end(self) -> None:
        self.driver.kill()
        self.supervisor.kill()
        mps.end_all(self.place.plugins)
        for folder in (self.place.mps / "domains").glob("*"):
            for mounted in DomainPaths(folder=folder).mounted:
                mounts.unmount_all(folder / mounted)


@pytest.fixture
def node(tmp_path: Path, api: ApiServer) -> Iterator[Supervised]:
    node = Supervised(tmp_path, api)
    node.install_gpus("t4x4", Options(userspace="real"))
    plugins = node.place.plugins
    plugins.mkdir()
    subprocess.run(["mount", "--bind", plugins, plugins], check=True)
    subprocess.run(["mount", "--make-shared", plugins], check=True)
    yield node
    node.end()
    unmount_all(plugins)


def test_with_all_its_rights_a_claim_gets_its_daemon(node: Supervised) -> None:
    node.begin()
    assert node.said() == ""
    node.supervisor.kill()
    assert set(mps.processes(node.place.plugins).values()) == {"uid-one"}


def test_without_bidirectional_mounts_the_supervisor_does_not_begin(node: Supervised) -> None:
    node.begin(propagation=HOST_TO_CONTAINER)
    assert node.supervisor.wait() == 1
    assert "mount that folder with mountPropagation: Bidirectional" in node.supervisor.tail()
    assert "the MPS supervisor is not running on this node" in node.said()


def test_without_the_plugins_folder_the_driver_sees_no_supervisor(node: Supervised) -> None:
    node.begin(before=f'{COVER} && mount --make-shared "$0"', path=node.place.plugins)
    said = node.supervisor.wait_log("mps supervisor waits")["reason"]
    assert said.startswith(f"cannot make {node.place.mps}/")
    assert "Read-only file system" in said
    assert "the MPS supervisor is not running on this node" in node.said()


def test_without_the_driver_root_there_are_no_programs(node: Supervised) -> None:
    node.begin(before=COVER, path=node.place.driver_root / "usr/bin")
    assert "nvidia-cuda-mps-control not found under" in node.said()


def test_without_the_device_nodes_no_gpu_is_given_to_a_daemon(node: Supervised) -> None:
    node.begin(before=COVER, path=node.place.driver_root / "dev")
    said = node.said()
    assert "its device nodes are not in this /dev" in said
    assert "or mount the node's /dev" in said


def test_without_the_hosts_control_groups_the_daemon_would_end_with_the_container(
    node: Supervised,
) -> None:
    node.supervisor.env["CGROUP_ROOT"] = "/sys/fs/cgroup"
    node.begin(before=COVER, path="/sys/fs/cgroup")
    said = node.said()
    assert "no control groups below /sys/fs/cgroup, so the MPS daemon would end with this" in said
    assert "mount the host's /sys/fs/cgroup there" in said


def test_without_the_hosts_pids_the_supervisor_does_not_begin(node: Supervised) -> None:
    node.begin(around=OWN_PIDS)
    assert node.supervisor.wait() == 1
    assert "this container has its own PID namespace" in node.supervisor.tail()
    assert "set hostPID: true in its pod" in node.supervisor.tail()


def test_in_a_container_with_pids_of_its_own_daemons_end_with_it(node: Supervised) -> None:
    """As in a pod whose containers share PIDs: the supervisor is not the first process there."""
    node.begin(around=f"{OWN_PIDS} sh -c '\"$@\" & wait' -")
    assert node.said() == ""
    assert set(mps.processes(node.place.plugins).values()) == {"uid-one"}
    node.supervisor.kill()
    eventually(lambda: not mps.processes(node.place.plugins), "the daemon's end")


@pytest.mark.parametrize(("propagation", "is_seen"), [("slave", True), ("private", False)])
def test_only_with_propagation_programs_are_found_that_are_mounted_later(
    node: Supervised, propagation: str, is_seen: bool
) -> None:
    """`slave` is what HostToContainer asks for, `private` what a mount has by default."""
    root, there = node.root / "later", node.place.driver_root
    root.mkdir()
    subprocess.run(["mount", "--bind", root, root], check=True)
    subprocess.run(["mount", "--make-shared", root], check=True)
    roots = {"NVIDIA_DRIVER_ROOT": str(root), "DRIVER_ROOT_CTR_PATH": str(root)}
    node.supervisor.env |= roots
    node.driver.env |= roots
    try:
        node.begin(before=f'mount --make-{propagation} "$0"', path=root, devices=0)
        node.supervisor.wait_log("mps supervisor started")
        subprocess.run(["mount", "--bind", there, root], check=True)
        node.wait_devices(4)
        said = node.said()
        assert (said == "", f"libnvidia-ml.so.1 not found under {root}" in said) == (
            is_seen,
            not is_seen,
        )
    finally:
        node.end()
        unmount_all(root)


@pytest.mark.parametrize(("propagation", "is_seen"), [("slave", True), ("private", False)])
def test_only_with_propagation_the_driver_sees_a_daemon_whose_supervisor_is_gone(
    node: Supervised, propagation: str, is_seen: bool
) -> None:
    """The driver's mounts are those of its container: `slave` is what HostToContainer asks for."""
    config = node.root / "shares.yaml"
    config.write_text(TWO_SHARES)
    node.driver.env |= {"SHARE_CONFIG": str(config), "MPS_READY_TIMEOUT": "20"}
    driver = node.root / "driver-in-mounts"
    words = {"propagation": propagation, "before": "true", "path": "", "around": ""}
    driver.write_text(IN_MOUNTS.format(**words, driver=DRIVER))
    driver.chmod(0o755)
    node.driver.program = driver
    node.driver.start()
    node.wait_device("gpu-0-single-share-1-of-2")
    node.supervisor.start()
    node.supervisor.wait_log("mps supervisor started")
    with KubeletClient(node.place.registry) as kubelet:
        kubelet.register()
        first, second = (node.allocate(f"of-{n}", f"gpu-0-single-share-{n}-of-2") for n in range(2))
        kubelet.must_prepare(first)
        node.supervisor.kill()
        assert mps.processes(node.place.plugins)
        said = str(kubelet.prepare(second)[second.uid].error)
    not_running = "the MPS supervisor is not running on this node"
    assert (said == "", not_running in said) == (is_seen, not is_seen), said
