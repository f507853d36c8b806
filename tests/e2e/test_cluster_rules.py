"""What the API server and the container runtime make of what the driver and its manifests say."""

import json
from collections.abc import Iterator
from contextlib import closing

import pytest
import yaml
from testbed.api import Api, ApiStatusError, Object
from testbed.commands import REPOSITORY, TestbedError, run
from testbed.driver import DRIVER_NAME
from testbed.machine import DRIVER

from e2e.scene import NAMESPACE, Scene

pytestmark = pytest.mark.e2e


@pytest.fixture
def driver_api(scene: Scene) -> Iterator[Api]:
    """The API as the driver may use it: its ServiceAccount, with its token."""
    api = Api.from_kubeconfig(scene.node.credentials.kubeconfig)
    yield api
    api.close()


def test_every_manifest_is_accepted_without_a_warning(scene: Scene) -> None:
    kubectl = scene.node.cluster.kubectl
    done = kubectl(
        *("apply", "--kustomize", REPOSITORY / "manifests"),
        *("--dry-run=server", "--warnings-as-errors"),
    )
    assert "daemonset.apps/dra-driver created (server dry run)" in done
    assert "daemonset.apps/dra-driver-mps-supervisor created (server dry run)" in done


def test_every_demo_is_accepted_without_a_warning(scene: Scene) -> None:
    for path in sorted((REPOSITORY / "manifests" / "demos").glob("*/demo.yaml")):
        # The namespace has to be there, or nothing in it can be tried.
        text = path.read_text().replace(f"namespace: {path.parent.name}", f"namespace: {NAMESPACE}")
        scene.node.cluster.kubectl(
            *("apply", "-f", "-", "--dry-run=server", "--warnings-as-errors"), stdin=text
        )


def test_printed_slices_are_taken_as_printed(scene: Scene) -> None:
    printed = run((DRIVER, "slices", "--profile", "h100x8", "--node-name", "made-up"))
    answer = scene.node.cluster.kubectl(
        *("create", "-f", "-", "--dry-run=server", "--warnings-as-errors", "--output", "yaml"),
        stdin=printed,
    )
    stored, asked = (list(yaml.safe_load_all(text)) for text in (answer, printed))
    assert [one["spec"] for one in stored] == [one["spec"] for one in asked]
    assert len(asked) == 5


def test_slices_keep_every_field_that_the_driver_wrote(scene: Scene) -> None:
    root = scene.node.machine.root
    words = ("--nvidia-driver-root", root, "--container-driver-root", root)
    roots = ("--sys-root", root / "sys", "--proc-root", root / "proc")
    would = json.loads(run((DRIVER, "inspect", "--output", "json", *words, *roots)))["devices"]
    served = [
        device
        for one in scene.api.all("ResourceSlice")
        if one["spec"]["driver"] == DRIVER_NAME
        for device in one["spec"].get("devices", [])
    ]
    assert sorted(served, key=str) == sorted(would, key=str)


def test_slices_belong_to_the_node(scene: Scene) -> None:
    node = scene.api.get("Node", scene.node.cluster.node)
    for one in scene.api.all("ResourceSlice"):
        (owner,) = one["metadata"]["ownerReferences"]
        assert owner["uid"] == node["metadata"]["uid"]


def test_the_container_runtime_gets_only_what_the_claim_gives(scene: Scene) -> None:
    pod = scene.pod(templates=[scene.template()])
    (running,) = scene.running(pod)
    (status,) = running["status"]["containerStatuses"]
    spec = container_spec(scene, status["containerID"].removeprefix("containerd://"))
    paths = {node["path"] for node in spec["linux"]["devices"]}
    gpus = {path for path in paths if path.removeprefix("/dev/nvidia").isdigit()}
    assert len(gpus) == 1
    assert "/dev/nvidiactl" in paths
    assert "NVIDIA_VISIBLE_DEVICES=void" in spec["process"]["env"]


def test_the_driver_may_not_write_another_nodes_slices(scene: Scene, driver_api: Api) -> None:
    with pytest.raises(ApiStatusError, match="may not write ResourceSlices of node other") as no:
        driver_api.create(resource_slice(node="other"))
    assert no.value.code == 403


def test_the_driver_may_not_write_slices_for_all_nodes(scene: Scene, driver_api: Api) -> None:
    everywhere = resource_slice(node="")
    del everywhere["spec"]["nodeName"]
    everywhere["spec"]["allNodes"] = True
    with pytest.raises(ApiStatusError, match="of several nodes"):
        driver_api.create(everywhere)


def test_the_driver_may_not_write_another_drivers_slices(scene: Scene, driver_api: Api) -> None:
    other = resource_slice(node=scene.node.cluster.node)
    other["spec"]["driver"] = "other.example.com"
    with pytest.raises(ApiStatusError, match=r"publishes for gpu\.nvidia\.com only"):
        driver_api.create(other)


def test_a_token_without_a_node_writes_no_slices(scene: Scene) -> None:
    kubectl = scene.node.cluster.kubectl
    token = kubectl("create", "token", "dra-driver", "--namespace", "dra-driver").strip()
    kubeconfig = scene.node.credentials.kubeconfig
    with (
        closing(Api.from_kubeconfig(kubeconfig, token=token)) as api,
        pytest.raises(ApiStatusError, match="names no node"),
    ):
        api.create(resource_slice(node=scene.node.cluster.node))


@pytest.mark.parametrize(
    ("verb", "resource"),
    [
        ("get", "secrets"),
        ("list", "pods"),
        ("watch", "resourceclaims.resource.k8s.io"),
        ("update", "resourceclaims.resource.k8s.io"),
        ("deletecollection", "resourceslices.resource.k8s.io"),
        ("patch", "nodes"),
        ("list", "events.events.k8s.io"),
    ],
)
def test_the_driver_may_not(scene: Scene, verb: str, resource: str) -> None:
    account = "system:serviceaccount:dra-driver:dra-driver"
    with pytest.raises(TestbedError, match="no"):
        scene.node.cluster.kubectl(
            "auth", "can-i", verb, resource, "--as", account, "--all-namespaces"
        )


def container_spec(scene: Scene, container: str) -> Object:
    """The OCI spec with which containerd started a container."""
    facts = json.loads(scene.node.cluster.ctr("containers", "info", container))
    spec: Object = facts["Spec"]
    return spec


def resource_slice(*, node: str) -> Object:
    """A slice without devices."""
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"name": "e2e-intruder"},
        "spec": {
            "driver": DRIVER_NAME,
            "nodeName": node,
            "pool": {"name": "intruder", "generation": 0, "resourceSliceCount": 1},
            "devices": [],
        },
    }
