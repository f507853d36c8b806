"""A claim's own status on a real API server: it says what containers see, and who may write it.

The API server checks more than the one of the contract tests: schema, field managers, permissions
and the admission policy that comes with the driver.
"""

import json
from collections.abc import Callable, Iterator
from contextlib import closing

import pytest
from testbed.api import Api, ApiStatusError, Object
from testbed.commands import wait_until
from testbed.driver import DRIVER_NAME

from e2e.conftest import OTHER
from e2e.monitoring import mapped
from e2e.scene import NAMESPACE, Scene
from e2e.sharing import claim_spec, time_slicing

pytestmark = pytest.mark.e2e

FOREIGN = {"driver": "nic.example.com", "pool": "p", "device": "nic-0"}


def claims_of(scene: Scene) -> list[Object]:
    return scene.api.all("ResourceClaim", NAMESPACE)


def entries(scene: Scene, count: int) -> list[Object]:
    """Wait until so many devices are told of in the status of the one claim; return them."""

    found: list[Object] = []

    def look() -> bool:
        (claim,) = claims_of(scene)
        found[:] = claim.get("status", {}).get("devices", [])
        return len(found) == count

    wait_until(look, f"{count} devices in the status of the claim", timeout=120)
    return found


def results(scene: Scene) -> list[Object]:
    (claim,) = claims_of(scene)
    found: list[Object] = claim["status"]["allocation"]["devices"]["results"]
    return found


def monitored(scene: Scene, pod: str) -> set[tuple[str, str]]:
    """Devices and UUIDs of a container's GPUs, as dcgm-exporter finds them."""
    return {(one.device, one.gpu) for one in mapped(scene, pod)}


def path_of(name: str) -> str:
    return f"/apis/resource.k8s.io/v1/namespaces/{NAMESPACE}/resourceclaims/{name}/status"


def apply(api: Api, name: str, *devices: Object, manager: str = "intruder") -> None:
    """Say this of a claim's devices, whatever others said."""
    body = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": name},
        "status": {"devices": list(devices)},
    }
    query = f"?fieldManager={manager}&force=true"
    api.request("PATCH", path_of(name) + query, body, "application/apply-patch+yaml")


def test_whole_gpus_are_named_as_the_container_sees_them_until_they_are_given_back(
    scene: Scene,
) -> None:
    name = scene.claim(count=2)
    pod = scene.pod(claims=[name])
    scene.running(pod)
    found = entries(scene, 2)
    assert sorted(one["data"]["uuid"] for one in found) == sorted(scene.gpus(pod))
    allocated = [(result["driver"], result["pool"], result["device"]) for result in results(scene)]
    assert [(one["driver"], one["pool"], one["device"]) for one in found] == sorted(allocated)
    published = {
        device["name"]: device["attributes"]
        for one in scene.node.slices()
        for device in one.get("devices", [])
    }
    for one in found:
        data, attributes = one["data"], published[one["device"]]
        assert data["type"] == "gpu"
        assert data["uuid"] == attributes["uuid"]["string"]
        assert data["productName"] == attributes["productName"]["string"]
        assert data["pciBusID"] == attributes["resource.kubernetes.io/pciBusID"]["string"]
        assert data["sharing"] == {"strategy": "Exclusive"}
        conditions = {each["type"]: each["status"] for each in one["conditions"]}
        assert conditions == {"Ready": "True", "Healthy": "True"}
    assert monitored(scene, pod) == {(one["device"], one["data"]["uuid"]) for one in found}
    (claim,) = claims_of(scene)
    owners = [one["manager"] for one in claim["metadata"]["managedFields"]]
    assert f"{DRIVER_NAME}/dra-driver" in owners
    scene.delete(pod)
    entries(scene, 0)


