"""`dra-driver explain` says of pods of a real cluster what its scheduler does with them."""

import json
import re
import time
from pathlib import Path
from typing import Any

import pytest
import yaml
from testbed.commands import REPOSITORY

from dra_driver.admin.doctor.facts.cluster_facts import Feature
from e2e import test_doctor as doctor
from e2e.explaining import explain
from e2e.kubernetes import makes_mig_by_default, needs
from e2e.scene import NAMESPACE, Scene

pytestmark = [pytest.mark.e2e, needs(Feature.COUNTERS, Feature.EXTENDED_RESOURCE)]

GPU, GPUS = "nvidia.com/gpu", 8


def test_a_blocked_pod_later_gets_the_predicted_devices(scene: Scene) -> None:
    first = scene.pod("first", limits={GPU: GPUS})
    scene.running(first)
    late = scene.pod("late", templates=[scene.template()])
    scene.unschedulable(late)

    said, _ = explain(scene, late)
    assert f"{GPUS} devices are taken by claim {NAMESPACE}/{first}" in said
    assert f"(pod {first})" in said
    by_name = scene.pod("by-name", limits={GPU: 1})
    scene.unschedulable(by_name)
    assert f"{GPU} of container ctr: asks for 1 device" in explain(scene, by_name)[0]

    scene.delete(first)
    scene.running(late, by_name)
    found: dict[str, Any] = json.loads(explain(scene, late, "-o", "json", status=0)[0])
    assert found["node"] == scene.node.cluster.node
    (allocated,) = found["allocated"]
    assert allocated["usedBy"] == [late]


@needs(Feature.TAINTS)
@makes_mig_by_default()  # as of 1.37, like DeviceTaintRules of v1
def test_a_rule_that_taints_every_device_is_named(scene: Scene, tmp_path: Path) -> None:
    cluster = scene.node.cluster
    taint = {"key": "maintenance", "value": "firmware", "effect": "NoSchedule"}
    rule = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "DeviceTaintRule",
        "metadata": {"name": "firmware-work"},
        "spec": {"deviceSelector": {}, "taint": taint},
    }
    manifest = tmp_path / "rule.yaml"
    manifest.write_text(yaml.safe_dump(rule))
    cluster.kubectl("apply", "--filename", str(manifest))
    try:
        time.sleep(2)  # the scheduler follows within moments
        pod = scene.pod(limits={GPU: 1})
        scene.unschedulable(pod)
        said, _ = explain(scene, pod)
        assert "the taint maintenance=firmware:NoSchedule of DeviceTaintRule firmware-work" in said
        found = doctor.report(cluster.env["KUBECONFIG"])["findings"]
        (warned,) = [one for one in found if one["id"] == "taint-rules"]
        assert warned["severity"] == "warning"
    finally:
        cluster.kubectl("delete", "--filename", str(manifest))
    scene.running(pod)


def test_a_missing_list_permission_is_named(scene: Scene, tmp_path: Path) -> None:
    cluster = scene.node.cluster
    config = yaml.safe_load(Path(cluster.env["KUBECONFIG"]).read_text())
    token = cluster.kubectl("create", "token", "default", "--namespace", NAMESPACE).strip()
    for user in config["users"]:
        user["user"] = {"token": token}
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.write_text(yaml.safe_dump(config))
    pod = scene.pod(limits={GPU: 1})
    scene.running(pod)

    _, error = explain(scene, pod, kubeconfig=kubeconfig, status=2)
    assert "grant the verb 'get' on pods" in error

    role = documented_role()
    subject = {"kind": "ServiceAccount", "name": "default", "namespace": NAMESPACE}
    binding = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRoleBinding",
        "metadata": role["metadata"],
        "roleRef": {
            "apiGroup": "rbac.authorization.k8s.io",
            "kind": "ClusterRole",
            "name": role["metadata"]["name"],
        },
        "subjects": [subject],
    }
    manifest = tmp_path / "role.yaml"
    manifest.write_text(yaml.safe_dump_all([role, binding]))
    cluster.kubectl("apply", "--filename", str(manifest))
    try:
        # RBAC follows what is applied within moments, and templates are asked for by such a pod.
        time.sleep(2)
        assert "is on node" in explain(scene, pod, kubeconfig=kubeconfig, status=0)[0]
        waiting = scene.pod("waiting", templates=[scene.template(count=GPUS)])
        scene.unschedulable(waiting)
        assert "asks for 8 devices" in explain(scene, waiting, kubeconfig=kubeconfig)[0]
    finally:
        cluster.kubectl("delete", "--filename", str(manifest))


def documented_role() -> dict[str, Any]:
    """The ClusterRole that the page about the command has."""
    text = (REPOSITORY / "docs" / "explain.md").read_text()
    (found,) = re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)
    role: dict[str, Any] = yaml.safe_load(found)
    return role
