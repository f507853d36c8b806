"""Slices by which another node would keep this one from publishing, and what becomes of them."""

import json
import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
from testbed.api import Api, ApiStatusError, Object
from testbed.commands import wait_until
from testbed.driver import DRIVER_NAME
from testbed.machine import DRIVER

from dra_driver.admin.doctor.facts.cluster_facts import Feature
from e2e.conftest import OTHER
from e2e.kubernetes import counters_are_cheap, is_on, needs
from e2e.scene import Scene, cel

pytestmark = pytest.mark.e2e


def of_other(*, name: str, pool: str = OTHER, driver: str = DRIVER_NAME, **more: str) -> Object:
    """A slice that the other node writes, of the newest generation there could be."""
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"name": name, **more} if name else more,
        "spec": {
            "driver": driver,
            "nodeName": OTHER,
            "pool": {"name": pool, "generation": 2**62, "resourceSliceCount": 1},
            "devices": [],
        },
    }


def first(node: str) -> str:
    """The name of a node's first slice."""
    return f"00000-{DRIVER_NAME}-{node}"


def names_taken(here: str) -> list[Object]:
    """Slices under names that are this node's."""
    return [
        of_other(name=first(here)),
        of_other(name=f"00000-0123abcd-{DRIVER_NAME}-{here}"),
        of_other(name=f"probe-{first(here)}"),
        of_other(name="", generateName=f"{first(here)}-"),
        of_other(name=f"{first(here)}-{OTHER}"),
    ]


def test_another_nodes_token_takes_no_name_and_no_pool_of_this_node(
    scene: Scene, other_node: Api
) -> None:
    here = scene.node.cluster.node
    for one in names_taken(here):
        with pytest.raises(ApiStatusError, match=f"{OTHER} may not name a ResourceSlice") as no:
            other_node.create(one)
        assert no.value.code == 403
    refused = f"node {OTHER} may not write ResourceSlices of pool {here}"
    with pytest.raises(ApiStatusError, match=refused):
        other_node.create(of_other(name=first(OTHER), pool=here))
    for name in (first(OTHER), f"0000f-0123abcd-{DRIVER_NAME}-{OTHER}"):
        other_node.create(of_other(name=name))
        other_node.delete("ResourceSlice", name)


def test_slices_of_before_are_still_changed_and_deleted(scene: Scene, other_node: Api) -> None:
    """As NVIDIA's driver names them, which this driver goes on with, and names of its own."""
    for name in (f"00000-{DRIVER_NAME}-e2e-oth7k2p", f"{OTHER}-{DRIVER_NAME}-x7k2p"):
        made = scene.api.create(of_other(name=name))
        made["spec"]["pool"]["generation"] += 1
        other_node.request("PUT", f"/apis/resource.k8s.io/v1/resourceslices/{name}", made)
        other_node.delete("ResourceSlice", name)


@pytest.fixture
def squatters(scene: Scene) -> Iterator[list[str]]:
    """Slices of another node in this one's pool, under its names, as no policy kept them out."""
    here = scene.node.cluster.node
    ours = published(scene)
    taken = [*ours, f"ffffe-{DRIVER_NAME}-{OTHER}"]
    for name in taken:
        _take(scene.api, name, here)
    yield taken
    for name in (*taken, *published(scene)):
        scene.api.delete("ResourceSlice", name)
    wait_until(lambda: published(scene) == ours, "the slices' usual names", timeout=120)
    scene.rewritten()


def published(scene: Scene) -> list[str]:
    """The names of the node's slices."""
    selector = f"spec.driver={DRIVER_NAME},spec.nodeName={scene.node.cluster.node}"
    found = scene.api.all("ResourceSlice", fieldSelector=selector)
    return [one["metadata"]["name"] for one in found if one["spec"].get("devices")]


def _take(api: Api, name: str, pool: str) -> None:
    """Take a name that a driver would take again within a second, for counters of a pool."""
    slice_of_other = of_other(name=name, pool=pool)
    if is_on(Feature.COUNTERS):
        counters = {"memory": {"value": "1Gi"}}
        del slice_of_other["spec"]["devices"]
        slice_of_other["spec"]["sharedCounters"] = [{"name": "any", "counters": counters}]
    end = time.monotonic() + 20
    while time.monotonic() < end:
        with suppress(ApiStatusError):
            api.delete("ResourceSlice", name)
        with suppress(ApiStatusError):
            api.create(slice_of_other)
            return
    raise AssertionError(name)


def test_a_node_whose_names_and_pool_others_use_goes_on(scene: Scene, squatters: list[str]) -> None:
    here = scene.node.cluster.node
    (name,) = wait_until(lambda: published(scene), "slices under other names", timeout=120)
    assert name.endswith(f"-{DRIVER_NAME}-{here}")
    assert name not in squatters
    told = scene.node.driver.wait_log("slice name taken by others")
    assert told["holder"] == f"driver {DRIVER_NAME}, node {OTHER}"

    # Only 1.36 counts slices of other nodes, those with counters, among the pool's.
    pod = scene.pod(templates=[scene.template()])
    if counters_are_cheap() or not is_on(Feature.COUNTERS):
        scene.running(pod)
    else:
        assert "cannot allocate all claims" in scene.unschedulable(pod)

    words = ("--scope=cluster", "-o", "json", "--kubeconfig", scene.node.cluster.env["KUBECONFIG"])
    done = subprocess.run(
        [DRIVER, "doctor", *words], capture_output=True, text=True, check=False, timeout=120
    )
    found = json.loads(done.stdout)["findings"]
    said = [one for one in found if "uses the pool of" in one["seen"]]
    assert {one["severity"] for one in said} == {"error"}
    assert [one["advice"].split(",")[0] for one in said] == [
        f"kubectl delete resourceslice {name}" for name in sorted(squatters)
    ]
    assert done.returncode == 1
    for name in squatters:
        scene.api.delete("ResourceSlice", name)
    # A slice that goes has the scheduler look at no waiting pod again for five minutes.
    scene.running(scene.pod("after", templates=[scene.template("after")]))


