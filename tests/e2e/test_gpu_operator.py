"""GPU Operator on a node: its driver manager has the GPU driver replaced; its DaemonSet runs us.

There is no GPU Operator here. What its driver manager does is done by kubectl in its order: it
gives labels of the Node another value, by which DaemonSets leave, then evicts the pods that have
GPUs, unloads the driver, and puts the labels back before the next driver is there.
"""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from testbed.cluster import Cluster
from testbed.commands import wait_until
from testbed.driver_container import DriverContainer, users_of
from testbed.installed_node import LABEL, NAMESPACE, InstalledNode
from testbed.pods import wait_gone, wait_running

from e2e import operator
from e2e.conftest import node_with_image
from e2e.kubernetes import RUNTIME
from e2e.scene import NAMESPACE as SCENES
from e2e.scene import Scene
from e2e.sharing import Shared, mps_limits

pytestmark = [pytest.mark.e2e, pytest.mark.stream("own")]

PAUSED = "paused-for-driver-upgrade"
OPERANDS = ("operator-validator", "container-toolkit", "dcgm-exporter")
"""Of GPU Operator's own DaemonSets, those whose labels stand here for all."""

NEW_DRIVER = "590.48.10"
PATIENCE = 60.0
"""Seconds in which claims are unprepared and our pods gone, of the five minutes that there are."""


@pytest.fixture(scope="module")
def node(
    lasting_for_pods: Cluster, tmp_path_factory: pytest.TempPathFactory, image_archive: Path
) -> Iterator[InstalledNode]:
    folder = tmp_path_factory.mktemp("operator")
    with node_with_image(
        lasting_for_pods, folder, image_archive, platform="gpu-operator", RESCAN_INTERVAL="1"
    ) as node:
        yield node


@pytest.fixture
def installed(node: InstalledNode) -> Iterator[InstalledNode]:
    """The node with the driver, by the values for GPU Operator."""
    try:
        node.install()
        node.start_driver()
        yield node
    finally:
        node.uninstall()


@pytest.fixture
def scene(installed: InstalledNode) -> Iterator[Scene]:
    scene = Scene(installed)
    yield scene
    scene.clear()


class DriverManager:
    """What GPU Operator's driver manager does to a node, step by step."""

    def __init__(self, node: InstalledNode) -> None:
        self._node = node
        self._kubectl = node.cluster.kubectl
        self._name = node.cluster.node

    def pause(self) -> None:
        """Have DaemonSets leave: ours, by the label that is named in its settings, among them."""
        self._label(PAUSED)

    def resume(self) -> None:
        """Have them back."""
        self._kubectl("uncordon", self._name)
        self._label("true")

    def evict(self, *pods: str) -> None:
        """Evict pods that have GPUs, and wait until they are gone."""
        self._kubectl("cordon", self._name)
        for pod in pods:
            eviction = {
                "apiVersion": "policy/v1",
                "kind": "Eviction",
                "metadata": {"name": pod, "namespace": SCENES},
            }
            path = f"/api/v1/namespaces/{SCENES}/pods/{pod}/eviction"
            self._kubectl("create", "--raw", path, "-f", "-", stdin=json.dumps(eviction))
        wait_gone(self._node.cluster.api, SCENES, pods, timeout=PATIENCE)

    def _label(self, value: str) -> None:
        labels = (LABEL, *(f"nvidia.com/gpu.deploy.{operand}" for operand in OPERANDS))
        words = (f"{label}={value}" for label in labels)
        self._kubectl("label", "--overwrite", "node", self._name, *words)


def whole_and_mps(scene: Scene) -> tuple[str, str]:
    """Start a pod with a whole GPU and one with a GPU under MPS."""
    whole = scene.pod("whole", templates=[scene.template()])
    shared = Shared.make(scene, gpu=mps_limits())
    part = shared.pod("part")
    scene.running(whole, part, timeout=120)
    shared.daemon()
    return whole, part