@pytest.mark.parametrize(
    ("how", "separators", "operation"),
    [
        ("in order", (",", ":"), "Apply"),
        ("as Go has it", (",", ":"), "Update"),
        ("with blanks", None, None),
    ],
)
def test_a_config_is_left_as_it_was_sent(
    scene: Scene, how: str, separators: tuple[str, str] | None, operation: str | None
) -> None:
    name = scene.name("sent")
    config = time_slicing("Long")
    kind_first = {"kind": config["kind"], **config}
    claim = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": claim_spec({"gpu": kind_first}),
    }
    text = json.dumps(claim, sort_keys=how == "in order", separators=separators)
    path = f"/apis/resource.k8s.io/v1/namespaces/{NAMESPACE}/resourceclaims"
    scene.node.cluster.kubectl("create", "--raw", path, "-f", "-", stdin=text)
    try:
        pod = scene.pod(claims=[name])
        scene.running(pod)
        if operation is None:
            # No client that speaks JSON can write such a claim's status; its pod runs all the same.
            refused = f"cannot patch resourceclaims/status {NAMESPACE}/{name}"
            wait_until(lambda: refused in scene.node.driver.tail(99), "the refusal", timeout=120)
            assert "devices" not in scene.api.get("ResourceClaim", name, NAMESPACE)["status"]
        else:
            (one,) = entries(scene, 1)
            assert one["data"]["sharing"] == {"strategy": "TimeSlicing", "interval": "Long"}
            fields = claims_of(scene)[0]["metadata"]["managedFields"]
            (ours,) = (each for each in fields if each["manager"] == f"{DRIVER_NAME}/dra-driver")
            assert ours["operation"] == operation
        scene.delete(pod)
    finally:
        scene.api.delete("ResourceClaim", name, NAMESPACE)


@pytest.fixture
def told(scene: Scene) -> Object:
    """A running pod's claim, whose status the driver has written."""
    scene.running(scene.pod(claims=[scene.claim()]))
    entries(scene, 1)
    (claim,) = claims_of(scene)
    return claim


@pytest.fixture
def unbound(scene: Scene) -> Iterator[Api]:
    """The API as the driver's ServiceAccount uses it with a token that names no node."""
    token = scene.node.cluster.kubectl(
        *("create", "token", "dra-driver", "--namespace", "dra-driver")
    ).strip()
    with closing(Api.from_kubeconfig(scene.node.credentials.kubeconfig, token=token)) as api:
        yield api


def lie_of(told: Object) -> Object:
    (entry,) = told["status"]["devices"]
    return {**entry, "data": {"uuid": "GPU-lie"}}


CHANGES: tuple[tuple[Callable[[Object], Object], str], ...] = (
    (
        lambda _: {"allocation": None, "reservedFor": None},
        "resourceclaims/binding|may not change which devices a claim has",
    ),
    (
        lambda claim: {
            "reservedFor": [
                *claim["status"]["reservedFor"],
                {"resource": "pods", "name": "x", "uid": "x"},
            ]
        },
        "resourceclaims/binding|or who has reserved it",
    ),
    (
        lambda claim: {
            "devices": [*claim["status"]["devices"], {**FOREIGN, "data": {"is": "a lie"}}]
        },
        "arbitrary-node:patch|may not change what other drivers say|must be an allocated device",
    ),
)


def test_only_the_driver_of_the_node_writes_a_claims_status_and_only_of_its_devices(
    scene: Scene, told: Object, other_node: Api, unbound: Api, driver_api: Api
) -> None:
    """By the API server's own rule (1.36), or by the policy alone before it."""
    name = told["metadata"]["name"]
    refused = f"arbitrary-node:patch|the driver on node {OTHER} may write the status only of claims"
    with pytest.raises(ApiStatusError, match=refused):
        apply(other_node, name, lie_of(told))
    with pytest.raises(ApiStatusError, match=refused):
        other_node.patch("ResourceClaim", name, {"status": {"devices": []}}, NAMESPACE, "/status")
    with pytest.raises(ApiStatusError, match=r"arbitrary-node:patch|names no node"):
        apply(unbound, name, lie_of(told))
    for change, refused in CHANGES:
        with pytest.raises(ApiStatusError, match=refused):
            driver_api.patch("ResourceClaim", name, {"status": change(told)}, NAMESPACE, "/status")
    assert claims_of(scene) == [told]
