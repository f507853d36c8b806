"""One node with eight simulated GPUs for all end-to-end tests, and a scene of its own for each.

Without what they need (root, the cluster's binaries) the tests are skipped with the reason; with
E2E_REQUIRED=1 they fail instead. E2E_CLUSTER names the cluster: two runs need two names.
kubernetes.py says which Kubernetes and containerd.
"""

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager, nullcontext
from pathlib import Path

import pytest
from cluster.errors import ClusterError
from image.builder import Builder, cache_folder
from image.errors import ImageError
from image.recipe import Recipe, own_architecture
from testbed.api import Api
from testbed.cluster import version_flags
from testbed.commands import REPOSITORY, TestbedError, run
from testbed.containers import Containers
from testbed.node import GpuNode

from e2e.kubernetes import CONTAINERD, KUBERNETES, OCI, RUNTIME, cluster_of, skip_if_lacking
from e2e.needs import cannot_run
from e2e.scene import Scene
from readiness import lacks

OTHER = "e2e-other"
"""Another node, of which there is nothing but its Node."""


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Leave out what this Kubernetes cannot do, before a cluster is brought up for it."""
    skip_if_lacking(item)


def missing(runtime: str = RUNTIME) -> str:
    """Return what tests on a container runtime lack on this machine, or nothing."""
    if os.geteuid() != 0:
        return "a kubelet needs root"
    try:
        versions = version_flags(
            version=KUBERNETES, containerd=CONTAINERD, runtime=runtime, oci=OCI
        )
        run((sys.executable, REPOSITORY / "hack" / "cluster", "fetch", *versions))
    except TestbedError as error:
        lacks(runtime if runtime == "crio" else "cluster", str(error))
    return ""


@pytest.fixture(scope="session")
def containers(tmp_path_factory: pytest.TempPathFactory) -> Containers:
    """Containers of runc or crun alone, without a cluster."""
    if os.geteuid() != 0:
        cannot_run("runc needs root")
    try:
        return Containers(tmp_path_factory.mktemp("containers"), oci=OCI or "runc")
    except ClusterError as error:
        lacks("cdi", str(error))


@pytest.fixture(scope="session")
def image_archive() -> Path:
    """The driver's image as it is now, as hack/ready.py builds it."""
    if os.geteuid() != 0:
        cannot_run("building the image needs root")
    builder = Builder(cache=cache_folder(os.environ), say=sys.stdout.write)
    try:
        return builder.archive(Recipe(target="driver", arch=own_architecture()))
    except ImageError as error:
        lacks("image", str(error))


@pytest.fixture(scope="session")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GpuNode]:
    if reason := missing():
        cannot_run(reason)
    # Tokens live as shortly as they may, so that the driver meets renewed ones during the tests.
    node = GpuNode(
        cluster_of(os.environ.get("E2E_CLUSTER", "e2e")),
        tmp_path_factory.mktemp("node"),
        token_life=600,
        driver_env={"RESCAN_INTERVAL": "1", "HEALTH_SETTLE": "3"},
        mps=True,
    )
    node.clear()
    try:
        node.up(print)
        node.credentials.keep_fresh()
        Scene.prepare(node)
        yield node
    finally:
        node.down()


@contextmanager
def node_of(
    profile: str, folder: Path, *, runtime: str = RUNTIME, **settings: str
) -> Iterator[GpuNode]:
    """A node of other cards, on a cluster of its own beside that of all other tests.

    `settings` are given to its driver, by their variables.
    """
    if reason := missing(runtime):
        cannot_run(reason)
    name = f"{os.environ.get('E2E_CLUSTER', 'e2e')[:8]}-{profile}"
    node = GpuNode(
        cluster_of(name, runtime=runtime),
        folder,
        profile=profile,
        driver_env={"RESCAN_INTERVAL": "1", "HEALTH_SETTLE": "3", **settings},
        mps=True,
    )
    node.clear()
    try:
        node.up(print)
        Scene.prepare(node)
        yield node
    finally:
        node.down()


@contextmanager
def driver_with(node: GpuNode, **settings: str) -> Iterator[None]:
    """Give a node's driver more settings, by their variables, for as long as it takes."""
    before = node.driver_settings
    _restart(node, before | settings)
    try:
        yield
    finally:
        _restart(node, before)


def _restart(node: GpuNode, settings: Mapping[str, str]) -> None:
    """Restart a node's driver, and wait until the kubelet knows it as well."""
    node.restart_driver(settings)
    node.driver.wait_registered()


@contextmanager
def as_marked(node: GpuNode, request: pytest.FixtureRequest) -> Iterator[None]:
    """Give a node's driver the settings that a test is marked with."""
    marked = [marker.kwargs for marker in request.node.iter_markers("driver")]
    settings = {name: value for one in reversed(marked) for name, value in one.items()}
    with driver_with(node, **settings) if settings else nullcontext():
        yield


@pytest.fixture
def mps_node(node: GpuNode) -> GpuNode:
    """The node, if NVIDIA's MPS programs could be had for it."""
    if not node.can_run_mps:
        cannot_run("NVIDIA's MPS programs could not be had")
    return node


@pytest.fixture
def scene(node: GpuNode, request: pytest.FixtureRequest) -> Iterator[Scene]:
    """Pods and claims of one test; afterwards all are deleted, and nothing may be left of them."""
    with as_marked(node, request):
        scene = Scene(node)
        before = request.session.testsfailed
        yield scene
        if request.session.testsfailed > before:
            sys.stdout.write(scene.explain())
        scene.end()


@pytest.fixture
def driver_api(scene: Scene) -> Iterator[Api]:
    """The API as the driver may use it: its ServiceAccount, with its token."""
    api = Api.from_kubeconfig(scene.node.credentials.kubeconfig)
    yield api
    api.close()


@pytest.fixture
def other_node(scene: Scene) -> Iterator[Api]:
    """The API as the driver on another node may use it: by its account, with that node's token."""
    made = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": OTHER}}
    uid = scene.api.create(made)["metadata"]["uid"]
    try:
        token = scene.node.cluster.kubectl(
            *("create", "token", "dra-driver", "--namespace", "dra-driver"),
            *("--bound-object-kind", "Node", "--bound-object-name", OTHER),
            *("--bound-object-uid", uid),
        ).strip()
        with closing(Api.from_kubeconfig(scene.node.credentials.kubeconfig, token=token)) as api:
            yield api
    finally:
        scene.api.delete("Node", OTHER)
