"""A node goes from NVIDIA's DRA driver to this one under running pods, whose containers restart.

What that driver leaves is made of what it has left elsewhere (`tests/data/nvidia-driver`) and of
what this one has prepared: each claim is one of its `dynamic-mig`, under the names, ids and UUIDs
of this node; CDI specs are in its shape and under its names, with the hook program to which they
lead. Containers then start from these, through the kubelet and containerd, and after the take-over
from this driver's. This driver prepares under `--mig on-demand`, as that one with DynamicMIG, and
takes over with its own default.
"""

import json
import shutil
from functools import partial

import pytest
from testbed.api import Object
from testbed.claims import gpu_config
from testbed.commands import wait_until
from testbed.containers import Containers
from testbed.node import GpuNode

from dra_driver.admin.doctor.facts.cluster_facts import Feature
from dra_driver.admin.stored import stored_records
from dra_driver.claims.model.record import ClaimRecord
from dra_driver.devices.device import Mig
from dra_driver.host.process import read_boot_id
from e2e.kubernetes import needs
from e2e.nvidia_specs import NvidiaSpecs
from e2e.scene import NAMESPACE, Scene
from e2e.shares import environment, restarted
from e2e.sharing import Shared
from e2e.test_mig import migs, seen, there
from worlds.nvidia import checkpoint
from worlds.nvidia_files import Left, entry_of
from worlds.process import TakeOverProcess

pytestmark = [pytest.mark.e2e, needs(Feature.COUNTERS)]

TEMPLATE = "ResourceClaimTemplate"
THEIRS = "PREPARED_BY=nvidia"
"""Added to their specs, so that it is seen in containers by which spec they were made."""


def prepared_by_nvidia(scene: Scene, specs: NvidiaSpecs) -> None:
    """Make it look as if NVIDIA's driver had prepared what is prepared; nothing runs meanwhile."""
    place = scene.node.place
    statuses = {
        one["metadata"]["uid"]: one["status"] for one in scene.api.all("ResourceClaim", NAMESPACE)
    }
    records = stored_records(place.data).records
    claims = {record.ref.uid: as_theirs(record, statuses[record.ref.uid]) for record in records}
    boot_id = read_boot_id(place.driver_root / "proc")
    shutil.rmtree(place.data / "claims")
    noted = checkpoint(claims, boot_id=boot_id)
    (place.data / "checkpoint.json").write_bytes(noted)
    for record in records:
        ours = place.cdi_root / f"k8s.gpu.nvidia.com-claim_{record.ref.uid}.json"
        theirs = specs.of(record, json.loads(ours.read_text()), env=[THEIRS])
        ours.unlink()
        ours.with_suffix(".yaml").write_text(theirs)


def as_theirs(record: ClaimRecord, status: Object) -> Object:
    """A claim as that driver notes it: one that it did note, moved to another device."""
    left = Left("dynamic-mig")
    (entry,) = record.devices
    base = entry.device.base
    is_mig = isinstance(base, Mig)
    pod = "mig1" if is_mig else "sliced" if record.steps else "whole"
    claim = left.prepared[left.refs[pod].uid]
    claim["status"] = status
    noted = entry_of(claim)
    if isinstance(base, Mig):
        mig = base.instance
        assert mig is not None
        noted["mig"]["concrete"] |= {
            "parentMinor": int(entry.name.split("-")[1]),
            "giId": mig.gpu_instance,
            "ciId": mig.compute_instance,
            "migUUID": base.gpu,
            "parentUUID": base.gpu,
        }
    else:
        noted["gpu"]["info"]["uuid"] = base.gpu
    noted["mig" if is_mig else "gpu"]["device"] |= {
        "Requests": list(entry.request_names),
        "PoolName": entry.pool,
        "DeviceName": entry.name,
        "CDIDeviceIDs": list(entry.cdi_device_ids),
    }
    return claim


def restart_driver(node: GpuNode, **env: str) -> None:
    node.driver.stop()
    node.driver.env |= env
    node.driver.start()
    node.wait_published()


def restart_container(scene: Scene, pod: str, times: int) -> None:
    # A moment later, so that the command is not ended along with the container.
    scene.end_container(pod)
    wait_until(
        partial(restarted, scene, pod, times), f"the container of {pod} to restart", timeout=90
    )


def test_pods_keep_their_devices_over_the_change_and_all_is_clean_after_them(
    scene: Scene, containers: Containers
) -> None:
    node, place = scene.node, scene.node.place
    specs = NvidiaSpecs(containers, place.driver_root, place.data)
    restart_driver(node, MIG="on-demand")
    interval = {"interval": "Long"}
    sliced = Shared.make(
        scene, "sliced", gpu=gpu_config(strategy="TimeSlicing", timeSlicingConfig=interval)
    ).pod("sliced")
    one_gpu = scene.template()
    whole = scene.pod("whole", templates=[one_gpu])
    parts = [
        scene.pod(name, templates=[scene.make(TEMPLATE, name, {"spec": {"spec": spec}})])
        for name, spec in (("small", migs(mig="1g.10gb")), ("large", migs(mig="3g.40gb")))
    ]
    scene.running(whole, sliced, *parts, timeout=120)
    gpus = {pod: scene.gpus(pod) for pod in (whole, sliced)}
    devices = {pod: seen(scene, pod) for pod in parts}
    settings = node.machine.settings()

    node.driver.stop()
    prepared_by_nvidia(scene, specs)
    written = {path.name for path in place.cdi_root.iterdir()}
    for pod in (sliced, parts[0]):
        restart_container(scene, pod, 1)  # no driver is asked: the kubelet knows the ids
        assert environment(scene, pod)["PREPARED_BY"] == "nvidia"
    del node.driver.env["MIG"]
    init = TakeOverProcess(node.driver)
    assert init.run() == 0
    assert init.events("node taken over from nvidia's driver"), init.tail()
    node.driver.start()
    node.wait_published()

    for pod in (sliced, parts[0]):
        restart_container(scene, pod, 2)
        assert "PREPARED_BY" not in environment(scene, pod)
    node.cluster.stop("kubelet")
    node.cluster.start("kubelet")  # it asks for all claims again
    new = scene.pod("new", templates=[one_gpu])
    scene.running(new, timeout=90)
    scene.running(whole, sliced, *parts)
    assert {pod: scene.gpus(pod) for pod in gpus} == gpus
    assert {pod: seen(scene, pod) for pod in parts} == devices
    assert "PREPARED_BY" not in environment(scene, new)
    assert scene.gpus(new) not in gpus.values()
    assert node.machine.settings() == settings
    names = {path.name for path in place.cdi_root.iterdir()}
    assert not names & written, "two files for one device hide it"
    assert names > {name.replace(".yaml", ".json") for name in written}

    scene.clear()
    wait_until(lambda: place.left_over() == [], "all of the claims to be gone", timeout=60)
    assert there(scene) == 0
    assert {setting.time_slice for setting in node.machine.settings().values()} == {"Default"}
    assert {setting.mig_mode for setting in node.machine.settings().values()} == {"Disabled"}
    scene.rewritten()  # the GPU of the MIG devices is whole again
