"""What a user with Kubernetes' role `edit` in one namespace can do to another one, and cannot.

docs/security.md has a row for each. The other namespace is that of all scenes; what is wrong there
afterwards, its scene says.
"""

import json
from collections.abc import Iterator
from contextlib import closing

import pytest
from testbed.api import Api, ApiStatusError, Object, thing
from testbed.claims import claim
from testbed.commands import wait_until
from testbed.node import GpuNode
from testbed.pods import container, exec_in, gpus_seen, make_namespace, wait_gone, wait_running

from dra_driver.admin.doctor.facts.cluster_facts import Feature
from e2e.kubernetes import needs
from e2e.scene import NAMESPACE, Scene, cel
from e2e.test_nothing import LOOK, OPEN_GPU

pytestmark = pytest.mark.e2e

MINE = "e2e-edit"
REVIEWS = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"

MAY = [
    *((verb, "resource.k8s.io", "resourceclaims") for verb in ("create", "update", "patch")),
    *((verb, "resource.k8s.io", "resourceclaims") for verb in ("delete", "deletecollection")),
    ("delete", "resource.k8s.io", "resourceclaimtemplates"),
    ("get", "resource.k8s.io", "resourceclaims/status"),
    ("create", "", "pods"),
    ("create", "", "pods/exec"),
    ("create", "", "events"),
]
"""What it may do in its namespace: verb, group, resource."""

MAY_NOT = [
    *((verb, "resource.k8s.io", "resourceclaims/status") for verb in ("update", "patch")),
    ("update", "resource.k8s.io", "resourceclaims/binding"),
    ("arbitrary-node:patch", "resource.k8s.io", "resourceclaims/driver"),
    *((verb, "resource.k8s.io", "resourceslices") for verb in ("get", "list", "create", "delete")),
    *((verb, "resource.k8s.io", "deviceclasses") for verb in ("create", "update", "delete")),
    ("create", "resource.k8s.io", "devicetaintrules"),
    ("create", "resource.k8s.io", "resourcepoolstatusrequests"),
    ("create", "", "pods/binding"),
    ("update", "", "pods/status"),
    ("patch", "", "pods/ephemeralcontainers"),
    ("patch", "", "namespaces"),
    ("update", "", "resourcequotas"),
    ("patch", "", "nodes"),
    ("get", "", "nodes/proxy"),
    ("create", "admissionregistration.k8s.io", "validatingadmissionpolicies"),
]
"""What it may do neither there nor anywhere."""


class Tenant:
    """The user with the role, by a ServiceAccount's token, and what it makes in its namespace."""

    def __init__(self, node: GpuNode, api: Api) -> None:
        self.node = node
        self.api = api

    def pod(
        self, name: str, *claims: str, annotations: Object | None = None, **more: object
    ) -> None:
        """Make a pod of one container that has these claims."""
        entries = [{"name": one, "resourceClaimName": one} for one in claims]
        resources: Object = {"claims": [{"name": one} for one in claims]}
        spec = {
            "terminationGracePeriodSeconds": 1,
            "containers": [container("ctr", resources)],
            "resourceClaims": entries,
            **more,
        }
        pod = thing("Pod", name, spec=spec)
        pod["metadata"]["annotations"] = annotations or {}
        self.api.create(pod, MINE)

    def running(self, name: str) -> Object:
        (pod,) = wait_running(self.api, MINE, (name,))
        return pod

    def run_in(self, pod: str, script: str, ctr: str = "ctr") -> str:
        """Run a script of bash in a container and return what it printed."""
        return exec_in(self.node.cluster, pod, ctr, MINE, "bash", "-c", f"({script}) 2>/dev/null")

    def gpus(self, pod: str) -> tuple[str, ...]:
        return gpus_seen(self.node.cluster, pod, "ctr", MINE)

    def may(self, verb: str, group: str, resource: str, namespace: str) -> bool:
        """Ask the API server whether it may do something."""
        plural, _, part = resource.partition("/")
        asked = {"verb": verb, "group": group, "resource": plural, "subresource": part}
        spec = {"resourceAttributes": {**asked, "namespace": namespace}}
        kind = {"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview"}
        answer = json.loads(self.api.request("POST", REVIEWS, {**kind, "spec": spec}))
        return bool(answer["status"]["allowed"])

    def clear(self) -> None:
        """Delete what is there, and wait until it is gone."""
        for kind in ("Pod", "ResourceClaim", "ResourceClaimTemplate"):
            for one in self.api.all(kind, MINE):
                self.api.delete(kind, one["metadata"]["name"], MINE)
        wait_gone(self.api, MINE)
        wait_until(lambda: not self.api.all("ResourceClaim", MINE), "its claims to go", timeout=60)


