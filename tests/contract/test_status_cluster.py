"""`dra-driver status --cluster` over an API server, as people run it."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from testbed.apiserver.server import ApiServer

import make
from dra_driver.cli import main
from dra_driver.slices.consumable import Consumable
from dra_driver.slices.offer.shares import ShareOffer
from dra_driver.slices.project import projection
from published import counter_set, device, part_of, shares, slices

PLAIN = slices([device(f"gpu-{number}") for number in range(4)])
SHARED = slices(shares(10), [counter_set(shares=10)], node="node-2")


Status = Callable[..., str]


@pytest.fixture
def shown(api: ApiServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Status:
    """What it prints with these options; with status 1 only its error."""
    kubeconfig = api.write_kubeconfig(tmp_path / "kubeconfig")

    def shown(*options: str, status: int = 0) -> str:
        assert main(["status", "--cluster", f"--kubeconfig={kubeconfig}", *options]) == status
        said = capsys.readouterr()
        assert (said.out if status else said.err) == ""
        return said.err if status else said.out

    return shown


def in_use(api: ApiServer) -> None:
    """Two nodes, and claims of two namespaces."""
    api.put(*PLAIN, *SHARED)
    api.put(make.claim_object("gpu-0", "gpu-1", name="two", uid="1"))
    share = make.claim_object("gpu-0-share-3", pool="node-2", namespace="team", uid="2")
    api.put(share)


def test_nodes_and_resource_names_of_the_whole_cluster(api: ApiServer, shown: Status) -> None:
    in_use(api)
    assert shown("--output=wide").splitlines() == [
        "NODE    RESOURCE NAME          OFFERED  USED  BLOCKED  FREE",
        "node-1  nvidia.com/gpu         4        2     0        2",
        "node-2  nvidia.com/gpu.shared  10       1     0        9",
        "",
        "NODE    DEVICE         RESOURCE NAME          CLAIM        USED BY",
        "node-1  gpu-0          nvidia.com/gpu         default/two  pod",
        "node-1  gpu-1          nvidia.com/gpu         default/two  pod",
        "node-2  gpu-0-share-3  nvidia.com/gpu.shared  team/claim   pod",
    ]
    assert {entry.verb for entry in api.log} == {"list"}


def test_a_pod_that_has_devices_and_does_not_start_is_named_with_the_reason(
    api: ApiServer, shown: Status
) -> None:
    in_use(api)
    why = "NodePrepareResources failed: request gpu asks for 2 of nvidia.com/gpu; ask for 1"
    pod = {"namespace": "default", "name": "pod", "uid": "pod-uid"}
    api.put(
        {"apiVersion": "v1", "kind": "Pod", "metadata": pod, "status": {"phase": "Pending"}},
        {
            "apiVersion": "events.k8s.io/v1",
            "kind": "Event",
            "metadata": {"namespace": "default", "name": "pod.1"},
            "reason": "FailedPrepareDynamicResources",
            "note": why,
            "regarding": {"kind": "Pod"} | pod,
        },
    )
    assert f"have devices, but do not start:\n  pod default/pod: {why}\n" in shown()
    document = json.loads(shown("--output=json"))
    assert document["refused"] == [{"pod": "default/pod", "why": why}]


def test_one_node_alone(api: ApiServer, shown: Status) -> None:
    in_use(api)
    found = json.loads(shown("--node=node-2", "--output=json"))
    assert [node["name"] for node in found["nodes"]] == ["node-2"]
    assert found["nodes"][0]["resources"][0] == {
        "name": "nvidia.com/gpu.shared",
        "offered": 10,
        "used": 1,
        "blocked": 0,
        "free": 9,
        "parts": 1,
        "capacities": {},
    }
    assert found["poolsNotPublished"] == []


def test_parts_of_a_device_by_capacity(api: ApiServer, shown: Status) -> None:
    share = ShareOffer(consumable=Consumable.of("4"))
    gpu = make.gpu(0, memory_bytes=15000 * 1024**2)
    api.put(*slices(projection(make.inventory(gpu), share=share).devices))
    api.put(part_of("gpu-0", "a", {"memory": "4000Mi", "cores": 20, "shares": 1}))
    assert shown().splitlines() == [
        "NODE    RESOURCE NAME   OFFERED  USED  BLOCKED  FREE",
        "node-1  nvidia.com/gpu  4        1     0        3",
        "",
        "NODE    RESOURCE NAME   CAPACITY  OFFERED    USED      FREE       MOST ON ONE DEVICE",
        "node-1  nvidia.com/gpu  memory    15000 MiB  4000 MiB  11000 MiB  11000 MiB",
        "node-1  nvidia.com/gpu  cores     100 %      20 %      80 %       80 %",
        "node-1  nvidia.com/gpu  shares    4          1         3          3",
    ]


def test_a_large_cluster_comes_in_pages(api: ApiServer, shown: Status) -> None:
    for number in range(130):
        name = f"node-{number}"
        api.put(*slices([device("gpu-0")], node=name))
        for claim in range(5):
            facts = {"name": f"claim-{number}-{claim}", "uid": f"{number}-{claim}"}
            api.put(make.claim_object(*["gpu-0"][claim:], pool=name, **facts))
    found = json.loads(shown("--output=json"))
    numbers = [resource for node in found["nodes"] for resource in node["resources"]]
    assert len(numbers) == 130
    assert {(one["offered"], one["used"], one["free"]) for one in numbers} == {(1, 1, 0)}
    assert len(api.seen("list", "resourceslices")) == 2
    assert len(api.seen("list", "resourceclaims")) == 2


@pytest.mark.parametrize("plural", ["resourceslices", "resourceclaims"])
def test_a_missing_permission_is_named(api: ApiServer, shown: Status, plural: str) -> None:
    in_use(api)
    api.fail("list", plural, status=403, message="forbidden by RBAC")
    error = shown(status=1)
    assert f"grant the verb 'list' on {plural}.resource.k8s.io" in error
    assert "the kubeconfig's user" in error


def test_a_cluster_without_the_api_is_too_old(api: ApiServer, shown: Status) -> None:
    api.fail("list", "resourceslices", status=404, message="404 page not found")
    needs = "does not serve resource.k8s.io/v1; this driver needs Kubernetes 1.34"
    assert needs in shown(status=1)


@pytest.mark.parametrize(
    ("more", "where"), [((), "in this cluster"), (("--node=node-7",), "for the node 'node-7'")]
)
def test_a_cluster_without_slices_differs_from_an_empty_one(
    api: ApiServer, shown: Status, more: tuple[str, ...], where: str
) -> None:
    (other,) = slices([device("gpu-0")], node="node-7")
    other["spec"]["driver"] = "net.example.com"
    other["metadata"]["name"] = "other"
    api.put(other)
    said = shown(*more, status=1)
    assert f"no ResourceSlice of the driver gpu.nvidia.com {where}" in said

    api.put(*slices([], node="node-8"), *slices([], node="node-7"))
    assert "without devices" in shown(*more)
