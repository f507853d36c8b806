"""The quota on the page about other tools limits what a namespace gets, however it is asked for."""

import json
import re
import subprocess

import pytest
import yaml
from testbed.api import Api, ApiStatusError, Object
from testbed.claims import claim
from testbed.commands import REPOSITORY, wait_until
from testbed.machine import DRIVER
from testbed.pods import container, make_namespace

from dra_driver.admin.doctor.facts.cluster_facts import Feature
from e2e.kubernetes import needs
from e2e.scene import Scene

pytestmark = [pytest.mark.e2e, needs(Feature.EXTENDED_RESOURCE)]

NAMESPACE = "e2e-quota"
IMPLICIT = "deviceclass.resource.kubernetes.io/gpu.nvidia.com"


def quota() -> Object:
    """The page's example."""
    page = (REPOSITORY / "docs" / "works-with.md").read_text()
    blocks = re.findall(r"^```yaml\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    (found,) = map(yaml.safe_load, filter(_is_quota, blocks))
    return {**found, "metadata": {"name": found["metadata"]["name"]}}


def _is_quota(block: str) -> bool:
    return "kind: ResourceQuota" in block


def pod(resource: str, *, scheduler: str) -> Object:
    """A pod that names a resource in its limits."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"generateName": "over-"},
        "spec": {
            "schedulerName": scheduler,
            "containers": [container("ctr", {"limits": {resource: "1"}})],
        },
    }


def wait_refused(api: Api, thing: Object, why: str) -> None:
    """Wait until the API server refuses it: what it knows of classes may be a moment old."""
    version = "/api/v1" if thing["kind"] == "Pod" else "/apis/resource.k8s.io/v1"
    path = f"{version}/namespaces/{NAMESPACE}/{thing['kind'].lower()}s?dryRun=All"

    def refused() -> bool:
        try:
            api.request("POST", path, thing)
        except ApiStatusError as error:
            return "exceeded quota: gpus" in str(error) and why in str(error)
        return False

    wait_until(refused, f"the quota to refuse {thing['kind']}: {why}", timeout=30)


def test_the_quota_holds_for_each_way_of_asking(scene: Scene) -> None:
    api, wanted = scene.api, quota()
    make_namespace(api, NAMESPACE)
    quotas = f"/api/v1/namespaces/{NAMESPACE}/resourcequotas"
    api.request("POST", quotas, wanted)
    name, hard = wanted["metadata"]["name"], wanted["spec"]["hard"]

    def status() -> Object:
        answer: Object = json.loads(api.request("GET", f"{quotas}/{name}"))
        return answer.get("status", {})

    wait_until(lambda: status().get("hard") == hard, "the quota to be looked at", timeout=60)
    for device_class in ("gpu.nvidia.com", "mig.nvidia.com"):
        budget = int(hard[f"{device_class}.deviceclass.resource.k8s.io/devices"])
        assert budget > 0
        for number in range(budget):
            one = claim(f"{device_class}-{number}", device_class=device_class)
            api.create(one, NAMESPACE)
        wait_refused(api, claim("over", device_class=device_class), "exceeded quota: gpus")
    for resource in ("nvidia.com/gpu", "nvidia.com/gpu.shared"):
        wait_refused(api, pod(resource, scheduler="nobody"), f"requests.{resource}=1")
    # Nor does a claim of the class behind a resource name get round it.
    behind = claim("behind", device_class="gpu.resource.nvidia.com")
    wait_refused(api, behind, "requests.nvidia.com/gpu=1")
    # What has no line is not limited, as the page says.
    api.create(pod("nvidia.com/mig-1g.10gb", scheduler="nobody"), NAMESPACE)
    # The implicit name of a class counts as a claim of it: here the scheduler may not make one.
    implicit = api.create(pod(IMPLICIT, scheduler="default-scheduler"), NAMESPACE)
    wait_until(
        lambda: [
            event
            for event in api.all("Event", NAMESPACE)
            if event["involvedObject"]["name"] == implicit["metadata"]["name"]
            and "exceeded quota" in event["message"]
        ],
        "the scheduler to say that the quota refuses its claim",
        timeout=60,
    )
    said = explained(scene)
    assert "its claim cannot be made: " in said
    assert "exceeded quota: gpus" in said
    api.delete("Namespace", NAMESPACE)


def explained(scene: Scene) -> str:
    """What is said of a pod whose claim of a template the quota forbids: only its events know."""
    spec = claim("of-template")["spec"]
    template: Object = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaimTemplate",
        "metadata": {"name": "one"},
        "spec": {"spec": spec},
    }
    scene.api.create(template, NAMESPACE)
    waiting = pod("cpu", scheduler="default-scheduler")
    waiting["metadata"] = {"name": "waiting"}
    waiting["spec"]["resourceClaims"] = [{"name": "gpu", "resourceClaimTemplateName": "one"}]
    scene.api.create(waiting, NAMESPACE)
    kubeconfig = scene.node.cluster.env["KUBECONFIG"]
    words = (DRIVER, "explain", "pod/waiting", "-n", NAMESPACE, "--kubeconfig", kubeconfig)

    def look() -> str:
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        return done.stdout if done.returncode == 1 else ""

    return wait_until(look, "explain to say that it does not fit", timeout=60)