@pytest.fixture(scope="module")
def user(node: GpuNode) -> Iterator[Tenant]:
    kubectl = node.cluster.kubectl
    make_namespace(node.cluster.api, MINE)
    binding = ("create", "rolebinding", "tenant", "--clusterrole=edit", "--namespace", MINE)
    kubectl(*binding, f"--serviceaccount={MINE}:default")
    token = kubectl("create", "token", "default", "--namespace", MINE).strip()
    with closing(Api.from_kubeconfig(node.credentials.kubeconfig, token=token)) as api:
        yield Tenant(node, api)
    node.cluster.api.delete("Namespace", MINE)


@pytest.fixture
def tenant(scene: Scene, user: Tenant) -> Iterator[Tenant]:
    """The user; what it has made is gone before the scene looks what is left on the node."""
    yield user
    user.clear()


def test_it_writes_claims_of_its_namespace_and_nothing_of_others(user: Tenant) -> None:
    assert [one for one in MAY if not user.may(*one, MINE)] == []
    places = (MINE, NAMESPACE, "dra-driver", "")
    assert [one for one in MAY_NOT if any(user.may(*one, place) for place in places)] == []
    others = [(verb, "", kind) for verb in ("get", "create") for kind in ("pods", "secrets")]
    others += [(verb, "resource.k8s.io", "resourceclaims") for verb in ("list", "patch", "delete")]
    assert [one for one in (*MAY, *others) if user.may(*one, NAMESPACE)] == []


def test_it_cannot_write_what_a_claim_has_been_given(tenant: Tenant) -> None:
    tenant.api.create(claim("own"), MINE)
    tenant.pod("user", "own")
    tenant.running("user")

    def status() -> Object:
        return dict(tenant.api.get("ResourceClaim", "own", MINE)["status"])

    wait_until(lambda: "devices" in status(), "the driver to write the status", timeout=60)
    before = status()
    for field in ("devices", "allocation", "reservedFor"):
        with pytest.raises(ApiStatusError, match="resourceclaims/status") as no:
            tenant.api.patch("ResourceClaim", "own", {"status": {field: None}}, MINE, "/status")
        assert no.value.code == 403
        # Beside the other fields it is passed over.
        tenant.api.patch("ResourceClaim", "own", {"status": {field: None}}, MINE)
    assert status() == before


def test_edits_of_a_used_claim_or_its_template_have_no_effect(tenant: Tenant) -> None:
    body = claim("own")
    template = thing("ResourceClaimTemplate", "made", spec={"spec": body["spec"]})
    tenant.api.create(template, MINE)
    sources = [{"name": "gpu", "resourceClaimTemplateName": "made"}]
    ctr = container("ctr", {"claims": [{"name": "gpu"}]})
    tenant.pod("user", resourceClaims=sources, containers=[ctr])
    pod = tenant.running("user")
    gpus = tenant.gpus("user")
    name = pod["status"]["resourceClaimStatuses"][0]["resourceClaimName"]
    odd = {"resource.kubernetes.io/pod-claim-name": "../../x", "app.kubernetes.io/name": "x"}
    change = {"metadata": {"annotations": odd, "labels": {"app.kubernetes.io/name": "dra-driver"}}}
    tenant.api.patch("ResourceClaim", name, change, MINE)
    with pytest.raises(ApiStatusError, match="immutable"):
        tenant.api.patch("ResourceClaim", name, {"spec": {"devices": None}}, MINE)
    tenant.api.delete("ResourceClaimTemplate", "made", MINE)
    # A claim in use is deleted only when its pod is gone.
    tenant.api.delete("ResourceClaim", name, MINE)
    assert tenant.api.get("ResourceClaim", name, MINE)["metadata"]["deletionTimestamp"]
    assert tenant.gpus("user") == gpus
    tenant.node.restart_driver(tenant.node.driver_settings)
    tenant.node.driver.wait_registered()
    assert tenant.gpus("user") == gpus