def hostile(*devices: Object) -> Object:
    """A slice in the other node's own pool, as the policy lets it write one."""
    made = of_other(name=first(OTHER))
    made["spec"]["devices"] = list(devices)
    return made


@pytest.fixture
def schedulable(scene: Scene, other_node: Api) -> Iterator[Api]:
    """The other node's token; pods may be scheduled to that node."""
    ready = {"type": "Ready", "status": "True", "reason": "Hostile", "message": "as it says"}
    room = {"cpu": "64", "memory": "64Gi", "pods": "99"}
    status = {"conditions": [ready], "capacity": room, "allocatable": room}
    scene.api.patch("Node", OTHER, {"status": status}, part="/status")
    scene.api.patch("Node", OTHER, {"spec": {"taints": []}})
    yield other_node
    scene.api.delete("ResourceSlice", first(OTHER))


NEEDED: Object = {name: {"string": "any"} for name in ("productName", "brand", "architecture")} | {
    "cudaComputeCapability": {"version": "9.0.0"}
}
GPU = {"type": {"string": "gpu"}, **NEEDED}
MIG = {"type": {"string": "mig"}, **NEEDED}
MEMORY = {"value": "0"}


def device(name: str, attributes: Object) -> Object:
    return {"name": name, "attributes": attributes, "capacity": {"memory": MEMORY}}


@pytest.mark.parametrize(
    "attributes",
    [
        NEEDED,
        GPU | {"type": {"int": 1}},
        {name: value for name, value in GPU.items() if name != "architecture"},
        GPU | {"cudaComputeCapability": {"string": "9.0.0"}},
        MIG,
    ],
)
def test_devices_on_which_a_common_selector_fails_are_refused(
    other_node: Api, attributes: Object
) -> None:
    good = device("good", MIG | {"profile": {"string": "1g.10gb"}})
    bad = device("bad", attributes)
    with pytest.raises(ApiStatusError, match="each device needs the attributes type") as no:
        other_node.create(hostile(good, bad))
    assert no.value.code == 403
    other_node.create(hostile(good))
    other_node.delete("ResourceSlice", first(OTHER))


@needs(Feature.EXTENDED_RESOURCE)
def test_another_nodes_attributes_break_no_shipped_class(scene: Scene, schedulable: Api) -> None:
    product = f"device.attributes['{DRIVER_NAME}'].productName.startsWith('NVIDIA')"
    by_product = scene.template("by-product", selectors=cel(product))
    memory = f"device.capacity['{DRIVER_NAME}'].memory.compareTo(quantity('1Gi')) > 0"
    by_memory = scene.template("by-memory", selectors=cel(memory))
    # No device is for the next case's pod: the scheduler may still know the one that was deleted.
    replica = {"replicas": {"string": "many"}, "sharedAs": {"string": "any"}}
    cases: tuple[tuple[Object, Any], ...] = (
        (GPU | replica, {"templates": [scene.template()]}),
        (GPU | {"sharedAs": {"int": 1}}, {"limits": {"nvidia.com/gpu": 1}}),
        (GPU | {"resourceName": {"bool": True}}, {"limits": {"nvidia.com/gpu": 1}}),
        (GPU, {"templates": [by_product]}),
        (GPU, {"templates": [by_memory]}),
    )
    for number, (attributes, asked) in enumerate(cases):
        schedulable.create(hostile(device("gpu-0", attributes)))
        scene.running(scene.pod(f"pod-{number}", **asked))
        schedulable.delete("ResourceSlice", first(OTHER))


def test_a_selector_that_fails_on_another_nodes_device_stops_its_pod_which_says_so(
    scene: Scene, schedulable: Api
) -> None:
    """No policy knows all that the claims of a cluster ask for."""
    schedulable.create(hostile(device("gpu-0", GPU)))
    unguarded = "device.attributes['resource.kubernetes.io'].pciBusID != ''"
    guarded = "device.attributes['resource.kubernetes.io'].?pciBusID.orValue('') != ''"
    scene.running(
        scene.pod("guarded", templates=[scene.template("guarded", selectors=cel(guarded))])
    )
    pod = scene.pod("stopped", templates=[scene.template("stopped", selectors=cel(unguarded))])
    told = scene.warning(pod, "FailedScheduling")
    where = f" on device {DRIVER_NAME}/{OTHER}/gpu-0" if counters_are_cheap() else ""
    assert f"selector #0{where}: CEL runtime error" in told
    schedulable.delete("ResourceSlice", first(OTHER))
    scene.running(pod, timeout=120)  # the scheduler comes back to it later and later
