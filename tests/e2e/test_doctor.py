"""`dra-driver doctor` on a real cluster, as an admin and as the driver see it."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from testbed.commands import run
from testbed.machine import DRIVER
from testbed.node import GpuNode

from dra_driver.admin.doctor.checks.finding import Place
from dra_driver.admin.doctor.every_check import CHECKS
from dra_driver.admin.doctor.facts.cluster_facts import Feature
from e2e.kubernetes import lacking

pytestmark = pytest.mark.e2e

Document = dict[str, Any]

NOT_INSTALLED = {"daemonset", "driver-pods", "permissions", "share-config"}
"""The driver of these tests is a process of the host, and no DaemonSet."""


def report(kubeconfig: str | Path, *more: str) -> Document:
    words = (DRIVER, "doctor", "--scope=cluster", "-o", "json", "--kubeconfig", kubeconfig, *more)
    found: Document = json.loads(run(words))
    return found


def severities(document: Document) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for finding in document["findings"]:
        found.setdefault(finding["id"], set()).add(finding["severity"])
    return found


def test_an_admin_sees_that_all_is_fine(node: GpuNode) -> None:
    document = report(node.cluster.env["KUBECONFIG"])
    found = severities(document)
    assert found.keys() == {check.id for check in CHECKS if Place.CLUSTER in check.needs}
    # Whether 1.7 has CDI switched on is said by its files alone, which are not seen from here.
    is_old = node.cluster.env.get("CLUSTER_CONTAINERD_VERSION", "").startswith("1.")
    unseen = {"runtime-cdi"} if is_old else set()
    lacks = {"api-server-features"} if lacking() else set()
    other = {name for name, seen in found.items() if seen != {"ok"}}
    assert other == NOT_INSTALLED | unseen | lacks
    assert document["summary"]["error"] == 0


def test_missing_features_match_the_page_of_each_version(node: GpuNode) -> None:
    found = report(node.cluster.env["KUBECONFIG"])["findings"]
    without = {
        Feature(gate)
        for one in found
        for gate in re.findall(r"the API server does not have (\w+):", one["seen"])
    }
    assert without == lacking()


def test_the_driver_itself_sees_less_and_nothing_wrong(node: GpuNode) -> None:
    document = report(node.place.kubeconfig, "--node-name", node.cluster.node)
    found = severities(document)
    assert document["summary"]["error"] == 0
    assert found["slices"] == {"ok"}
    # Its token names its node, so it may try what slices can have; classes it may not create.
    lacks = lacking()
    seen = {"warning" if lacks else "ok", "unknown"} | ({"ok"} if set(Feature) - lacks else set())
    assert found["api-server-features"] == seen
    assert found["kubelet-gates"] == {"unknown"}


KAI = """
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: configs.kai.scheduler}
spec:
  group: kai.scheduler
  scope: Cluster
  names: {kind: Config, plural: configs}
  versions:
    - name: v1
      served: true
      storage: true
      schema: {openAPIV3Schema: {type: object}}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: kai-operator, namespace: default}
spec:
  replicas: 0
  selector: {matchLabels: {app: kai-operator}}
  template:
    metadata: {labels: {app: kai-operator}}
    spec:
      containers:
        - name: operator
          image: ghcr.io/kai-scheduler/kai-scheduler/operator:v0.17.0
"""
"""As much of KAI-Scheduler as doctor looks at: it is not run here."""


def test_kai_scheduler_is_seen_by_an_admin_and_by_the_driver(node: GpuNode) -> None:
    def told(kubeconfig: str | Path) -> str:
        (found,) = [
            finding for finding in report(kubeconfig)["findings"] if finding["id"] == "schedulers"
        ]
        seen: str = found["seen"]
        return seen

    admin = node.cluster.env["KUBECONFIG"]
    assert told(admin) == "neither KAI-Scheduler nor Kueue is installed"
    node.cluster.kubectl("apply", "-f", "-", stdin=KAI)
    try:
        node.cluster.kubectl("wait", "--for=condition=Established", "crd/configs.kai.scheduler")
        assert told(admin).startswith("KAI-Scheduler v0.17.0 is installed, and ")
        # The driver may not list Deployments.
        assert told(node.place.kubeconfig).startswith("KAI-Scheduler is installed, and ")
    finally:
        node.cluster.kubectl("delete", "-f", "-", stdin=KAI)
