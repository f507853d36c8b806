"""The quota on the page about other tools limits what a namespace gets."""

import json
import re
from functools import partial

import pytest
import yaml
from testbed.api import Api, ApiStatusError, Object
from testbed.claims import claim
from testbed.commands import REPOSITORY, wait_until
from testbed.pods import make_namespace

from dra_driver.admin.doctor.facts.cluster_facts import Feature
from e2e.kubernetes import needs
from e2e.scene import Scene

pytestmark = [pytest.mark.e2e, needs(Feature.EXTENDED_RESOURCE)]

NAMESPACE = "e2e-quota"


def quota() -> Object:
    """The page's example."""
    page = (REPOSITORY / "docs" / "works-with.md").read_text()
    blocks = re.findall(r"^```yaml\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    (found,) = map(yaml.safe_load, filter(_is_quota, blocks))
    return {**found, "metadata": {"name": found["metadata"]["name"]}}


def _is_quota(block: str) -> bool:
    return "kind: ResourceQuota" in block


def refused(api: Api, device_class: str) -> bool:
    """Whether the quota refuses one more claim."""
    path = f"/apis/resource.k8s.io/v1/namespaces/{NAMESPACE}/resourceclaims?dryRun=All"
    try:
        api.request("POST", path, claim("over", device_class=device_class))
    except ApiStatusError as error:
        return "exceeded quota: gpus" in str(error)
    return False


def test_the_quota_of_the_page_refuses_more_claims_of_each_class(scene: Scene) -> None:
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
        wait_until(partial(refused, api, device_class), "the quota to refuse one more", timeout=30)
    api.delete("Namespace", NAMESPACE)
