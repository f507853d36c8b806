"""The MPS supervisor as the DaemonSet of the manifests runs it: daemons outlive its pod.

And what its users see where the pod lacks one of the rights that the manifests give it. There is no
image of the driver here. The test image takes its place, with this machine's Python and this
checkout mounted into it; all else is as in manifests/install.yaml, with this cluster's paths.
"""

import os
import stat
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import yaml
from testbed import mps
from testbed.api import Object
from testbed.commands import REPOSITORY, wait_until
from testbed.machine import DRIVER
from testbed.manifests import installed
from testbed.pods import IMAGE, explain, is_ready, wait_gone

from dra_driver.mps.supervisor.cgroup import GROUP
from e2e.scene import Scene
from e2e.sharing import MEMORY, PERCENTAGE, UNDER_MPS, Shared, mps_limits, remove_groups

pytestmark = [pytest.mark.e2e, pytest.mark.usefixtures("mps_node")]

NAMESPACE = "dra-driver"
NAME = "dra-driver-mps-supervisor"
COMPONENT = "app.kubernetes.io/component=mps-supervisor"

Change = Callable[[Object], object]
"""Changes the pod's spec."""


@contextmanager
def in_a_pod(scene: Scene, change: Change = lambda _pod: None) -> Iterator[None]:
    """Have the supervisor in a pod, with a change, instead of as a process of the host."""
    kubectl = scene.node.cluster.kubectl
    scene.node.supervisor.stop()
    kubectl("apply", "-f", "-", stdin=manifest(scene, change))
    try:
        yield
    finally:
        kubectl("delete", "-f", "-", "--wait", stdin=manifest(scene))
        wait_gone(scene.api, NAMESPACE)
        scene.node.supervisor.start()


@pytest.fixture
def daemon_set(scene: Scene) -> Iterator[str]:
    """The name of the supervisor's pod, as the manifests have it."""
    with in_a_pod(scene):
        yield supervisor_pod(scene)


def test_daemons_and_their_clients_outlive_the_supervisors_pod(
    scene: Scene, daemon_set: str
) -> None:
    shared = Shared.make(scene, gpu=mps_limits())
    pod = shared.pod(one="gpu", other="gpu")
    scene.running(pod, timeout=120)
    daemon, gpu = shared.daemon(), shared.gpu(pod, "one")
    assert shared.settings(gpu) == UNDER_MPS
    assert shared.mounts(pod, "one")["/dev/shm"] == "tmpfs"
    scene.run_in(pod, "touch", "/dev/shm/from-one", ctr="one")
    assert "from-one" in scene.run_in(pod, "ls", "/dev/shm", ctr="other")
    assert f"/{GROUP}" in Path(f"/proc/{daemon}/cgroup").read_text()

    scene.api.delete("Pod", daemon_set, NAMESPACE)
    assert supervisor_pod(scene, but=daemon_set) != daemon_set

    new = Shared.make(scene, "new", gpu=mps_limits(20))
    other = new.pod("other")
    scene.running(other, timeout=120)
    assert new.ask(PERCENTAGE) == "20.0"
    assert shared.daemon() == daemon
    assert (shared.ask(PERCENTAGE), shared.ask(f"{MEMORY} 0")) == ("50.0", "10G")
    assert "from-one" in scene.run_in(pod, "ls", "/dev/shm", ctr="other")
    scene.delete(pod, other)
    assert mps.processes(scene.node.place.plugins) == {}
    remove_groups()


def without(volume: str) -> Change:
    """Take a folder of the host away."""

    def change(pod: Object) -> None:
        (container,) = pod["containers"]
        for of, field in ((pod, "volumes"), (container, "volumeMounts")):
            left = [one for one in of[field] if one["name"] != volume]
            assert len(left) == len(of[field]) - 1
            of[field] = left

    return change


@pytest.mark.parametrize("change", [lambda _pod: None, without("dev")], ids=["with", "without"])
def test_only_with_the_hosts_dev_nodes_are_seen_that_are_made_later(
    scene: Scene, change: Change, request: pytest.FixtureRequest
) -> None:
    """As those of MIG devices and of nvidia-uvm are. A privileged container has the others."""
    late = Path("/dev") / f"nvidia-{scene.name('late')}"
    with in_a_pod(scene, change):
        pod = supervisor_pod(scene)
        os.mknod(late, 0o600 | stat.S_IFCHR, os.makedev(1, 3))
        try:
            exec_in = ("exec", "--namespace", NAMESPACE, pod, "--")
            seen = scene.node.cluster.kubectl(*exec_in, "ls", "/dev").split()
        finally:
            late.unlink()
    assert "null" in seen
    assert (late.name in seen) == (request.node.callspec.id == "with")


def supervisor_pod(scene: Scene, but: str = "") -> str:
    """Wait for the DaemonSet's pod, another one than `but`; return its name."""

    def ready() -> str | None:
        pods = scene.api.all("Pod", NAMESPACE, labelSelector=COMPONENT)
        found = [pod["metadata"]["name"] for pod in pods if is_ready(pod)]
        return found[0] if len(pods) == 1 and found and found != [but] else None

    try:
        return wait_until(ready, "the supervisor's pod", timeout=90)
    finally:
        for pod in scene.api.all("Pod", NAMESPACE):
            sys.stdout.write(explain(scene.api, pod) + "\n")


def manifest(scene: Scene, change: Change = lambda _pod: None) -> str:
    """The DaemonSet for this cluster's paths, with an image that is there, and a change."""
    (daemons,) = (
        one for one in installed() if (one["kind"], one["metadata"]["name"]) == ("DaemonSet", NAME)
    )
    pod = daemons["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    plugins, root = str(scene.node.place.plugins), str(scene.node.machine.root)
    container["image"] = IMAGE
    container["command"] = [str(DRIVER), "mps-supervisor"]
    for one in container["env"]:
        if one["name"] == "NVIDIA_DRIVER_ROOT":
            one["value"] = root
        if one["name"] == "KUBELET_PLUGINS_DIRECTORY_PATH":
            one["value"] = plugins
    for one in container["volumeMounts"]:
        if one["name"] == "plugins":
            one["mountPath"] = plugins
        if one["name"] == "driver-root":
            one["readOnly"] = False  # settings of simulated GPUs are kept in a file there
            del one["mountPropagation"]  # this machine's root need not be a shared mount
    for volume in pod["volumes"]:
        if volume["name"] in {"plugins", "driver-root"}:
            volume["hostPath"]["path"] = plugins if volume["name"] == "plugins" else root
    # Debian's Python lies in /usr itself.
    for number, path in enumerate(dict.fromkeys(("/usr", sys.base_prefix, str(REPOSITORY)))):
        name = f"this-machine-{number}"
        pod["volumes"].append({"name": name, "hostPath": {"path": path}})
        container["volumeMounts"].append({"name": name, "mountPath": path, "readOnly": True})
    change(pod)
    return yaml.safe_dump(daemons)
