"""What a pod asks for: its claims, and those that the scheduler would make."""

import pytest

import explained
import make
from dra_driver.admin.api.nodes import Node
from dra_driver.admin.api.objects import full_name
from dra_driver.admin.explain.allocated import users_text
from dra_driver.admin.explain.demand import Demand, of_claim, of_pod
from explained import Object

CREATE = "create it there, or correct the pod's spec"

GPU = "nvidia.com/gpu"
NODE = Node.of(explained.node())


def demand(pod: Object, *things: Object, classes: list[Object] | None = None) -> Demand:
    claims = {full_name(thing): thing for thing in things if thing["kind"] == "ResourceClaim"}
    made = {full_name(thing): thing for thing in things if thing["kind"] == "ResourceClaimTemplate"}
    return of_pod(
        pod,
        lambda name: claims.get(f"default/{name}"),
        lambda name: made.get(f"default/{name}"),
        explained.classes() if classes is None else classes,
    )


def container(name: str, gpus: int, **facts: object) -> Object:
    amounts = {GPU: str(gpus), "cpu": "1"} if gpus else {"cpu": "1"}
    return {"name": name, "resources": {"requests": amounts}, **facts}


def by_resource(inits: list[Object], containers: list[Object]) -> dict[str, int]:
    pod = explained.pod(initContainers=inits)
    pod["spec"]["containers"] = containers
    (claim,) = demand(pod).claims_on(NODE)
    return {
        request.parent: request.count for entry in claim.requests for request in entry.alternatives
    }


def test_each_container_gets_its_own_devices() -> None:
    assert by_resource([], [container("a", 1), container("b", 0), container("c", 2)]) == {
        "container-0-request-1": 1,
        "container-2-request-1": 2,
    }


def test_init_containers_have_those_of_later_ones() -> None:
    assert by_resource([container("init", 1)], [container("main", 2)]) == {
        "container-1-request-1": 2
    }


def test_init_containers_that_need_more_get_the_rest() -> None:
    inits = [container("first", 3), container("second", 4)]
    assert by_resource(inits, [container("main", 2)]) == {
        "container-1-request-1": 2,
        "container-2-request-1": 2,
    }


def test_sidecars_keep_their_own() -> None:
    inits = [container("side", 1, restartPolicy="Always"), container("init", 2)]
    assert by_resource(inits, [container("main", 1)]) == {
        "container-0-request-1": 1,
        "container-1-request-1": 1,
        "container-2-request-1": 1,
    }


def test_the_newest_class_stands_behind_a_resource_name() -> None:
    def device_class(name: str, made: str) -> Object:
        metadata = {"name": name, "creationTimestamp": made}
        return {"metadata": metadata, "spec": {"extendedResourceName": GPU}}

    pod = explained.pod(limits={GPU: 1})
    old, new = (
        device_class("old", "2026-01-01T00:00:00Z"),
        device_class("b", "2026-02-01T00:00:00Z"),
    )
    twin = device_class("a", "2026-02-01T00:00:00Z")
    assert demand(pod, classes=[old, new, twin]).resources == {GPU: "a"}
    assert demand(pod, classes=[twin, new, old]).resources == {GPU: "a"}
    assert demand(pod, classes=[]).resources == {GPU: ""}


def test_every_class_has_a_resource_name_of_its_own() -> None:
    name = "deviceclass.resource.kubernetes.io/gpu.nvidia.com"
    assert demand(explained.pod(limits={name: 1})).resources == {name: "gpu.nvidia.com"}


@pytest.mark.parametrize("name", ["cpu", "memory", "hugepages-2Mi"])
def test_other_resources_are_ignored(name: str) -> None:
    assert demand(explained.pod(limits={name: 1})).is_empty


def test_no_class_is_behind_a_name_of_kubernetes_itself() -> None:
    assert demand(explained.pod(limits={"x.kubernetes.io/y": 1})).resources == {
        "x.kubernetes.io/y": ""
    }


def test_a_name_that_nothing_offers_keeps_the_pod_from_nodes_without_a_plugin_for_it() -> None:
    found = demand(explained.pod(limits={"example.com/nic": 1}))
    assert list(found.obstacles_on(NODE)) == [
        "nothing offers example.com/nic: no DeviceClass, and no device plugin of the node"
    ]
    plugin = Node.of(explained.node(allocatable={"example.com/nic": "2"}))
    assert list(found.obstacles_on(plugin)) == []
    assert found.claims_on(plugin) == ()
    assert "a device plugin offers" in found.unknown_on(plugin)


