"""One node with eight simulated GPUs for all end-to-end tests, and a scene of its own for each.

Without what they need (root, the cluster's binaries) the tests are skipped with the reason; with
E2E_REQUIRED=1 they fail instead. E2E_CLUSTER names the cluster: two runs need two names.
kubernetes.py says which Kubernetes and containerd.
"""

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from cluster.errors import ClusterError
from image.archive import ImageError
from image.builder import Builder, cache_folder
from image.recipe import Recipe, own_architecture
from testbed.api import Api
from testbed.cluster import Cluster, version_flags
from testbed.commands import REPOSITORY, TestbedError, run
from testbed.containers import Containers
from testbed.installed_node import InstalledNode
from testbed.node import GpuNode

from dra_driver.simulator.profile import dump, load
from e2e.kubernetes import (
    CONTAINERD,
    KUBERNETES,
    OCI,
    RUNTIME,
    cluster_of,
    cluster_of_pods,
    skip_if_lacking,
)
from e2e.lasting import LastingCluster
from e2e.needs import cannot_run
from e2e.scene import Scene
from readiness import lacks

if TYPE_CHECKING:
    from e2e.shares import Shares

OTHER = "e2e-other"
"""Another node, of which there is nothing but its Node."""

CLUSTER = os.environ.get("E2E_CLUSTER", "e2e")

SETTINGS = {"RESCAN_INTERVAL": "1", "HEALTH_SETTLE": "1", "SHUTDOWN_DELAY": "0"}
"""With them tests wait for less. An installed driver has its own, and so has the kubelet time to
notice that one goes."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Of the tests on a node, put those together whose driver has the same settings.

    A restart takes longer than many a test.
    """
    places: dict[object, int] = {}

    def place(item: pytest.Item) -> tuple[int, str]:
        node = item.path if item.get_closest_marker("stream") else None
        settings = (str(sorted(one.kwargs.items())) for one in item.iter_markers("driver"))
        return places.setdefault(node, len(places)), "".join(settings)

    items.sort(key=place)


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
    cluster = cluster_of(CLUSTER)
    with node_of("h100x8", tmp_path_factory.mktemp("node"), cluster) as node:
        yield node


@pytest.fixture(scope="session")
def lasting() -> Iterator[Cluster]:
    """A cluster for nodes of other cards, one after the other."""
    with closing(cluster_of(f"{CLUSTER}-own", kind=LastingCluster)) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def lasting_for_pods() -> Iterator[Cluster]:
    """The same for nodes with the driver in pods."""
    with closing(cluster_of_pods("i", kind=LastingCluster)) as cluster:
        yield cluster


@contextmanager
def node_of(
    profile: str,
    folder: Path,
    cluster: Cluster,
    *,
    runtime: str = RUNTIME,
    machine_options: Sequence[str] = (),
    **settings: str,
) -> Iterator[GpuNode]:
    """A node of some cards on a cluster, whose driver gets more settings, by their variables."""
    if reason := missing(runtime):
        cannot_run(reason)
    # Tokens live as shortly as they may, so that the driver meets renewed ones during the tests.
    node = GpuNode(
        cluster,
        folder,
        profile=profile,
        token_life=600,
        driver_env=SETTINGS | settings,
        mps=True,
        machine_options=machine_options,
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
def node_with_image(
    cluster: Cluster, folder: Path, image: Path, *, platform: str = "", **settings: str
) -> Iterator[InstalledNode]:
    """A node that has the driver's image, and nothing of the driver yet."""
    if reason := missing():
        cannot_run(reason)
    node = InstalledNode(cluster, folder, image, driver_env=settings, platform=platform)
    node.clear()
    try:
        node.up_bare(print)
        if not node.can_run_mps:
            cannot_run("NVIDIA's MPS programs are not available")
        Scene.prepare(node)
        yield node
    finally:
        node.down()


def h100x1(folder: Path, gpus: int = 1) -> str:
    """A profile in a folder: a machine with one H100, or so many."""
    profile = load("h100x8")
    path = folder / f"h100x{gpus}.yaml"
    path.write_text(dump(profile.model_copy(update={"gpus": profile.gpus[:gpus]})))
    return str(path)


def set_as_marked(node: GpuNode, request: pytest.FixtureRequest) -> None:
    """Give a node's driver the settings that a test is marked with."""
    marked = [marker.kwargs for marker in request.node.iter_markers("driver")]
    set_driver(node, {name: value for one in reversed(marked) for name, value in one.items()})


def set_driver(node: GpuNode, settings: Mapping[str, str]) -> None:
    """Give a node's driver these settings beside its first ones; they stay until others are set.

    It is restarted only if it has others, and then the kubelet knows it afterwards.
    """
    if node.driver_settings != (wanted := node.first_settings | dict(settings)):
        node.restart_driver(wanted)
        node.driver.wait_registered()


@pytest.fixture
def mps_node(node: GpuNode) -> GpuNode:
    """The node, if it has NVIDIA's MPS programs."""
    if not node.can_run_mps:
        cannot_run("NVIDIA's MPS programs are not available")
    return node


@pytest.fixture
def mps_shares(shares: "Shares") -> "Shares":
    """The module's node with share configs, likewise."""
    if not shares.node.can_run_mps:
        cannot_run("NVIDIA's MPS programs are not available")
    return shares


@pytest.fixture
def scene(node: GpuNode, request: pytest.FixtureRequest) -> Iterator[Scene]:
    """Pods and claims of one test; afterwards all are deleted, and nothing may be left of them."""
    set_as_marked(node, request)
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
