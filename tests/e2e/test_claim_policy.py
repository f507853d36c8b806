"""The admission policy of claims' status where it stands alone, as before Kubernetes 1.36.

Newer API servers ask whose node a claim is on by themselves, and before they come to the policy. So
that feature is switched off here, on a cluster of its own. What claims have is written as a
scheduler writes it, since no pods are needed.
"""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml
from testbed.api import Api, ApiStatusError, Object
from testbed.claims import allocation, claim
from testbed.cluster import Cluster
from testbed.commands import wait_until
from testbed.credentials import NodeCredentials
from testbed.driver import DRIVER_NAME
from testbed.manifests import installed
from testbed.pods import make_namespace

from e2e.conftest import OTHER, missing
from e2e.kubernetes import KUBERNETES
from e2e.needs import cannot_run

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.stream("own"),
    # With Kubernetes 1.34 these find the policy alone.
    pytest.mark.long("tests/e2e/test_claim_status.py"),
]

NAMESPACE, NAME = "e2e", "claim"
GATE = "DRAResourceClaimGranularStatusAuthorization"
FOREIGN = {"driver": "nic.example.com", "pool": "p", "device": "nic-0"}


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """A cluster with all of an installation but its pods; the policy is in force."""
    if reason := missing():
        cannot_run(reason)
    gates = "" if KUBERNETES.startswith("1.34") else f"{GATE}=false"
    name = f"{os.environ.get('E2E_CLUSTER', 'e2e')[:8]}-p"
    cluster = Cluster(name, KUBERNETES, feature_gates=gates)
    try:
        cluster.up(print)
        wanted = [one for one in installed() if one["kind"] != "DaemonSet"]
        cluster.kubectl("apply", "-f", "-", stdin=yaml.safe_dump_all(wanted))
        make_namespace(cluster.api, NAMESPACE)
        cluster.stop("kube-controller-manager")  # it takes reservations back of pods there are not
        yield cluster
    finally:
        cluster.down()


@pytest.fixture
def token(cluster: Cluster, tmp_path: Path) -> Iterator[Callable[..., Api]]:
    """The API by the driver's account, with a token of a node, or of none."""
    credentials = NodeCredentials(cluster, tmp_path)
    credentials.create()
    opened: list[Api] = []

    def make(node: Object | None = None) -> Api:
        bound: tuple[str, ...] = ()
        if node is not None:
            bound = ("--bound-object-kind", "Node", "--bound-object-name", node["name"])
            bound += ("--bound-object-uid", node["uid"])
        words = ("create", "token", "dra-driver", "--namespace", "dra-driver", *bound)
        opened.append(
            Api.from_kubeconfig(credentials.kubeconfig, token=cluster.kubectl(*words).strip())
        )
        return opened[-1]

    yield make
    for api in opened:
        api.close()


@pytest.fixture
def here(cluster: Cluster, token: Callable[..., Api]) -> Api:
    """The API as the driver on the cluster's node may use it."""
    api = token(cluster.api.get("Node", cluster.node)["metadata"])
    # The policy is in force some moments after it was made.
    wait_until(lambda: "allocated on its node" in refusal(api), "the policy", timeout=60)
    return api


@pytest.fixture
def other(cluster: Cluster, token: Callable[..., Api]) -> Iterator[Api]:
    """The same on another node."""
    made = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": OTHER}}
    yield token(cluster.api.create(made)["metadata"])
    cluster.api.delete("Node", OTHER)


@pytest.fixture
def allocated(cluster: Cluster) -> Iterator[Object]:
    """A claim with a device of this node and one of another driver, who has spoken of his."""
    cluster.api.create(claim(NAME), NAMESPACE)
    status = allocation(cluster.node, "gpu-0")
    results = status["allocation"]["devices"]["results"]
    results.append({"request": "gpu", **FOREIGN})
    status["devices"] = [FOREIGN]
    status["reservedFor"] = [{"resource": "pods", "name": "pod", "uid": "uid"}]
    yield cluster.api.patch("ResourceClaim", NAME, {"status": status}, NAMESPACE, "/status")
    cluster.api.delete("ResourceClaim", NAME, NAMESPACE)


def entry(node: str, **fields: object) -> Object:
    return {"driver": DRIVER_NAME, "pool": node, "device": "gpu-0", **fields}


def apply(api: Api, *devices: Object, name: str = NAME) -> None:
    """Say this of a claim's devices, as the driver does."""
    body = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": name},
        "status": {"devices": list(devices)},
    }
    path = f"/apis/resource.k8s.io/v1/namespaces/{NAMESPACE}/resourceclaims/{name}/status"
    query = f"?fieldManager={DRIVER_NAME}/dra-driver&force=true"
    api.request("PATCH", path + query, body, "application/apply-patch+yaml")


def refusal(api: Api) -> str:
    """What is said to one who writes the status of a claim that nobody has; nothing if he may."""
    try:
        api.patch("ResourceClaim", "unallocated", {"status": {}}, NAMESPACE, "/status")
    except ApiStatusError as error:
        return str(error)
    return ""


@pytest.fixture(autouse=True)
def unallocated(cluster: Cluster) -> Iterator[None]:
    """A claim that nobody has."""
    cluster.api.create(claim("unallocated"), NAMESPACE)
    yield
    cluster.api.delete("ResourceClaim", "unallocated", NAMESPACE)


def stored(cluster: Cluster) -> Object:
    found: Object = cluster.api.get("ResourceClaim", NAME, NAMESPACE)["status"]
    return found


def test_the_driver_of_another_node_does_not(
    cluster: Cluster, allocated: Object, here: Api, other: Api
) -> None:
    refused = f"the driver on node {OTHER} may write the status only of claims"
    with pytest.raises(ApiStatusError, match=refused) as no:
        apply(other, entry(cluster.node, data={"uuid": "GPU-lie"}))
    assert no.value.code == 403
    with pytest.raises(ApiStatusError, match=refused):
        other.patch("ResourceClaim", NAME, {"status": {"devices": []}}, NAMESPACE, "/status")
    assert stored(cluster) == allocated["status"]


def test_the_driver_of_the_node_changes_nothing_else(
    cluster: Cluster, allocated: Object, here: Api
) -> None:
    for change in ({"reservedFor": None}, {"devices": []}):
        with pytest.raises(ApiStatusError, match="the driver may not change") as no:
            here.patch("ResourceClaim", NAME, {"status": change}, NAMESPACE, "/status")
        assert no.value.code == 403
    assert stored(cluster) == allocated["status"]
