"""Files with device metadata in containers of a real cluster, for each kind of device.

What a container reads is compared with the claim's allocation, with the ResourceSlices and with
what the container's own nvidia-smi sees. Beside it is what monitoring makes of the same pod.
"""

import json
from pathlib import Path

import pytest
from testbed.api import Object
from testbed.commands import TestbedError, wait_until
from testbed.driver import DRIVER_NAME
from testbed.pods import container

import device_metadata as reader
import metadata_readers
from dra_driver.admin.doctor.facts.cluster_facts import Feature
from e2e.kubernetes import OCI, needs
from e2e.monitoring import Mapped, mapped
from e2e.scene import NAMESPACE, Scene, cel
from readiness import lacks

pytestmark = pytest.mark.e2e

OF_TEMPLATE = "gpus-0"
"""What pods of a scene call their first claim."""

NOBODY = {"runAsUser": 65534, "runAsGroup": 65534, "readOnlyRootFilesystem": True}


def read(scene: Scene, pod: str, path: str, ctr: str = "ctr") -> Object:
    """What a container reads in a file."""
    return reader.read(scene.run_in(pod, "cat", path, ctr=ctr))


def claim_of(scene: Scene, name: str = "") -> Object:
    """The claim of that name, or the only one."""
    found = scene.api.all("ResourceClaim", NAMESPACE)
    (claim,) = (one for one in found if name in {"", one["metadata"]["name"]})
    return claim


def agrees(scene: Scene, found: Object, claim: Object) -> list[Object]:
    """Check a file against its claim and the slices; return its devices."""
    metadata = claim["metadata"]
    assert found["metadata"] == {
        **{name: metadata[name] for name in ("name", "namespace", "uid")},
        "generation": 1,
    }
    (request,) = found["requests"]
    results = [
        result
        for result in claim["status"]["allocation"]["devices"]["results"]
        if result["request"] == request["name"]
    ]
    devices: list[Object] = request["devices"]
    assert [(one["driver"], one["pool"], one["name"]) for one in devices] == [
        (result["driver"], result["pool"], result["device"]) for result in results
    ]
    published = {
        device["name"]: device["attributes"]
        for one in scene.node.slices()
        for device in one.get("devices", [])
    }
    for one in devices:
        offered = published[one["name"]]
        assert {name: one["attributes"].get(name) for name in offered} == offered
        assert one["attributes"].keys() - offered.keys() <= {"uuid"}
    return devices


def uuid(device: Object) -> str:
    found: str = device["attributes"]["uuid"]["string"]
    return found


def one_and_any(scene: Scene) -> str:
    """Make a claim of two GPUs, one of them by the second alternative of its request."""
    exactly = {"deviceClassName": DRIVER_NAME}
    impossible = {**exactly, "name": "huge", "selectors": cel("false")}
    requests = [
        {"name": "one", "exactly": exactly},
        {"name": "two", "firstAvailable": [impossible, {**exactly, "name": "any"}]},
    ]
    return scene.make("ResourceClaim", "claim", {"spec": {"devices": {"requests": requests}}})


@pytest.fixture(scope="module")
def own_reader() -> Path:
    """The program that reads files by the library of Kubernetes 1.37."""
    try:
        return metadata_readers.fetch()["1.37"]
    except TestbedError as error:
        lacks("metadata", str(error))


def test_metadata_of_a_templates_gpus_is_where_the_pod_says(scene: Scene) -> None:
    pod = scene.pod(templates=[scene.template(count=2)])
    scene.running(pod)
    found = read(scene, pod, reader.by_template(OF_TEMPLATE, "gpu"))
    assert found["podClaimName"] == OF_TEMPLATE
    devices = agrees(scene, found, claim_of(scene))
    assert sorted(map(uuid, devices)) == sorted(scene.gpus(pod))
    assert mapped(scene, pod) == {
        Mapped(device=device["name"], gpu=uuid(device)) for device in devices
    }
    assert scene.node.place.metadata_files() != []
    scene.delete(pod)
    wait_until(lambda: scene.node.place.metadata_files() == [], "the files to be gone", timeout=120)


