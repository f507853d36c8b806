"""MIG devices on a real node: made for pods, seen by their containers, and gone after them.

The driver makes them on any of the GPUs, with `--mig on-demand`; test_mig_modes.py has the rest.
"""

import pytest
from testbed import mps
from testbed.api import Object
from testbed.claims import mig_profile
from testbed.driver import DRIVER_NAME
from testbed.pods import claim_uids, container, migs_seen, parse_gpu_list

from dra_driver.admin.doctor.facts.cluster_facts import Feature
from e2e.kubernetes import needs
from e2e.scene import NAMESPACE, Scene

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.stream("own"),
    pytest.mark.driver(MIG="on-demand"),
    needs(Feature.COUNTERS),
]

MIG_CLASS = "mig.nvidia.com"
SMALL, MEDIUM, LARGE = "1g.10gb", "2g.20gb", "3g.40gb"
HALF = {"defaultActiveThreadPercentage": 50, "defaultPinnedDeviceMemoryLimit": "4Gi"}


def migs(sharing: Object | None = None, *, on_one_gpu: bool = False, **requests: str) -> Object:
    """The spec of a claim: a MIG device for each request, of the profile given."""
    devices: Object = {
        "requests": [
            {
                "name": name,
                "exactly": {"deviceClassName": MIG_CLASS, "selectors": mig_profile(wanted)},
            }
            for name, wanted in requests.items()
        ]
    }
    if on_one_gpu:
        devices["constraints"] = [{"matchAttribute": f"{DRIVER_NAME}/parentUUID"}]
    if sharing:
        version = "resource.nvidia.com/v1beta1"
        config = {"apiVersion": version, "kind": "MigDeviceConfig", "sharing": sharing}
        devices["config"] = [{"opaque": {"driver": DRIVER_NAME, "parameters": config}}]
    return {"devices": devices}


def template(scene: Scene, spec: Object) -> str:
    return scene.make("ResourceClaimTemplate", "migs", {"spec": {"spec": spec}})


def pod_of_requests(scene: Scene, template_name: str, *requests: str, name: str = "pod") -> str:
    """Make a pod with a container for each request of its claim."""
    spec = {
        "terminationGracePeriodSeconds": 1,
        "resourceClaims": [{"name": "migs", "resourceClaimTemplateName": template_name}],
        "containers": [
            container(request, {"claims": [{"name": "migs", "request": request}]})
            for request in requests
        ],
    }
    return scene.make("Pod", name, {"spec": spec})


def seen(scene: Scene, pod: str, ctr: str = "ctr") -> dict[str, str]:
    """The MIG devices that a container sees: profiles by UUID."""
    return migs_seen(scene.node.cluster, pod, ctr, NAMESPACE)


def parent(scene: Scene, pod: str, ctr: str = "ctr") -> str:
    """The GPU that a container's MIG device is on."""
    (gpu,) = parse_gpu_list(scene.run_in(pod, "nvidia-smi", "-L", ctr=ctr))
    return gpu


def there(scene: Scene) -> int:
    """How many MIG devices there are on the node."""
    return len(scene.node.machine.mig_devices())


def test_a_pod_sees_the_mig_device_that_was_made_for_it_and_no_other(scene: Scene) -> None:
    name = template(scene, migs(mig=SMALL))
    one, two = (scene.pod(pod, templates=[name]) for pod in ("one", "two"))
    scene.running(one, two)
    (first,), (second,) = seen(scene, one), seen(scene, two)
    assert first != second
    assert set(seen(scene, one).values()) == {SMALL}
    assert there(scene) == 2
    scene.delete(one)
    assert there(scene) == 1
    assert list(seen(scene, two)) == [second]
    scene.delete(two)
    assert there(scene) == 0


def test_containers_of_a_pod_get_a_mig_device_each_by_profile(scene: Scene) -> None:
    pod = pod_of_requests(scene, template(scene, migs(small=SMALL, large=LARGE)), "small", "large")
    scene.running(pod)
    assert list(seen(scene, pod, "small").values()) == [SMALL]
    assert list(seen(scene, pod, "large").values()) == [LARGE]


def test_a_whole_gpu_waits_for_its_parts_and_runs_after_them(scene: Scene) -> None:
    part = scene.pod("part", templates=[template(scene, migs(mig=SMALL))])
    scene.running(part)
    eight = scene.claim("eight", count=8)
    whole = scene.pod("whole", claims=[eight])
    assert "cannot allocate all claims" in scene.unschedulable(whole)
    scene.delete(part)
    scene.running(whole)
    assert len(scene.gpus(whole)) == 8


@pytest.mark.usefixtures("mps_node")
def test_containers_on_a_mig_device_are_clients_of_its_own_mps_daemon(scene: Scene) -> None:
    name = template(scene, migs({"strategy": "MPS", "mpsConfig": HALF}, mig=SMALL))
    pod = scene.pod(templates=[name], containers=("one", "two"))
    scene.running(pod)
    assert seen(scene, pod, "one") == seen(scene, pod, "two")
    (claim,) = claim_uids(scene.api, scene.api.get("Pod", pod, NAMESPACE))
    assert mps.ask(scene.node.place, claim, "get_default_active_thread_percentage") == "50.0"
    gpu = parent(scene, pod, "one")
    assert scene.node.machine.settings()[gpu].compute_mode == "Default"
    scene.delete(pod)
    assert there(scene) == 0


def test_mig_devices_come_as_extended_resources(scene: Scene) -> None:
    resource, name = f"nvidia.com/mig-{SMALL}", f"mig-{SMALL}.{scene.name('test')}"
    spec = {
        "extendedResourceName": resource,
        "selectors": [
            {"cel": {"expression": f"device.driver == '{DRIVER_NAME}'"}},
            {
                "cel": {
                    "expression": f"device.attributes['{DRIVER_NAME}'].?profile.orValue('')"
                    f" == '{SMALL}'"
                }
            },
        ],
    }
    version = "resource.k8s.io/v1"
    scene.api.create(
        {"apiVersion": version, "kind": "DeviceClass", "metadata": {"name": name}, "spec": spec}
    )
    try:
        pod = scene.pod(limits={resource: 1})
        scene.running(pod)
        assert list(seen(scene, pod).values()) == [SMALL]
        scene.delete(pod)
        assert there(scene) == 0
    finally:
        scene.api.delete("DeviceClass", name)


def set_mig_mode(scene: Scene, mode: str) -> None:
    """Switch GPU 7 as an admin does: a card refuses while another process has NVML open."""
    scene.node.driver.stop()
    scene.node.machine.mig(mode, "--gpu", "7")
    scene.node.driver.start()
    scene.node.driver.wait_registered()
    scene.node.driver.wait_log("slices published")  # those of the former life are there already
