"""The chart on a real API server: helm installs it, says whom it reaches, and takes it away again.

There is no image of the driver here, so no pod runs; what is looked at are the objects.
"""

import os
from collections.abc import Iterator

import pytest
import yaml
from testbed.api import Object
from testbed.cluster import Cluster
from testbed.commands import REPOSITORY, TestbedError, wait_until
from testbed.helm import Helm
from testbed.manifests import INSTALL

from e2e.conftest import missing
from e2e.kubernetes import cluster_of
from e2e.needs import cannot_run
from readiness import lacks

pytestmark = [pytest.mark.e2e, pytest.mark.stream("own")]

CHART = REPOSITORY / "manifests" / "chart"
EVERYTHING = REPOSITORY / "tests" / "contract" / "chart_values.yaml"
NAMESPACE = "dra-driver"
OWN_LABEL = "nvidia.com/dra-driver"
CLEANUP = "cleanup.enabled=true"
OF_OTHERS = {"SecurityContextConstraints", "ServiceMonitor", "PrometheusRule"}
"""Kinds that this API server does not have."""
CLUSTER_WIDE = (
    "clusterroles,clusterrolebindings,deviceclasses,"
    "validatingadmissionpolicies,validatingadmissionpolicybindings"
)
IN_NAMESPACE = "daemonsets,serviceaccounts,configmaps,networkpolicies,services,resourcequotas"


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    if reason := missing():
        cannot_run(reason)
    found = cluster_of(f"{os.environ.get('E2E_CLUSTER', 'e2e')[:8]}-chart")
    found.down()
    try:
        found.up(print)
        found.kubectl("label", "node", found.node, "nvidia.com/gpu.present-")
        found.kubectl("create", "namespace", NAMESPACE)
        # What every namespace gets is there before it is compared.
        wait_until(
            lambda: found.kubectl("get", "serviceaccounts", "-n", NAMESPACE, "-o", "name"),
            "the namespace to be set up",
            timeout=60,
        )
        yield found
    finally:
        found.down()


@pytest.fixture(scope="module")
def helm(cluster: Cluster) -> Helm:
    try:
        return Helm(cluster, NAMESPACE)
    except TestbedError as error:
        lacks("helm", str(error))


def everything(cluster: Cluster) -> set[str]:
    """What there is on the cluster of the kinds that the chart makes."""
    get = ("get", "--output", "name")
    own = cluster.kubectl(*get, IN_NAMESPACE, "--namespace", NAMESPACE)
    return {*cluster.kubectl(*get, CLUSTER_WIDE).split(), *own.split()}


def wanted_pods(cluster: Cluster) -> dict[str, int]:
    """How many pods each DaemonSet wants, once the controller has seen its newest form."""

    def look() -> dict[str, int] | None:
        text = cluster.kubectl("get", "daemonsets", "-n", NAMESPACE, "-o", "yaml")
        sets = yaml.safe_load(text)["items"]
        if any(
            one["status"].get("observedGeneration") != one["metadata"]["generation"] for one in sets
        ):
            return None
        return {one["metadata"]["name"]: one["status"]["desiredNumberScheduled"] for one in sets}

    return wait_until(look, "the DaemonSets to be looked at", timeout=60)


def test_helm_installs_names_the_nodes_and_leaves_nothing(cluster: Cluster, helm: Helm) -> None:
    before = everything(cluster)
    said = helm("install", "dra-driver", CHART)
    try:
        assert "NO NODE GETS THE DRIVER: none of 1" in said
        assert f"kubectl label node NODE {OWN_LABEL}=true" in said
        nobody = {"dra-driver": 0, "dra-driver-mps-supervisor": 0}
        assert wanted_pods(cluster) == nobody

        cluster.kubectl("label", "node", cluster.node, f"{OWN_LABEL}=true")
        said = helm("upgrade", "dra-driver", CHART)
        assert "The driver runs on 1 of 1 nodes" in said
        everybody = dict.fromkeys(nobody, 1)
        wait_until(lambda: wanted_pods(cluster) == everybody, "a pod of each DaemonSet", timeout=60)
        helm("upgrade", "dra-driver", CHART, "--set", "mpsSupervisor.enabled=false")
        assert set(wanted_pods(cluster)) == {"dra-driver"}
        words = ("--set", "kubeletPlugin.nodeSelector.gpus-by=dra-driver")
        said = helm("upgrade", "dra-driver", CHART, *words)
        assert "NO NODE GETS THE DRIVER: none of 1" in said
        assert "kubectl label node NODE gpus-by=dra-driver" in said
        said = helm("upgrade", "dra-driver", CHART, "--reuse-values", "--set", CLEANUP)
        assert "rollout status daemonset dra-driver-cleanup" in said
        assert set(wanted_pods(cluster)) == {"dra-driver-cleanup"}
    finally:
        cluster.kubectl("label", "node", cluster.node, f"{OWN_LABEL}-")
        helm("uninstall", "dra-driver", "--wait")
    assert everything(cluster) == before


@pytest.mark.parametrize(
    "label",
    [
        "nvidia.com/gpu.present=true",
        "feature.node.kubernetes.io/pci-10de.present=true",
        "feature.node.kubernetes.io/pci-0302_10de.present=true",
        "feature.node.kubernetes.io/pci-0300_10de.present=true",
        "cloud.google.com/gke-accelerator=nvidia-l4",
        "kubernetes.azure.com/accelerator=nvidia",
        "karpenter.k8s.aws/instance-gpu-manufacturer=nvidia",
    ],
)
def test_a_label_of_gpu_nodes_is_enough(cluster: Cluster, helm: Helm, label: str) -> None:
    cluster.kubectl("label", "node", cluster.node, label)
    try:
        said = helm("install", "dra-driver", CHART, "--dry-run=server")
    finally:
        cluster.kubectl("label", "node", cluster.node, f"{label.partition('=')[0]}-")
    assert "The driver runs on 1 of 1 nodes" in said


@pytest.mark.parametrize("words", [(), ("--set", CLEANUP)], ids=["driver", "cleanup"])
def test_the_charts_objects_are_accepted_without_a_warning(
    cluster: Cluster, helm: Helm, words: tuple[str, ...]
) -> None:
    text = helm("template", "dra-driver", CHART, "--values", EVERYTHING, *words)
    things: list[Object] = [one for one in yaml.safe_load_all(text) if one]
    known = [thing for thing in things if thing["kind"] not in OF_OTHERS]
    done = cluster.kubectl(
        *("apply", "-f", "-", "--dry-run=server", "--warnings-as-errors", "--output", "name"),
        stdin=yaml.safe_dump_all(known),
    )
    assert len(done.split()) == len(known)


def test_kubectl_installs_the_same_and_takes_it_away(cluster: Cluster) -> None:
    before = everything(cluster)
    cluster.kubectl("apply", "-f", INSTALL)
    made = everything(cluster) - before
    cluster.kubectl("apply", "-f", INSTALL)
    assert "daemonset.apps/dra-driver" in made
    assert "deviceclass.resource.k8s.io/gpu.nvidia.com" in made
    # The namespace is among what is taken away.
    cluster.kubectl("delete", "--wait", "-f", INSTALL, timeout=120)
    assert everything(cluster) & made == set()
    after = INSTALL.with_name("cleanup.yaml")
    cluster.kubectl("apply", "-f", after)
    assert wanted_pods(cluster) == {"dra-driver-cleanup": 0}
    cluster.kubectl("delete", "--wait", "-f", after, timeout=120)
    assert everything(cluster) & made == set()
    cluster.kubectl("create", "namespace", NAMESPACE)
