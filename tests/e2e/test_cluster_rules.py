"""What the API server and the container runtime make of what the driver and its manifests say."""

import json
import re
from contextlib import closing

import pytest
import yaml
from testbed.api import Api, ApiStatusError, Object
from testbed.commands import REPOSITORY, TestbedError, run
from testbed.driver import DRIVER_NAME
from testbed.machine import DRIVER
from testbed.manifests import INSTALL

from dra_driver.admin.doctor.facts.cluster_facts import Feature
from e2e.conftest import OTHER
from e2e.kubernetes import needs
from e2e.scene import NAMESPACE, Scene

pytestmark = pytest.mark.e2e

INTRUDER = "e2e-intruder"
SLICES = "/apis/resource.k8s.io/v1/resourceslices"


def test_every_manifest_is_accepted_without_a_warning(scene: Scene) -> None:
    kubectl = scene.node.cluster.kubectl
    done = kubectl("apply", "-f", INSTALL, "--dry-run=server", "--warnings-as-errors")
    assert "daemonset.apps/dra-driver created (server dry run)" in done
    assert "daemonset.apps/dra-driver-mps-supervisor created (server dry run)" in done


def test_every_demo_is_accepted_without_a_warning(scene: Scene) -> None:
    for path in sorted((REPOSITORY / "manifests" / "demos").glob("*/demo.yaml")):
        # The namespace has to be there, or nothing in it can be tried.
        text = path.read_text().replace(f"namespace: {path.parent.name}", f"namespace: {NAMESPACE}")
        scene.node.cluster.kubectl(
            *("apply", "-f", "-", "--dry-run=server", "--warnings-as-errors"), stdin=text
        )


def test_printed_device_classes_are_accepted_without_a_warning(scene: Scene) -> None:
    names = ("gpu", "gpu.shared", "mig-1g.10gb", "mig-1g.10gb.me", "mig-1c.3g.40gb", "own-name")
    done = scene.node.cluster.kubectl(
        *("apply", "-f", "-", "--dry-run=server", "--warnings-as-errors", "--output", "name"),
        stdin=run((DRIVER, "classes", *names)),
    )
    assert done.split() == [
        f"deviceclass.resource.k8s.io/{name}.resource.nvidia.com" for name in names
    ]


def test_the_selectors_of_the_migration_page_are_accepted(scene: Scene) -> None:
    page = (REPOSITORY / "docs" / "migrating-from-the-device-plugin.md").read_text()
    rows = re.findall(r"^\| `nvidia\.com/.* \| `([^`]*)`", page, re.MULTILINE)
    own = "device.attributes['gpu.nvidia.com']"
    selectors = [re.sub(r"\ba\.", f"{own}.", row) for row in rows]
    selectors = [selector for selector in selectors if "==" in selector or ">=" in selector]
    assert len(selectors) >= 7
    for expression in selectors:
        one = [{"cel": {"expression": expression}}]
        template = {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceClaimTemplate",
            "metadata": {"name": "selector", "namespace": NAMESPACE},
            "spec": {"spec": {"devices": {"requests": [request(one)]}}},
        }
        scene.node.cluster.kubectl(
            *("create", "-f", "-", "--dry-run=server", "--warnings-as-errors"),
            stdin=json.dumps(template),
        )


def request(selectors: list[Object]) -> Object:
    """A request for a GPU that these select."""
    exactly = {"deviceClassName": "gpu.resource.nvidia.com", "selectors": selectors}
    return {"name": "gpu", "exactly": exactly}


@needs(Feature.COUNTERS)
def test_printed_slices_are_taken_as_printed(scene: Scene) -> None:
    made_up = ("--profile", "h100x8", "--mig", "on-demand", "--node-name", "made-up")
    printed = run((DRIVER, "inspect", "--slices", *made_up))
    answer = scene.node.cluster.kubectl(
        *("create", "-f", "-", "--dry-run=server", "--warnings-as-errors", "--output", "yaml"),
        stdin=printed,
    )
    stored, asked = (list(yaml.safe_load_all(text)) for text in (answer, printed))
    assert [one["spec"] for one in stored] == [one["spec"] for one in asked]
    assert len(asked) == 5


@needs(Feature.COUNTERS)
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


def test_another_nodes_token_writes_none_of_this_nodes_slices(
    scene: Scene, other_node: Api
) -> None:
    here = scene.node.cluster.node
    selector = f"spec.driver={DRIVER_NAME},spec.nodeName={here}"
    one = other_node.all("ResourceSlice", fieldSelector=selector)[0]
    refused = f"the driver on node {OTHER} may not write ResourceSlices of node {here}"
    with pytest.raises(ApiStatusError, match=refused) as no:
        other_node.create(resource_slice(node=here))
    assert no.value.code == 403
    path = f"{SLICES}/{one['metadata']['name']}"
    with pytest.raises(ApiStatusError, match=refused):
        other_node.request("PUT", path, one)
    with pytest.raises(ApiStatusError, match=refused):
        other_node.request("DELETE", path)
    # The same token does write its own node's (what it may name them is in test_squatters.py).
    name = f"00000-{DRIVER_NAME}-{OTHER}"
    other_node.create(resource_slice(node=OTHER, name=name))
    other_node.delete("ResourceSlice", name)


@pytest.mark.parametrize("token", ["driver_api", "other_node"])
def test_no_token_of_a_driver_writes_a_claim(
    scene: Scene, request: pytest.FixtureRequest, token: str
) -> None:
    """What it may write of a claim's status is in test_claim_status.py."""
    api: Api = request.getfixturevalue(token)
    name = scene.claim()
    scene.running(scene.pod(claims=[name]))
    claim = scene.api.get("ResourceClaim", name, NAMESPACE)
    path = f"/apis/resource.k8s.io/v1/namespaces/{NAMESPACE}/resourceclaims/{name}"
    for part in ("", "/status"):
        with pytest.raises(
            ApiStatusError, match=f'cannot update resource "resourceclaims{part}"'
        ) as no:
            api.request("PUT", path + part, claim)
        assert no.value.code == 403
    with pytest.raises(ApiStatusError, match='cannot patch resource "resourceclaims"'):
        api.patch("ResourceClaim", name, {"metadata": {"labels": {"a": "b"}}}, NAMESPACE)


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


def resource_slice(*, node: str, name: str = INTRUDER) -> Object:
    """A slice without devices."""
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"name": name},
        "spec": {
            "driver": DRIVER_NAME,
            "nodeName": node,
            "pool": {"name": node, "generation": 0, "resourceSliceCount": 1},
            "devices": [],
        },
    }