def test_a_claim_that_was_made_for_the_pod_is_found_by_its_status() -> None:
    pod = explained.pod(templates=["one-gpu"])
    pod["status"]["resourceClaimStatuses"] = [
        {"name": "one-gpu", "resourceClaimName": "train-one-gpu-x7k2p"}
    ]
    (claim,) = demand(pod, explained.claim(name="train-one-gpu-x7k2p")).claims
    assert claim.name == "default/train-one-gpu-x7k2p"


def test_a_pod_that_needs_no_claim_of_its_template_asks_for_none() -> None:
    pod = explained.pod(templates=["one-gpu"])
    pod["status"]["resourceClaimStatuses"] = [{"name": "one-gpu"}]
    assert demand(pod).is_empty


@pytest.mark.parametrize(
    ("pod", "things", "blocked"),
    [
        (explained.pod("gone"), (), f"namespace default has no ResourceClaim gone: {CREATE}"),
        (
            explained.pod(templates=["gone"]),
            (),
            f"namespace default has no ResourceClaimTemplate gone: {CREATE}",
        ),
        (
            explained.pod(schedulingGates=[{"name": "example.com/quota"}]),
            (),
            "the pod has the scheduling gates example.com/quota, which their owner removes",
        ),
    ],
)
def test_missing_objects_are_reported_before_devices(
    pod: Object, things: tuple[Object, ...], blocked: str
) -> None:
    assert demand(pod, *things).blocked == (blocked,)


def test_a_claim_that_is_being_deleted_blocks() -> None:
    claim = explained.claim()
    claim["metadata"]["deletionTimestamp"] = "2026-11-22T00:00:00Z"
    said = "claim default/wanted is being deleted: wait until "
    (blocked,) = demand(explained.pod("wanted"), claim).blocked
    assert blocked == f"{said}it is gone, and create the claim again"
    assert of_claim(claim).blocked == (blocked,)
    used = explained.having("gpu-0", name="wanted")
    used["metadata"] |= claim["metadata"]
    (blocked,) = demand(explained.pod("wanted"), used).blocked
    assert blocked == f"{said}pod train-0 has ended, and create the claim again"
    assert of_claim(used).blocked == (blocked,)
    used["metadata"]["ownerReferences"] = [{"kind": "Pod", "name": "train-0"}]
    assert of_claim(used).blocked == (f"{said}pod train-0 has ended",)


def test_a_claim_has_at_most_256_users() -> None:
    claim = explained.having("gpu-0", name="wanted")
    users = [{"resource": "pods", "name": f"p{n}", "uid": str(n)} for n in range(256)]
    claim["status"]["reservedFor"] = users
    (blocked,) = demand(explained.pod("wanted"), claim).blocked
    assert "in use by 256 pods" in blocked
    users[0]["uid"] = "train"
    assert demand(explained.pod("wanted"), claim).blocked == ()


def test_a_pod_of_a_group_that_has_the_claim_needs_no_place_of_its_own() -> None:
    claim = explained.having("gpu-0", name="wanted")
    users = [{"resource": "pods", "name": f"p{n}", "uid": str(n)} for n in range(255)]
    claim["status"]["reservedFor"] = [*users, make.pod_group("gang")]
    pod = explained.pod("wanted")
    (blocked,) = demand(pod, claim).blocked
    assert "in use by 255 pods and 1 PodGroup, which is the most that can use a claim" in blocked
    pod["spec"]["schedulingGroup"] = {"podGroupName": "gang"}
    assert demand(pod, claim).blocked == ()


def test_users_of_a_claim_are_pods_and_pod_groups() -> None:
    claim = explained.having("gpu-0", name="wanted")
    claim["status"]["reservedFor"] = [make.pod_group("gang")]
    (found,) = demand(explained.pod("wanted"), claim).allocated
    assert found.users == ("podgroups/gang",)
    assert users_text(found.users) == "PodGroup gang"
    assert users_text(("a", "podgroups/gang", "b")) == "pods a, b and PodGroup gang"


def test_an_allocated_claim_keeps_its_pod_on_its_nodes() -> None:
    claim = explained.having("gpu-0", name="wanted")
    requirement = {"key": "metadata.name", "operator": "In", "values": ["node-2"]}
    claim["status"]["allocation"]["nodeSelector"] = {
        "nodeSelectorTerms": [{"matchFields": [requirement]}]
    }
    found = demand(explained.pod("wanted"), claim)
    assert list(found.obstacles_on(NODE)) == [
        "claim default/wanted has devices of metadata.name In (node-2)"
    ]
    assert list(found.obstacles_on(Node.of(explained.node("node-2")))) == []
