"""The driver as an admin installs it, on a node of its own, which each test leaves as it was."""

import hashlib
import os
import re
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from image.recipe import NAME as IMAGE
from testbed import mps
from testbed.cluster import Cluster
from testbed.commands import TestbedError, run, wait_until
from testbed.installed_node import NAMESPACE, InstalledNode
from testbed.machine import DRIVER
from testbed.mounts import mounts_below

from dra_driver.mps.supervisor.cgroup import GROUP
from e2e.conftest import node_with_image
from e2e.pod_starts import starting_pods, summary, too_long
from e2e.scene import NAMESPACE as SCENES
from e2e.scene import Scene
from e2e.sharing import CGROUPS, PERCENTAGE, USUAL, Shared, mps_limits
from images import another_build

pytestmark = [pytest.mark.e2e, pytest.mark.stream("own")]

SECOND = "99.0.0"
"""Version and tag of the second build."""

COMPONENTS = ("kubelet-plugin", "mps-supervisor")

KINDS = (
    "clusterroles,clusterrolebindings,deviceclasses,resourceslices,priorityclasses,"
    "validatingadmissionpolicies,validatingadmissionpolicybindings"
)
IN_NAMESPACE = "daemonsets,controllerrevisions,serviceaccounts,networkpolicies,services,pods"

GROUPS = "control groups"

Footprint = dict[str, set[str]]


@pytest.fixture(scope="module")
def node(
    lasting_for_pods: Cluster, tmp_path_factory: pytest.TempPathFactory, image_archive: Path
) -> Iterator[InstalledNode]:
    folder = tmp_path_factory.mktemp("installed")
    with node_with_image(lasting_for_pods, folder, image_archive, RESCAN_INTERVAL="1") as node:
        name = f"docker.io/library/{IMAGE}:{SECOND}"
        second = node.folder / "second.tar"
        node.cluster.load(another_build(image_archive, second, version=SECOND, name=name))
        yield node


@pytest.fixture
def installed(node: InstalledNode) -> Iterator[InstalledNode]:
    """The node with the driver, which Helm has installed and takes away again."""
    with leaves_nothing(node):
        try:
            node.install()
            node.start_driver()
            yield node
        finally:
            node.uninstall()


@pytest.fixture
def scene(installed: InstalledNode) -> Iterator[Scene]:
    """Pods and claims of one test, which are gone before the driver is."""
    scene = Scene(installed)
    yield scene
    scene.clear()
    wait_until(lambda: installed.place.left_over() == [], "all of the claims to go", timeout=60)


@contextmanager
def leaves_nothing(node: InstalledNode) -> Iterator[None]:
    """Check that the driver, uninstalled, and a cleanup leave the node as it was."""
    before = footprint(node)
    yield
    cleanup(node)
    wait_until_as(node, before)


def wait_until_as(node: InstalledNode, before: Footprint) -> None:
    """Wait until the node is as it was."""

    def differences() -> Footprint:
        after = footprint(node)
        changed = {name: before[name] ^ after[name] for name in before}
        # This machine's other nodes have the same group: one that is there before may go too.
        changed[GROUPS] = changed.get(GROUPS, set()) - before.get(GROUPS, set())
        return {name: things for name, things in changed.items() if things}

    # The kubelet takes down the volumes of pods that are gone, and containerd their mounts.
    try:
        wait_until(lambda: not differences(), "the node to be as before", timeout=60)
    except TestbedError:
        assert differences() == {}


def footprint(node: InstalledNode) -> Footprint:
    """All that an installation may change, by what it is."""
    kubectl, place = node.cluster.kubectl, node.place
    get = ("get", "--output", "name")
    groups = (*CGROUPS.glob(GROUP), *CGROUPS.glob(f"*/{GROUP}"))
    return {
        "files": {
            look(path)
            for folder in (place.plugins, place.registry, place.cdi_root)
            for path in folder.rglob("*")
        },
        "mounts": set(mounts_below(Path(node.cluster.env["CLUSTER_STATE"]))),
        GROUPS: {str(path) for path in groups},
        "objects": set(kubectl(*get, KINDS).split()),
        "objects of the namespace": {
            one
            for one in kubectl(*get, IN_NAMESPACE, "--namespace", NAMESPACE).split()
            if one != "serviceaccount/default"
        },
        "GPUs": {f"{uuid} {settings}" for uuid, settings in node.machine.settings().items()}
        | {*node.machine.mig_devices()},
    }


def look(path: Path) -> str:
    """A path with what it is, by whom it may be used, and what it holds."""
    content = hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""
    return f"{path} {path.lstat().st_mode:o} {content}"


def cleanup(node: InstalledNode) -> None:
    """Take off the node what is left, as its admin does."""
    env = os.environ | node.place.env() | {"KUBECONFIG": node.cluster.env["KUBECONFIG"]}

    def done() -> bool:
        try:
            run((DRIVER, "cleanup", "--node-name", node.cluster.node), env=env)
        except TestbedError as error:
            # A daemon of another of this machine's nodes may be in the group just now.
            if f"{GROUP} cannot be removed: Device or resource busy" not in str(error):
                raise
            return False
        return True

    wait_until(done, "cleanup to remove everything", timeout=120)


