"""A real API server refuses what `dra-driver validate` does, and warns of near misses too."""

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from testbed.api import Api, ApiStatusError, Object
from testbed.commands import wait_until
from testbed.node import GpuNode
from testbed.pods import make_namespace

from bad_objects import BAD_OBJECTS, GOOD, BadObject
from dra_driver.admin.admission.near_miss_policy import NEAR_MISSES
from e2e.scene import NAMESPACE, claim_spec

pytestmark = pytest.mark.e2e

CONVERTED = Path(__file__).parents[1] / "data" / "convert"
GROUPS = {"Pod": "/api/v1", "ConfigMap": "/api/v1", "CronJob": "/apis/batch/v1"}
CLUSTER_WIDE = {"DeviceClass", "ResourceClass"}


def create(api: Api, text: str) -> None:
    """Have the API server judge a manifest as kubectl does with --validate=strict; keep nothing."""
    value = yaml.safe_load(text)
    kind = value["kind"]
    group = GROUPS.get(kind, f"/apis/{value['apiVersion']}")
    api.request("GET", group)  # of a version that is not served it reads no body that is sent
    scope = "" if kind in CLUSTER_WIDE else f"/namespaces/{NAMESPACE}"
    plural = f"{kind.lower()}{'es' if kind.endswith('Class') else 's'}"
    path = f"{group}{scope}/{plural}?dryRun=All&fieldValidation=Strict"
    api.request("POST", path, text.encode(), "application/yaml")


@pytest.mark.parametrize("bad", BAD_OBJECTS, ids=lambda bad: str(bad.name))
def test_the_api_server_refuses_what_validate_refuses(node: GpuNode, bad: BadObject) -> None:
    with pytest.raises(ApiStatusError) as refusal:
        create(node.cluster.api, bad.text)
    assert refusal.value.code in {400, 404, 422}


def test_the_api_server_accepts_what_validate_accepts(node: GpuNode) -> None:
    for text in GOOD.split("---\n")[:2]:
        create(node.cluster.api, text)


@pytest.fixture(scope="module")
def team(node: GpuNode) -> Iterator[Api]:
    """The API server, which has the namespace of converted manifests, with admin access."""
    api = node.cluster.api
    make_namespace(api, "team")
    label = "resource.kubernetes.io/admin-access=true"
    node.cluster.kubectl("label", "namespace", "team", label)
    yield api
    api.delete("Namespace", "team")


@pytest.mark.parametrize("version", sorted(path.name for path in CONVERTED.iterdir()))
def test_the_api_server_takes_what_convert_prints(node: GpuNode, team: Api, version: str) -> None:
    # As JSON: what YAML 1.1 takes for text, kubectl may take for a number.
    documents = list(yaml.safe_load_all((CONVERTED / version / "out.yaml").read_text()))
    items = [
        document for document in documents if document["kind"] not in {"Namespace", "ComputeDomain"}
    ]
    text = "\n---\n".join(map(json.dumps, items))
    words = ("create", "--dry-run=server", "--validate=strict", "--namespace", "team", "-f", "-")
    printed = node.cluster.kubectl(*words, stdin=text)
    assert printed.count("created (server dry run)") >= len(items) > 0


def warnings(node: GpuNode, kind: str, spec: object, version: str = "resource.k8s.io/v1") -> str:
    """What kubectl prints as warnings when such an object is created."""
    metadata = {"name": "near"}
    body = {"apiVersion": version, "kind": kind, "metadata": metadata}
    env = node.cluster.env
    done = subprocess.run(
        (
            *(env["KUBECTL"], "--kubeconfig", env["KUBECONFIG"], "--namespace", NAMESPACE),
            *("create", "--dry-run=server", "-f", "-"),
        ),
        input=json.dumps(body | {"spec": spec}).encode(),
        capture_output=True,
        check=True,
    )
    return done.stderr.decode()


def test_a_near_miss_is_created_with_a_warning(node: GpuNode) -> None:
    def with_driver(name: str) -> object:
        opaque = {"driver": name, "parameters": {"any": "thing"}}
        return {"devices": claim_spec()["devices"] | {"config": [{"opaque": opaque}]}}

    def selecting(expression: str) -> object:
        return {"selectors": [{"cel": {"expression": expression}}]}

    said = 'opaque.driver "gpu.nvidia.org" is not this driver: did you mean "gpu.nvidia.com"?'
    wait_until(
        lambda: said in warnings(node, "ResourceClaim", with_driver("gpu.nvidia.org")),
        f"the policy {NEAR_MISSES} to be at work",
        timeout=120,
    )
    assert warnings(node, "ResourceClaimTemplate", {"spec": with_driver("gpus.nvidia.com")})
    assert warnings(node, "ResourceClaim", with_driver("compute-domain.nvidia.com")) == ""
    assert "a selector names a driver" in warnings(
        node, "DeviceClass", selecting("device.driver == 'gpu.nvida.com'")
    )


def test_a_pod_that_names_its_node_and_asks_for_gpus_is_created_with_a_warning(
    node: GpuNode,
) -> None:
    def pinned(limits: dict[str, int]) -> Object:
        container = {"name": "main", "image": "demo", "resources": {"limits": limits}}
        return {"containers": [container], "nodeName": node.cluster.node}

    def workloads(spec: Object) -> dict[str, str]:
        """What is said of the pod, and of each workload that has it."""
        labels = {"app": "near"}
        template = {"metadata": {"labels": labels}, "spec": spec}
        job = {"template": template | {"spec": spec | {"restartPolicy": "Never"}}}
        served = {"selector": {"matchLabels": labels}, "template": template}
        kinds = {
            ("v1", "Pod"): spec,
            **{("apps/v1", one): served for one in ("Deployment", "DaemonSet", "ReplicaSet")},
            ("apps/v1", "StatefulSet"): served | {"serviceName": "near"},
            ("batch/v1", "Job"): job,
            ("batch/v1", "CronJob"): {"schedule": "* * * * *", "jobTemplate": {"spec": job}},
        }
        return {
            kind: warnings(node, kind, of_kind, version)
            for (version, kind), of_kind in kinds.items()
        }

    gpus = "nothing allocates nvidia.com/gpu unless a device plugin serves that node"
    wait_until(
        lambda: gpus in workloads(pinned({"nvidia.com/gpu": 1}))["Pod"],
        "the policy dra-driver-pinned-pods",
        timeout=120,
    )
    said = workloads(pinned({"nvidia.com/gpu": 8}))
    assert [kind for kind, text in said.items() if gpus not in text] == []
    assert set(workloads(pinned({"cpu": 1})).values()) == {""}
