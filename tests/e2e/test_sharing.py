"""Time-slicing and MPS: what containers get, how the node is set, and that all of it goes again."""

import os
from pathlib import Path

import pytest
from testbed import mps
from testbed.api import Object
from testbed.machine import GpuSettings
from testbed.pods import container

from e2e.scene import Scene
from e2e.sharing import (
    MEMORY,
    PERCENTAGE,
    PIPE,
    UNDER_MPS,
    USUAL,
    Shared,
    claim_spec,
    mps_limits,
    time_slicing,
    uids_of,
)

pytestmark = pytest.mark.e2e

MOUNT_INFO = "/proc/self/mountinfo"


def test_a_time_slice_stays_until_the_last_pod_of_the_claim_is_gone(scene: Scene) -> None:
    shared = Shared.make(scene, gpu=time_slicing("Long"))
    one, two = shared.pod("one", one="gpu", other="gpu"), shared.pod("two")
    scene.running(one, two)
    gpu = shared.gpu(one, "one")
    assert shared.gpu(one, "other") == shared.gpu(two) == gpu
    assert PIPE not in shared.env(one, "one")
    assert shared.settings(gpu) == GpuSettings(compute_mode="Default", time_slice="Long")
    scene.delete(one)
    assert shared.settings(gpu).time_slice == "Long"
    scene.delete(two)
    assert shared.settings(gpu) == USUAL


@pytest.mark.usefixtures("mps_node")
class TestMps:
    """What needs NVIDIA's MPS programs."""

    def test_containers_are_clients_of_a_daemon_with_the_claims_limits(self, scene: Scene) -> None:
        template = {"spec": {"spec": claim_spec({"gpu": mps_limits(50, "10Gi")})}}
        name = scene.make("ResourceClaimTemplate", "template", template)
        pod = scene.pod(templates=[name], containers=("one", "other"))
        scene.running(pod)
        (gpu,) = scene.gpus(pod, "one")
        assert scene.gpus(pod, "other") == (gpu,)
        assert scene.node.machine.settings()[gpu] == UNDER_MPS
        (uid,) = uids_of(scene, pod)
        place = scene.node.place
        assert mps.ask(place, uid, PERCENTAGE) == "50.0"
        assert mps.ask(place, uid, f"{MEMORY} 0") == "10G"
        assert list(mps.processes(place.plugins).values()) == [uid]
        scene.delete(pod)
        assert scene.node.machine.settings()[gpu] == USUAL
        assert mps.processes(place.plugins) == {}

    def test_containers_share_memory_and_pipes_with_the_daemon(self, scene: Scene) -> None:
        shared = Shared.make(scene, gpu=mps_limits())
        pod = shared.pod(one="gpu", other="gpu")
        scene.running(pod)
        env, mounts = shared.env(pod, "one"), shared.mounts(pod, "one")
        assert env[PIPE] == "/tmp/nvidia-mps"
        assert "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE" not in env  # the daemon's own is the limit
        assert mounts["/dev/shm"] == "tmpfs"
        assert "/tmp/nvidia-mps" in mounts
        assert "control" in scene.run_in(pod, "ls", "/tmp/nvidia-mps", ctr="one").split()
        scene.run_in(pod, "sh", "-c", "echo here > /dev/shm/from-one", ctr="one")
        assert scene.run_in(pod, "cat", "/dev/shm/from-one", ctr="other") == "here\n"
        on_the_node = scene.node.place.mps / "domains" / shared.uid / "shm" / "from-one"
        assert on_the_node.read_text() == "here\n"
        scene.run_in(pod, "rm", "/dev/shm/from-one", ctr="other")

    def test_a_pods_own_shared_memory_gives_way_to_that_of_mps(self, scene: Scene) -> None:
        shared = Shared.make(scene, gpu=mps_limits())
        pod = shared.pod(spec=pod_with_shm(shared.claim))
        scene.running(pod)
        scene.run_in(pod, "touch", "/dev/shm/here")
        assert shared.mounts(pod)["/dev/shm"] == "tmpfs"
        on_the_node = scene.node.place.mps / "domains" / shared.uid / "shm" / "here"
        assert on_the_node.exists()

    def test_a_container_with_two_mps_claims_is_a_client_of_one_daemon(self, scene: Scene) -> None:
        one, two = (Shared.make(scene, name, gpu=mps_limits()) for name in ("one", "two"))
        claims = [
            {"name": name, "resourceClaimName": name_of.claim}
            for name, name_of in (("first", one), ("second", two))
        ]
        resources = {"claims": [{"name": "first"}, {"name": "second"}]}
        spec = {"resourceClaims": claims, "containers": [container("ctr", resources)]}
        pod = one.pod(spec=spec)
        scene.running(pod)
        assert len(scene.gpus(pod)) == 2
        scene.run_in(pod, "touch", "/dev/shm/here")
        domains = scene.node.place.mps / "domains"
        (shm,) = (path.relative_to(domains).parts[0] for path in domains.glob("*/shm/here"))
        # Which of the two mounts on one path a runtime puts on top is its own affair.
        mounted = [line.split() for line in scene.run_in(pod, "cat", MOUNT_INFO).splitlines()]
        device = [words[2] for words in mounted if words[4] == "/tmp/nvidia-mps"][-1]
        assert device == device_of(domains / shm / "run" / "pipe")
        assert shm in (one.uid, two.uid)


def pod_with_shm(claim: str) -> Object:
    """A pod's spec whose container brings a /dev/shm of its own."""
    return {
        "volumes": [{"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "32Mi"}}],
        "containers": [
            {
                "name": "ctr",
                "image": "registry.local/gpu-test:1",
                "command": ["bash", "-c", "trap 'exit 0' TERM; sleep 99999 & wait"],
                "resources": {"claims": [{"name": "shared"}]},
                "volumeMounts": [{"name": "shm", "mountPath": "/dev/shm"}],
            }
        ],
        "resourceClaims": [{"name": "shared", "resourceClaimName": claim}],
    }


def device_of(path: Path) -> str:
    """The file system that a path is on, as mountinfo names it."""
    number = path.stat().st_dev
    return f"{os.major(number)}:{os.minor(number)}"