def whole_and_shared(scene: Scene) -> tuple[str, str, Shared]:
    """Start a pod with a whole GPU and one with MPS; return both, and the claim of the latter."""
    whole = scene.pod("whole", templates=[scene.template()])
    shared = Shared.make(scene, gpu=mps_limits())
    part = shared.pod("part")
    scene.running(whole, part, timeout=120)
    return whole, part, shared


def images(node: InstalledNode) -> set[str]:
    """The images that the pods of the DaemonSets run."""
    return {
        container["image"] for pod in node.driver_pods() for container in pod["spec"]["containers"]
    }


def said_versions(node: InstalledNode) -> dict[str, str]:
    """What `dra-driver --version` says in the pods of the DaemonSets, by component."""
    said = {}
    for pod in node.driver_pods():
        metadata = pod["metadata"]
        where = ("exec", "--namespace", NAMESPACE, metadata["name"])
        said[metadata["labels"]["app.kubernetes.io/component"]] = node.cluster.kubectl(
            *where, "--", "dra-driver", "--version"
        ).strip()
    return said


def test_no_pod_start_fails_or_waits_while_the_driver_is_upgraded(
    installed: InstalledNode, scene: Scene
) -> None:
    whole, part, shared = whole_and_shared(scene)
    before = scene.container_ids(whole, part)
    daemon, gpu = shared.daemon(), scene.gpus(whole)
    with starting_pods(scene) as starts:
        starts.wait_for_more(3)
        began = time.monotonic()
        installed.upgrade(tag=SECOND)
        upgrade = (began, time.monotonic())
        assert images(installed) == {f"{IMAGE}:{SECOND}"}
        assert said_versions(installed) == dict.fromkeys(COMPONENTS, f"dra-driver {SECOND}")
        starts.wait_for_more(2)
    assert scene.container_ids(whole, part) == before
    assert (shared.daemon(), scene.gpus(whole)) == (daemon, gpu)
    usual, (meanwhile,) = starts.outside([upgrade]), starts.within([upgrade])
    assert meanwhile
    for name, some in (("without", usual), ("upgrade", meanwhile)):
        sys.stdout.write(f"{name}: {summary(some)}\n")
        assert too_long(some, usual) == []


@pytest.mark.long("tests/contract/test_cleanup.py::test_a_drained_node_is_left_clean")
def test_pods_of_the_image_take_off_a_node_what_the_driver_has_left(node: InstalledNode) -> None:
    before = footprint(node)
    del before[GROUPS]  # other nodes of this machine may make theirs meanwhile
    try:
        node.install()
        node.start_driver()
        scene = Scene(node)
        _, _, shared = whole_and_shared(scene)
        node.clean_up("--dry-run")
        node.wait_ready(timeout=240)  # it is tried again at growing intervals
        assert f"would remove: record of claim {SCENES}/{shared.claim}\n" in cleanups_log(node)
        assert shared.ask(PERCENTAGE) == "50.0"

        node.clean_up()
        said = wait_until(lambda: refusal(node), "the cleanup's reason", timeout=120)
        assert "claims are prepared on this node: " in said
        assert f"{SCENES}/{shared.claim} (" in said
        assert "bring it back (with the chart, cleanup.enabled=false), drain the node" in said
        assert shared.ask(PERCENTAGE) == "50.0"

        node.clean_up("--force")
        node.wait_ready(timeout=240)
        assert re.search(f"removed: /sys/fs/cgroup/.*{GROUP}", cleanups_log(node))
        assert mps.processes(node.place.plugins) == {}
        assert set(node.machine.settings().values()) == {USUAL}
        assert (node.place.left_over(), node.place.data.exists()) == ([], False)

        node.come_back()  # without a driver the kubelet cannot take the pods down
        scene.clear()
        node.clean_up()
        node.wait_ready(timeout=240)
        wait_until(lambda: node.slices() == [], "the kubelet to delete the slices", timeout=60)
    finally:
        node.uninstall()
    wait_until_as(node, before)


def cleanups_log(node: InstalledNode) -> str:
    """What the cleanup's only pod has said."""
    (pod,) = node.driver_pods()
    return node.cluster.api.log(pod["metadata"]["name"], "cleanup", NAMESPACE)


def refusal(node: InstalledNode) -> str:
    """What the cleanup's pod said when it could not do its work; empty before that."""
    for pod in node.driver_pods(labelSelector="app.kubernetes.io/component=cleanup"):
        for one in pod["status"].get("initContainerStatuses", []):
            for state in (one["state"], one.get("lastState", {})):
                message = str(state.get("terminated", {}).get("message", ""))
                if message and "uninstall it first" not in message:
                    return message
    return ""
