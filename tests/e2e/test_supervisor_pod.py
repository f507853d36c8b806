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
LABEL = "nvidia.com/gpu.present"

Change = Callable[[Object], object]
"""Changes the pod's spec."""


@contextmanager
def in_a_pod(scene: Scene, change: Change = lambda _pod: None) -> Iterator[None]:
    """Have the supervisor in a pod, with a change, instead of as a process of the host."""
    kubectl = scene.node.cluster.kubectl
    scene.node.supervisor.stop()
    kubectl("label", "node", scene.node.cluster.node, f"{LABEL}=true")
    kubectl("apply", "-f", "-", stdin=manifest(scene, change))
    try:
        yield
    finally:
        kubectl("delete", "-f", "-", "--wait", stdin=manifest(scene))
        wait_gone(scene.api, NAMESPACE)
        kubectl("label", "node", scene.node.cluster.node, f"{LABEL}-")
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


def without_host_pids(pod: Object) -> None:
    del pod["hostPID"]


def without_propagation(pod: Object) -> None:
    (mount,) = (one for one in pod["containers"][0]["volumeMounts"] if one["name"] == "plugins")
    del mount["mountPropagation"]


def without(volume: str) -> Change:
    """Take a folder of the host away."""

    def change(pod: Object) -> None:
        (container,) = pod["containers"]
        for of, field in ((pod, "volumes"), (container, "volumeMounts")):
            left = [one for one in of[field] if one["name"] != volume]
            assert len(left) == len(of[field]) - 1
            of[field] = left

    return change


@pytest.mark.long(
    "tests/contract/mps/test_supervisor_rights.py"
    "::test_without_bidirectional_mounts_the_supervisor_does_not_begin"
)
@pytest.mark.parametrize(
    ("change", "reason"),
    [
        pytest.param(without_host_pids, "set hostPID: true in its pod", id="hostPID"),
        pytest.param(
            without_propagation, "with mountPropagation: Bidirectional", id="Bidirectional"
        ),
        pytest.param(
            without("driver-root"),
            "--container-driver-root /driver-root is not a folder; mount the host's ",
            id="driver-root",
        ),
    ],
)
def test_without_a_right_the_supervisor_ends_and_the_pods_state_says_why(
    scene: Scene, change: Change, reason: str
) -> None:
    with in_a_pod(scene, change):
        assert reason in wait_until(lambda: last_words(scene), "the pod's end", timeout=60)


def test_without_the_plugins_folder_the_supervisor_waits_and_says_for_what(scene: Scene) -> None:
    with in_a_pod(scene, without("plugins")):
        pod = supervisor_pod(scene)
        log = wait_until(
            lambda: _log_of(scene, pod, "mps supervisor waits"), "its word", timeout=30
        )
    assert f"cannot make {scene.node.place.plugins}" in log
    assert "Read-only file system" in log


@pytest.mark.long(
    "tests/contract/mps/test_supervisor_rights.py"
    "::test_without_the_hosts_control_groups_the_daemon_would_end_with_the_container"
)
def test_without_the_hosts_control_groups_a_claims_pod_is_told_so(scene: Scene) -> None:
    with in_a_pod(scene, without("cgroup")):
        supervisor_pod(scene)
        pod = Shared.make(scene, gpu=mps_limits()).pod()
        said = scene.warning(pod, "FailedPrepareDynamicResources", timeout=90)
        scene.clear()
    assert "no control groups below /host/sys/fs/cgroup" in said
    assert "mount the host's /sys/fs/cgroup there, as the manifests do" in said


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


def last_words(scene: Scene) -> str:
    """What the supervisor's pod said when it last ended; empty before that."""
    for pod in scene.api.all("Pod", NAMESPACE, labelSelector=COMPONENT):
        for one in pod.get("status", {}).get("containerStatuses", []):
            for state in (one.get("state", {}), one.get("lastState", {})):
                if "terminated" in state:
                    return str(state["terminated"].get("message", ""))
    return ""


def _log_of(scene: Scene, pod: str, event: str) -> str:
    log = scene.api.log(pod, "mps-supervisor", NAMESPACE)
    return next((line for line in log.splitlines() if event in line), "")


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
