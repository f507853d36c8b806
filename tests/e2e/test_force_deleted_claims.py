"""A user with the role `edit` deletes a claim by force while its pod runs, on a real cluster."""

import json

import pytest
from testbed.pods import explain, wait_running

from dra_driver.node.claims import STILL_RUNS
from e2e.next_tenant import NEXT, OTHER, ask, namespace_of
from e2e.scene import NAMESPACE, Scene, cel, claim_spec

USER = ("--as", "mallory", "--namespace", NAMESPACE)
NO_FINALIZERS = json.dumps({"metadata": {"finalizers": None}})

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.long("tests/contract/claims/test_reconcile.py"),
]


def test_the_gpu_of_a_claim_deleted_by_force_is_not_given_to_another_namespace(
    scene: Scene,
) -> None:
    cluster, driver = scene.node.cluster, scene.node.driver
    edit = ("create", "rolebinding", "mallory", "--clusterrole", "edit", "--user", "mallory")
    cluster.kubectl(*edit, "--namespace", NAMESPACE)
    with namespace_of(scene):
        claim = scene.claim()
        pod = scene.pod(claims=[claim])
        scene.running(pod)
        (gpu,) = scene.gpus(pod)
        before = scene.container_ids(pod)
        cluster.kubectl(*USER, "delete", "resourceclaim", claim, "--wait=false")
        cluster.kubectl(*USER, "patch", "resourceclaim", claim, "--type=merge", "-p", NO_FINALIZERS)
        cluster.kubectl("delete", "rolebinding", "mallory", "--namespace", NAMESPACE)
        assert scene.api.find("ResourceClaim", claim, NAMESPACE) is None
        driver.stop()
        driver.start()  # it compares all claims when it starts, and then every ten minutes

        same = cel(f"device.attributes['gpu.nvidia.com'].uuid == '{gpu}'")
        ask(scene, claim_spec(selectors=same))
        why = driver.wait_log("claim kept for what still runs", timeout=240)["reason"]
        assert f"the kubelet still runs it in pod {NAMESPACE}/{pod}" in why
        assert why in scene.warning(pod, STILL_RUNS)
        (told,) = events("Node", scene)
        assert why in told
        waiting = explain(scene.api, scene.api.get("Pod", NEXT, OTHER))
        assert f"is still prepared for claim {NAMESPACE}/{claim}" in waiting
        assert scene.api.get("Pod", NEXT, OTHER)["status"]["phase"] == "Pending"
        assert (scene.gpus(pod), scene.container_ids(pod)) == ((gpu,), before)

        scene.delete(pod)
        wait_running(scene.api, OTHER, [NEXT], timeout=240)


def events(kind: str, scene: Scene) -> list[str]:
    """The notes of the events about a kind of object that say that a claim still runs."""
    found = scene.api.all("Event", fieldSelector=f"involvedObject.kind={kind},reason={STILL_RUNS}")
    return [one["message"] for one in found]