@pytest.mark.long(
    "tests/contract/test_app_changes.py::test_an_evicted_driver_waits_for_claims_and_closes_gpus",
    "tests/contract/test_app.py"
    "::test_gpus_are_published_and_a_claim_that_waits_is_prepared_once_their_driver_is_loaded",
)
@pytest.mark.parametrize("first", ["labels", "pods"])
def test_a_node_gets_another_gpu_driver(
    first: str, installed: InstalledNode, scene: Scene, tmp_path: Path
) -> None:
    manager = DriverManager(installed)
    container = DriverContainer(installed.machine, installed.folder / "next")
    pods = whole_and_mps(scene)
    assert users_of(installed.machine.root) != []
    if first == "labels":
        manager.pause()
        manager.evict(*pods)
    else:
        manager.evict(*pods)
        manager.pause()
    wait_gone(scene.api, NAMESPACE, timeout=PATIENCE)
    container.unload()
    try:
        manager.resume()
        installed.wait_ready()
        container.load(("--userspace", "stand-in", "--driver-version", NEW_DRIVER))
        wait_until(lambda: versions(installed) == {NEW_DRIVER}, "the new driver", timeout=60)
        again = scene.pod("again", templates=[scene.template("again")])
        scene.running(again, timeout=120)
        assert len(scene.gpus(again)) == 1
        scene.clear()
    finally:
        installed.uninstall()
        container.down()
        installed.machine.up()
        installed.machine.mount()


def versions(node: InstalledNode) -> set[str]:
    """The versions of the GPU driver that the node's published devices name."""
    return {
        str(device["attributes"]["driverVersion"]["version"])
        for one in node.slices()
        for device in one.get("devices") or []  # null in an older API server's empty lists
        if "driverVersion" in device.get("attributes", {})
    }


@pytest.fixture
def operators(node: InstalledNode) -> Iterator[InstalledNode]:
    """The node with the DaemonSet that the operator makes, which runs this driver's image."""
    kubectl, name = node.cluster.kubectl, node.cluster.node
    settings = {
        variable: value.replace("/driver-root", "/run/nvidia/driver")
        for variable, value in node.pod_environment().items()
    }
    settings |= {"RESCAN_INTERVAL": "1", "MIG": "existing"}
    things = yaml.safe_dump_all(operator.manifests(node, settings))
    kubectl("apply", "-f", "-", stdin=things)
    kubectl("label", "--overwrite", "node", name, f"{operator.LABEL}=true")
    admin = "resource.kubernetes.io/admin-access=true"
    kubectl("label", "--overwrite", "namespace", SCENES, admin)
    try:
        wait_running(node.cluster.api, operator.NAMESPACE, timeout=120)
        node.wait_published()
        yield node
    finally:
        kubectl("delete", "-f", "-", "--wait", stdin=things, timeout=120)
        kubectl("label", "node", name, f"{operator.LABEL}-")
        kubectl("label", "namespace", SCENES, "resource.kubernetes.io/admin-access-")


def root_is_private() -> bool:
    """Tell whether no mount on this machine's / is seen elsewhere; systemd makes it shared."""
    lines = Path("/proc/self/mountinfo").read_text().splitlines()
    (last,) = [line.split() for line in lines if line.split()[4] == "/"][-1:]
    return not last[6].startswith(("shared:", "master:"))


@pytest.mark.skipif(
    RUNTIME == "crio" and root_is_private(),
    reason="CRI-O gives / to a pod, because its images are below it, only where / is shared",
)
def test_the_operators_own_daemon_set_runs_this_driver(operators: InstalledNode) -> None:
    scene = Scene(operators)
    whole = scene.pod("whole", templates=[scene.template()])
    scene.running(whole, timeout=120)
    # As its validator and its DCGM have them, the latter also when it comes later than others.
    one = scene.template("one", adminAccess=True)
    every = scene.template("every", allocationMode="All", adminAccess=True)
    validator = scene.pod("validator", templates=[one])
    dcgm = scene.pod("dcgm", templates=[every])
    scene.running(validator, dcgm, timeout=120)
    seen = [len(scene.gpus(pod)) for pod in (validator, dcgm, whole)]
    assert seen == [1, 8, 1]
    log = [json.loads(line) for line in log_of(operators).splitlines() if line.startswith("{")]
    assert [line for line in log if line["level"] == "error"] == []

    manager = DriverManager(operators)
    manager.evict(whole, validator, dcgm)
    kubectl, name = operators.cluster.kubectl, operators.cluster.node
    kubectl("label", "--overwrite", "node", name, f"{operator.LABEL}={PAUSED}")
    wait_gone(scene.api, operator.NAMESPACE, timeout=PATIENCE)
    assert users_of(operators.machine.root) == []
    kubectl("uncordon", name)
    kubectl("label", "--overwrite", "node", name, f"{operator.LABEL}=true")
    wait_running(scene.api, operator.NAMESPACE, timeout=120)
    again = scene.pod("again", templates=[scene.template("again")])
    scene.running(again, timeout=120)
    scene.clear()


def log_of(node: InstalledNode) -> str:
    """What the driver in the operator's DaemonSet has logged."""
    (pod,) = node.cluster.api.all("Pod", operator.NAMESPACE)
    return node.cluster.api.log(pod["metadata"]["name"], "gpus", operator.NAMESPACE)
