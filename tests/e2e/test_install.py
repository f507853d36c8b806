"""The driver as an admin installs it: the built image, by Helm or kubectl, as DaemonSets.

A node of its own. Each test leaves it as it was before: what is on its disk, mounted, in control
groups and set on its GPUs, and the objects of the cluster, are compared.
"""

import hashlib
import os
import re
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest
import yaml
from image.recipe import NAME as IMAGE
from image.recipe import version
from testbed import mps
from testbed.commands import REPOSITORY, TestbedError, run, wait_until
from testbed.installed_node import NAMESPACE, InstalledNode
from testbed.machine import DRIVER
from testbed.mounts import mounts_below

from dra_driver.mps.cgroup import GROUP
from e2e.conftest import missing
from e2e.kubernetes import cluster_of
from e2e.needs import cannot_run
from e2e.scene import NAMESPACE as SCENES
from e2e.scene import Scene
from e2e.sharing import CGROUPS, PERCENTAGE, UNDER_MPS, USUAL, Shared, mps_limits

pytestmark = [pytest.mark.e2e, pytest.mark.own_cluster]

SECOND = "second"
"""Tag of the second build."""

KINDS = (
    "clusterroles,clusterrolebindings,deviceclasses,resourceslices,priorityclasses,"
    "validatingadmissionpolicies,validatingadmissionpolicybindings"
)
IN_NAMESPACE = "daemonsets,controllerrevisions,serviceaccounts,networkpolicies,services,pods"

GROUPS = "control groups"

Footprint = dict[str, set[str]]


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory, image_archive: Path) -> Iterator[InstalledNode]:
    if reason := missing():
        cannot_run(reason)
    # With a pod's UID in it the driver's socket leaves nine bytes for the cluster's name.
    name = "i" + hashlib.sha256(os.environ.get("E2E_CLUSTER", "e2e").encode()).hexdigest()[:7]
    node = InstalledNode(
        cluster_of(name, for_pods=True),
        tmp_path_factory.mktemp("installed"),
        image_archive,
        driver_env={"RESCAN_INTERVAL": "1"},
    )
    node.clear()
    try:
        node.up_bare(print)
        if not node.can_run_mps:
            cannot_run("NVIDIA's MPS programs could not be had")
        full = f"docker.io/library/{IMAGE}"
        node.cluster.ctr("images", "tag", f"{full}:{version()}", f"{full}:{SECOND}")
        Scene.prepare(node)
        yield node
    finally:
        node.down()


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
    """Check that the driver, uninstalled, and `dra-driver cleanup` leave the node as it was."""
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
            str(path)
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


@contextmanager
def starting_pods(scene: Scene) -> Iterator[Callable[[], int]]:
    """Start pods with GPUs meanwhile, one after another; yields what says how many were started.

    A pod whose first preparation fails is an error at the end, though it runs a minute later.
    """
    template = scene.template("each")
    stop, warnings = threading.Event(), list[str]()
    started = list[str]()

    def start() -> None:
        while not stop.is_set():
            pod = scene.pod(f"each-{len(started)}", templates=[template])
            scene.running(pod, timeout=60)
            events = scene.api.all("Event", SCENES, fieldSelector=f"involvedObject.name={pod}")
            warnings.extend(
                f"{pod}: {one['reason']}: {one['message']}"
                for one in events
                if one["type"] == "Warning" and one["reason"] != "FailedScheduling"
            )
            scene.delete(pod)
            started.append(pod)

    with ThreadPoolExecutor(1) as pool:
        loop = pool.submit(start)
        try:
            yield lambda: -1 if loop.done() else len(started)
        finally:
            stop.set()
            loop.result(timeout=180)
    assert warnings == []


def test_pods_get_whole_gpus_and_mps_from_an_installed_driver(
    installed: InstalledNode, scene: Scene
) -> None:
    whole, part, shared = whole_and_shared(scene)
    assert images(installed) == {f"{IMAGE}:{version()}"}
    assert len(scene.gpus(whole)) == 1
    assert shared.gpu(part) not in scene.gpus(whole)
    assert shared.settings(shared.gpu(part)) == UNDER_MPS
    assert shared.ask(PERCENTAGE) == "50.0"


def test_no_pod_start_fails_while_the_driver_is_upgraded_and_downgraded(
    installed: InstalledNode, scene: Scene
) -> None:
    whole, part, shared = whole_and_shared(scene)
    before = scene.container_ids(whole, part)
    daemon, gpu = shared.daemon(), scene.gpus(whole)
    with starting_pods(scene) as started:
        for tag in (SECOND, ""):
            wait_for_more(started)
            installed.upgrade(tag=tag)
            assert images(installed) == {f"{IMAGE}:{tag or version()}"}
            wait_for_more(started)
    assert scene.container_ids(whole, part) == before
    assert (shared.daemon(), scene.gpus(whole)) == (daemon, gpu)


