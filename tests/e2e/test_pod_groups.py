"""A claim that is reserved for a PodGroup: one GPU for all of its pods, and no limited share.

One node with one simulated H100, on a cluster of its own with the features of KEP-5729, and a
driver of R615, which limits memory by control groups.
"""

import json
import os
from collections.abc import Iterator

import pytest
from testbed.api import Object
from testbed.cluster import Cluster
from testbed.commands import run
from testbed.machine import DRIVER
from testbed.pods import container

from dra_driver.admin.doctor.facts.cluster_facts import Feature
from e2e.conftest import h100x1
from e2e.explaining import explain
from e2e.kubernetes import KUBERNETES, needs
from e2e.scene import NAMESPACE, Scene
from e2e.shares import Shares, limits_by_control_group, shares_of, unshared_scene

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.stream("own"),
    pytest.mark.long(  # what is switched off by default
        "tests/contract/claims/test_mps_events.py"
        "::test_events_go_to_a_pod_group_in_place_of_its_pods"
    ),
    needs(Feature.COUNTERS, Feature.EXTENDED_RESOURCE),
    pytest.mark.skipif(
        KUBERNETES.startswith(("1.34", "1.36")),
        reason=f"Kubernetes {KUBERNETES} has no scheduling.k8s.io/v1beta1",
    ),
]

GATES = "GenericWorkload=true,DRAWorkloadResourceClaims=true"
API = "scheduling.k8s.io/v1beta1"


@pytest.fixture(scope="module")
def shares(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shares]:
    options = limits_by_control_group()
    folder = tmp_path_factory.mktemp("groups")
    cluster = Cluster(
        f"{os.environ.get('E2E_CLUSTER', 'e2e')}-groups",
        KUBERNETES,
        (f"kube-apiserver:--runtime-config={API}=true",),
        feature_gates=GATES,
    )
    with shares_of(h100x1(folder), folder, cluster, machine_options=options) as found:
        yield found


@pytest.fixture
def scene(shares: Shares, request: pytest.FixtureRequest) -> Iterator[Scene]:
    yield from unshared_scene(shares, request)


class Gang:
    """A PodGroup, its claim by a template, and its pods."""

    def __init__(self, scene: Scene, template: str) -> None:
        self.scene, self.template = scene, template
        self.name = scene.name("gang")
        body: Object = {
            "apiVersion": API,
            "kind": "PodGroup",
            "metadata": {"name": self.name},
            "spec": {
                "schedulingPolicy": {"basic": {}},
                "resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": template}],
            },
        }
        self._kubectl("apply", "-f", "-", body=body)

    def pod(self, name: str) -> str:
        spec = {
            "terminationGracePeriodSeconds": 1,
            "schedulingGroup": {"podGroupName": self.name},
            "resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": self.template}],
            "containers": [container("ctr", {"claims": [{"name": "gpu"}]})],
        }
        return self.scene.make("Pod", name, {"spec": spec})

    def claim(self) -> Object:
        (found,) = self.scene.api.all("ResourceClaim", NAMESPACE)
        return found

    def events(self) -> str:
        return self._kubectl("describe", "podgroup", self.name)

    def delete(self, *pods: str) -> None:
        self.scene.delete(*pods)
        self._kubectl("delete", "podgroup", self.name)

    def _kubectl(self, *words: str, body: Object | None = None) -> str:
        text = None if body is None else json.dumps(body)
        return self.scene.node.cluster.kubectl("--namespace", NAMESPACE, *words, stdin=text)


def command(scene: Scene, *words: str) -> str:
    place = scene.node.place
    root = place.driver_root
    flags = ("--kubelet-plugins-directory-path", place.plugins, "--proc-root", root / "proc")
    return run((DRIVER, *words, *flags))


def test_the_pods_of_a_group_share_one_gpu_and_the_group_is_named_everywhere(scene: Scene) -> None:
    gang = Gang(scene, scene.template())
    pods = [gang.pod("worker-1"), gang.pod("worker-2")]
    scene.running(*pods)
    assert len({scene.gpus(pod) for pod in pods}) == 1
    claim = gang.claim()
    (user,) = claim["status"]["reservedFor"]
    assert (user["apiGroup"], user["resource"], user["name"]) == (
        "scheduling.k8s.io",
        "podgroups",
        gang.name,
    )
    (line,) = scene.node.driver.events("claim prepared")[-1:]
    assert line["pod_groups"] == [gang.name]
    assert f"podgroups/{gang.name}" in command(scene, "status")
    kubeconfig = scene.node.cluster.env["KUBECONFIG"]
    wide = run((DRIVER, "status", "--cluster", "--output=wide", "--kubeconfig", kubeconfig))
    assert f"podgroups/{gang.name}" in wide
    waiting = scene.pod("waiting", templates=[scene.template("other")])
    scene.unschedulable(waiting)
    assert f"PodGroup {gang.name}" in explain(scene, waiting)[0]
    gang.delete(*pods)
    scene.running(waiting)
