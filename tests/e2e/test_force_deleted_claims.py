"""A user with the role `edit` deletes a claim by force while its pod runs, on a real cluster."""

import json

import pytest
from testbed.commands import wait_until
from testbed.pods import container, explain, make_namespace, wait_running

from dra_driver.node.claims import STILL_RUNS
from e2e.scene import NAMESPACE, Scene, cel, claim_spec

OTHER = "e2e-next-tenant"
USER = ("--as", "mallory", "--namespace", NAMESPACE)
NO_FINALIZERS = json.dumps({"metadata": {"finalizers": None}})

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.long(
        "tests/e2e/test_force_deleted_claims.py", "tests/contract/claims/test_reconcile.py"
    ),
]


def test_the_gpu_of_a_claim_deleted_by_force_is_not_given_to_another_namespace(
    scene: Scene,
) -> None:
    cluster, driver = scene.node.cluster, scene.node.driver
    edit = ("create", "rolebinding", "mallory", "--clusterrole", "edit", "--user", "mallory")
    cluster.kubectl(*edit, "--namespace", NAMESPACE)
    make_namespace(scene.api, OTHER)
    try:
        claim = scene.claim()
        pod = scene.pod(claims=[claim])
        scene.running(pod)
        (gpu,) = scene.gpus(pod)
        before = scene.container_ids(pod)
        cluster.kubectl(*USER, "delete", "resourceclaim", claim, "--wait=false")
        cluster.kubectl(*USER, "patch", "resourceclaim", claim, "--type=merge", "-p", NO_FINALIZERS)
        assert scene.api.find("ResourceClaim", claim, NAMESPACE) is None
        driver.stop()
        driver.start()  # it compares all claims when it starts, and then every ten minutes

        same = cel(f"device.attributes['gpu.nvidia.com'].uuid == '{gpu}'")
        spec = {"spec": claim_spec(selectors=same)}
        named = {"apiVersion": "resource.k8s.io/v1", "metadata": {"name": "next"}}
        scene.api.create({**named, "kind": "ResourceClaim", **spec}, OTHER)
        entry = {"name": "gpu", "resourceClaimName": "next"}
        run = container("ctr", {"claims": [{"name": "gpu"}]})
        body = {"resourceClaims": [entry], "containers": [run], "terminationGracePeriodSeconds": 1}
        scene.api.create(
            {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "next"}, "spec": body}, OTHER
        )
        why = driver.wait_log("claim kept for what still runs", timeout=240)["reason"]
        assert f"the kubelet still runs it in pod {NAMESPACE}/{pod}" in why
        assert why in scene.warning(pod, STILL_RUNS)
        (told,) = events("Node", scene)
        assert why in told
        waiting = explain(scene.api, scene.api.get("Pod", "next", OTHER))
        assert f"is still prepared for claim {NAMESPACE}/{claim}" in waiting
        assert scene.api.get("Pod", "next", OTHER)["status"]["phase"] == "Pending"
        assert (scene.gpus(pod), scene.container_ids(pod)) == ((gpu,), before)

        scene.delete(pod)
        wait_running(scene.api, OTHER, ["next"], timeout=240)
    finally:
        for kind in ("Pod", "ResourceClaim"):
            scene.api.delete_all(kind, OTHER)
        wait_until(
            lambda: not scene.api.all("ResourceClaim", OTHER), "the claim to go", timeout=120
        )
        cluster.kubectl("delete", "rolebinding", "mallory", "--namespace", NAMESPACE)
        scene.api.delete("Namespace", OTHER)


def events(kind: str, scene: Scene) -> list[str]:
    """The notes of the events about a kind of object that say that a claim still runs."""
    found = scene.api.all("Event", fieldSelector=f"involvedObject.kind={kind},reason={STILL_RUNS}")
    return [one["message"] for one in found]
