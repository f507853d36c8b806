"""The driver's pod by the kubelet and containerd: what it may do with a GPU's device node.

The pod has the security settings and the /dev of the driver's DaemonSet, and a shell in place of
the driver. A node that it may open has no driver behind it here.
"""

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest
from testbed.api import Object
from testbed.manifests import installed
from testbed.pods import container

from e2e.scene import Scene

pytestmark = pytest.mark.e2e

REFUSED, NO_DRIVER = "Operation not permitted", "No such device or address"


@pytest.fixture
def gpu(scene: Scene) -> Iterator[Path]:
    """A GPU's node on the host, 195 as NVIDIA's driver has it, with a name of this test's own."""
    path = Path("/dev") / f"nvidia-{scene.name('gpu')}"
    os.mknod(path, 0o666 | stat.S_IFCHR, os.makedev(195, 0))
    path.chmod(0o666)
    yield path
    path.unlink()


def drivers_pod(*, privileged: bool) -> Object:
    (daemons,) = (
        one
        for one in installed()
        if (one["kind"], one["metadata"]["name"]) == ("DaemonSet", "dra-driver")
    )
    pod = daemons["spec"]["template"]["spec"]
    (driver,) = pod["containers"]
    assert driver["securityContext"]["privileged"] is True
    security = {**driver["securityContext"], "privileged": privileged}
    (volume,) = (one for one in pod["volumes"] if one["name"] == "dev")
    (mount,) = (one for one in driver["volumeMounts"] if one["name"] == "dev")
    shell = container("driver", {}) | {"securityContext": security, "volumeMounts": [mount]}
    return {
        "terminationGracePeriodSeconds": 1,
        "securityContext": pod["securityContext"],
        "volumes": [volume],
        "containers": [shell],
    }


@pytest.mark.parametrize(("privileged", "answer"), [(True, NO_DRIVER), (False, REFUSED)])
def test_without_privileged_the_drivers_pod_opens_no_gpu(
    scene: Scene, gpu: Path, privileged: bool, answer: str
) -> None:
    pod = scene.make("Pod", "driver", {"spec": drivers_pod(privileged=privileged)})
    scene.running(pod, timeout=120)
    said = scene.run_in(pod, "bash", "-c", f"(: <>{gpu}) 2>&1 || :", ctr="driver")
    assert said.strip().endswith(answer)