def wait_for_more(started: Callable[[], int]) -> None:
    """Wait until one more pod was started, or the loop has ended, which tells why."""
    now = started()
    wait_until(lambda: started() == -1 or started() > now, "one more pod start", timeout=120)


def test_kubectl_installs_the_same_through_kustomize(node: InstalledNode, tmp_path: Path) -> None:
    write_overlay(node, tmp_path)
    with leaves_nothing(node):
        node.cluster.kubectl("apply", "-k", tmp_path)
        try:
            node.start_driver()
            scene = Scene(node)
            whole, part, shared = whole_and_shared(scene)
            assert images(node) == {f"{IMAGE}:{SECOND}"}
            assert shared.gpu(part) not in scene.gpus(whole)
            scene.clear()
        finally:
            node.uninstall()
            node.cluster.kubectl("delete", "-k", tmp_path, "--wait", timeout=120)


def write_overlay(node: InstalledNode, folder: Path) -> None:
    """Write a kustomization of this repository's manifests for a node of hack/cluster."""
    driver = {
        "KUBELET_REGISTRAR_DIRECTORY_PATH": str(node.place.registry),
        "CDI_ROOT": str(node.place.cdi_root),
        **node.pod_environment(),
    }
    base = os.path.relpath(REPOSITORY / "manifests", folder)
    overlay = {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "resources": [base],
        "images": [{"name": IMAGE, "newTag": SECOND}],
        "patches": [
            {"patch": patch(node, "dra-driver", "kubelet-plugin", driver)},
            {"patch": patch(node, "dra-driver-mps-supervisor", "mps-supervisor", {})},
        ],
    }
    (folder / "kustomization.yaml").write_text(yaml.safe_dump(overlay))


def patch(node: InstalledNode, name: str, container: str, env: Mapping[str, str]) -> str:
    """A strategic merge patch that gives a DaemonSet the paths of this node."""
    place, default = node.place, "/var/lib/kubelet"
    paths = {"plugins": place.plugins, "driver-root": place.driver_root}
    mounts = {f"{default}/plugins": ("plugins", place.plugins)}
    if env:
        paths |= {"plugins-registry": place.registry, "cdi": place.cdi_root}
        mounts |= {
            f"{default}/plugins_registry": ("plugins-registry", place.registry),
            "/var/run/cdi": ("cdi", place.cdi_root),
        }
    propagation = "HostToContainer" if env else "Bidirectional"
    env = env | {
        "NVIDIA_DRIVER_ROOT": str(place.driver_root),
        "KUBELET_PLUGINS_DIRECTORY_PATH": str(place.plugins),
    }
    spec = {
        "containers": [
            {
                "name": container,
                "env": [{"name": key, "value": value} for key, value in env.items()],
                "volumeMounts": [
                    *({"mountPath": old, "$patch": "delete"} for old in mounts),
                    *(
                        {"name": volume, "mountPath": str(path)}
                        | ({"mountPropagation": propagation} if volume == "plugins" else {})
                        for volume, path in mounts.values()
                    ),
                ],
            }
        ],
        "volumes": [
            {"name": volume, "hostPath": {"path": str(path)}} for volume, path in paths.items()
        ],
    }
    metadata = {"name": name, "namespace": NAMESPACE}
    head = {"apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": metadata}
    return yaml.safe_dump(head | {"spec": {"template": {"spec": spec}}})


def test_pods_of_the_image_take_off_a_node_what_the_driver_has_left(node: InstalledNode) -> None:
    before = footprint(node)
    del before[GROUPS]  # other nodes of this machine may make theirs meanwhile
    try:
        node.install()
        node.start_driver()
        scene = Scene(node)
        _, _, shared = whole_and_shared(scene)
        node.clean_up()
        said = wait_until(lambda: refusal(node), "the cleanup's reason", timeout=120)
        assert "claims are prepared on this node: " in said
        assert f"{SCENES}/{shared.claim} (" in said
        assert "drain the node first, or add --force" in said
        assert shared.ask(PERCENTAGE) == "50.0"

        node.clean_up("--force")
        node.wait_ready(timeout=240)  # it is tried again at growing intervals
        (pod,) = node.driver_pods()
        log = node.cluster.api.log(pod["metadata"]["name"], "cleanup", NAMESPACE)
        assert re.search(f"removed: /host/sys/fs/cgroup/.*{GROUP}", log)
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


def refusal(node: InstalledNode) -> str:
    """What the cleanup's pod said when it could not do its work; empty before that."""
    for pod in node.driver_pods(labelSelector="app.kubernetes.io/component=cleanup"):
        for one in pod["status"].get("initContainerStatuses", []):
            for state in (one["state"], one.get("lastState", {})):
                message = str(state.get("terminated", {}).get("message", ""))
                if message and "a driver runs on this node" not in message:
                    return message
    return ""