def test_a_claim_of_another_namespace_is_out_of_reach(scene: Scene, tenant: Tenant) -> None:
    theirs = scene.claim()
    holder = scene.pod("holder", claims=[theirs])
    scene.running(holder)
    with pytest.raises(ApiStatusError) as no:
        tenant.api.get("ResourceClaim", theirs, NAMESPACE)
    assert no.value.code == 403
    tenant.pod("by-name", theirs)
    uid = scene.api.get("ResourceClaim", theirs, NAMESPACE)["metadata"]["uid"]
    cdi = f"k8s.gpu.nvidia.com/claim={uid}-{held(scene, theirs)}"
    tenant.pod("by-device", annotations={"cdi.k8s.io/mine": cdi})
    tenant.running("by-device")
    assert tenant.run_in("by-device", LOOK).strip() == ""
    tenant.run_in("by-device", OPEN_GPU)
    waits = tenant.api.get("Pod", "by-name", MINE)
    assert (waits["status"]["phase"], waits["spec"].get("nodeName")) == ("Pending", None)


def held(scene: Scene, name: str) -> str:
    """The device that a claim has."""
    status = scene.api.get("ResourceClaim", name, NAMESPACE)["status"]
    device: str = status["allocation"]["devices"]["results"][0]["device"]
    return device


@needs(Feature.EXTENDED_RESOURCE)
def test_a_pod_that_names_its_node_gets_no_gpu(scene: Scene, tenant: Tenant) -> None:
    node = scene.node.cluster.node
    limited = container("ctr", {"limits": {"nvidia.com/gpu": "1"}})
    tenant.pod("by-limit", nodeName=node, containers=[limited])
    tenant.api.create(claim("unallocated"), MINE)
    tenant.pod("by-claim", "unallocated", nodeName=node)
    tenant.running("by-limit")
    assert tenant.run_in("by-limit", LOOK).strip() == ""
    tenant.run_in("by-limit", OPEN_GPU)
    status = tenant.api.get("Pod", "by-claim", MINE)["status"]
    assert status["phase"] == "Pending"
    left = tenant.api.get("ResourceClaim", "unallocated", MINE)
    assert "allocation" not in left.get("status", {})


def test_an_ephemeral_container_opens_not_even_its_own_pods_gpu(
    scene: Scene, tenant: Tenant
) -> None:
    tenant.api.create(claim("own"), MINE)
    tenant.pod("user", "own")
    tenant.running("user")
    (gpu,) = tenant.gpus("user")
    added = {key: value for key, value in container("late", {}).items() if key != "resources"}
    added["targetContainerName"] = "ctr"
    change = {"spec": {"ephemeralContainers": [added]}}
    scene.api.patch("Pod", "user", change, MINE, "/ephemeralcontainers")

    def runs() -> bool:
        status = tenant.api.get("Pod", "user", MINE)["status"]
        return any(
            "running" in one["state"] for one in status.get("ephemeralContainerStatuses", ())
        )

    wait_until(runs, "the ephemeral container to run", timeout=60)
    assert "nvidia" in tenant.run_in("user", "ls /proc/1/root/dev", ctr="late")
    tenant.run_in("user", OPEN_GPU, ctr="late")
    asks = added | {"name": "asks", "resources": {"claims": [{"name": "own"}]}}
    change = {"spec": {"ephemeralContainers": [added, asks]}}
    with pytest.raises(ApiStatusError, match=r"ephemeralContainers\[1\].resources"):
        scene.api.patch("Pod", "user", change, MINE, "/ephemeralcontainers")
    assert tenant.gpus("user") == (gpu,)


def test_claims_that_see_others_devices_or_take_the_scheduler_long_are_refused(
    tenant: Tenant,
) -> None:
    with pytest.raises(ApiStatusError, match="admin access to devices requires"):
        tenant.api.create(claim("sees", allocationMode="All", adminAccess=True), MINE)
    slow = "true"
    for name in "abcdefg":
        slow = f"[0, 1, 2, 3, 4, 5, 6, 7, 8, 9].all({name}, {slow})"
    with pytest.raises(ApiStatusError, match="too complex, exceeds cost limit"):
        tenant.api.create(claim("slow", selectors=cel(slow)), MINE)


def test_a_quota_limits_how_many_claims_it_makes(scene: Scene, tenant: Tenant) -> None:
    path = f"/api/v1/namespaces/{MINE}/resourcequotas"
    hard = {"count/resourceclaims.resource.k8s.io": "1"}
    body = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "claims"}}
    scene.api.request("POST", path, body | {"spec": {"hard": hard}})

    def used() -> Object:
        found: Object = json.loads(scene.api.request("GET", f"{path}/claims")).get("status", {})
        return found

    wait_until(lambda: used().get("hard") == hard, "the quota to be looked at", timeout=60)
    tenant.api.create(claim("first"), MINE)
    with pytest.raises(ApiStatusError, match="exceeded quota: claims"):
        tenant.api.create(claim("second"), MINE)
    scene.api.request("DELETE", f"{path}/claims")