def test_kubernetes_own_reader_finds_the_files_in_a_container(
    scene: Scene, own_reader: Path
) -> None:
    name = one_and_any(scene)
    template = scene.template()
    ctr = container("ctr", {"claims": [{"name": "mine"}, {"name": OF_TEMPLATE}]})
    mount = {"name": "reader", "mountPath": "/read-metadata", "readOnly": True}
    spec = {
        "terminationGracePeriodSeconds": 1,
        "resourceClaims": [
            {"name": "mine", "resourceClaimName": name},
            {"name": OF_TEMPLATE, "resourceClaimTemplateName": template},
        ],
        "volumes": [{"name": "reader", "hostPath": {"path": str(own_reader), "type": "File"}}],
        "containers": [ctr | {"volumeMounts": [mount], "securityContext": NOBODY}],
    }
    pod = scene.make("Pod", "pod", {"spec": spec})
    scene.running(pod)
    for words, path, full in (
        (("claim", name, "one"), reader.by_claim(name, "one"), "one"),
        (("claim", name, "two"), reader.by_claim(name, "two"), "two/any"),
        (("template", OF_TEMPLATE, "gpu"), reader.by_template(OF_TEMPLATE, "gpu"), "gpu"),
    ):
        said = json.loads(scene.run_in(pod, "/read-metadata", *words))
        expected = reader.content(read(scene, pod, path))
        assert expected["requests"][0]["name"] == full
        assert said["found"] == expected
        assert said["merged"] == expected | {"metadata": {}}  # which may be of several claims
    with pytest.raises(TestbedError, match=r"no such file"):
        scene.run_in(pod, "/read-metadata", "claim", name, "any")


def test_no_container_changes_its_file_not_even_as_root(scene: Scene) -> None:
    name = scene.claim()
    pod = scene.pod(claims=[name])
    scene.running(pod)
    path = reader.by_claim(name, "gpu")
    for attempt in (f"echo x > {path}", f"rm {path}", f"mv {path} /tmp", f"chmod 777 {path}"):
        with pytest.raises(TestbedError, match=r"Read-only|busy|not permitted|cannot"):
            scene.run_in(pod, "bash", "-c", attempt)
    agrees(scene, read(scene, pod, path), claim_of(scene))


@needs(Feature.EXTENDED_RESOURCE)
def test_metadata_of_resource_names_uses_the_schedulers_names(scene: Scene) -> None:
    pod = scene.pod(limits={"nvidia.com/gpu": 1})
    scene.running(pod)
    path = scene.run_in(pod, "find", reader.FOLDER, "-name", reader.FILE).strip()
    claim = claim_of(scene)
    ((request,),) = (
        [result["request"] for result in claim["status"]["allocation"]["devices"]["results"]],
    )
    assert path == reader.by_claim(claim["metadata"]["name"], request)
    (device,) = agrees(scene, read(scene, pod, path), claim)
    assert scene.gpus(pod) == (uuid(device),)
    assert mapped(scene, pod) == {Mapped(device=device["name"], gpu=uuid(device))}


def test_with_a_read_only_volume_in_the_way_the_pods_event_says_so(scene: Scene) -> None:
    ctr = container("ctr", {"claims": [{"name": OF_TEMPLATE}]})
    spec = {
        "terminationGracePeriodSeconds": 1,
        "automountServiceAccountToken": False,
        "resourceClaims": [{"name": OF_TEMPLATE, "resourceClaimName": scene.claim()}],
        "volumes": [{"name": "run", "emptyDir": {}}],
        "containers": [
            ctr | {"volumeMounts": [{"name": "run", "mountPath": "/var/run", "readOnly": True}]}
        ],
    }
    pod = scene.make("Pod", "pod", {"spec": spec})
    if OCI == "crun":  # makes volumes read-only when all is mounted
        scene.running(pod)
        path = reader.by_claim(claim_of(scene)["metadata"]["name"], "gpu")
        agrees(scene, read(scene, pod, path), claim_of(scene))
        return
    said = scene.warning(pod, "Failed", timeout=60)
    assert reader.FILE in said
    assert "read-only file system" in said
