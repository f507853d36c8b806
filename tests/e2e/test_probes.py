"""The kubelet's probes of driver and supervisor, while a tenant's pod floods every port they have.

The built image and the chart, on a node of their own. The tenant's pod has no rights at all. The
driver has its port for health checks open too, which the chart leaves closed.
"""

import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pytest
from image.recipe import NAME as IMAGE
from image.recipe import version
from testbed.api import Object
from testbed.cluster import Cluster
from testbed.installed_node import NAMESPACE, InstalledNode

from e2e.conftest import node_with_image
from e2e.scene import NAMESPACE as SCENES
from e2e.scene import Scene

pytestmark = [pytest.mark.e2e, pytest.mark.stream("own")]

FLOOD = Path(__file__).with_name("flood.py")
MORE = 64 * 2**20
"""What a process may have in memory beyond what it had before the flood."""

SECONDS = 20
"""How long the flood lasts."""

PORTS = {"kubelet-plugin": (8080, 51516), "mps-supervisor": (8081, 0)}
"""Of each component, for metrics and for health checks."""


@pytest.fixture(scope="module")
def node(
    lasting_for_pods: Cluster, tmp_path_factory: pytest.TempPathFactory, image_archive: Path
) -> Iterator[InstalledNode]:
    folder = tmp_path_factory.mktemp("probes")
    with node_with_image(lasting_for_pods, folder, image_archive, HEALTHCHECK_PORT="51516") as node:
        node.install()
        node.start_driver()
        yield node


@pytest.fixture
def scene(node: InstalledNode) -> Iterator[Scene]:
    scene = Scene(node)
    yield scene
    scene.clear()


@dataclass(frozen=True, kw_only=True)
class Seen:
    """One component's pod: its address, its process on the host, how often it was restarted."""

    address: str
    restarts: int
    pid: int

    @classmethod
    def of(cls, node: InstalledNode, component: str) -> "Seen":
        (pod,) = node.driver_pods(labelSelector=f"app.kubernetes.io/component={component}")
        (status,) = pod["status"]["containerStatuses"]
        container_id = status["containerID"].partition("://")[2]
        (pid,) = (
            int(path.name)
            for path in Path("/proc").glob("[0-9]*")
            if container_id in _read(path / "cgroup") and component in _read(path / "cmdline")
        )
        return cls(address=pod["status"]["podIP"], restarts=status["restartCount"], pid=pid)

    def resident(self) -> int:
        """Bytes in memory."""
        return int(Path(f"/proc/{self.pid}/statm").read_text().split()[1]) * 4096


@pytest.mark.timeout(900)
def test_no_flood_from_a_pod_has_driver_or_supervisor_restarted(
    node: InstalledNode, scene: Scene
) -> None:
    before = {port: Seen.of(node, port) for port in PORTS}
    had = {one: seen.resident() for one, seen in before.items()}
    targets = [
        f"{seen.address}:{http}:{health}"
        for one, seen in before.items()
        for http, health in (PORTS[one],)
    ]
    attacker = scene.make("Pod", "attacker", {"spec": attackers_pod(*targets)})
    scene.running(attacker, timeout=120)
    most = dict(had)
    served = ready = looks = 0
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        time.sleep(5)
        looks += 1
        most = {port: max(most[port], before[port].resident()) for port in PORTS}
        with suppress(OSError):
            served += "nvidia_dra_kubelet_registered" in node.metrics()
        ready += all(map(_is_ready, node.driver_pods()))
    log = node.cluster.kubectl("logs", "--namespace", SCENES, attacker)
    said = [line for line in log.splitlines() if line.startswith("flooding: ")]
    sys.stdout.write(f"{had=} {most=} {served=} {ready=} {looks=} {said[-1:]}\n")
    assert {port: Seen.of(node, port) for port in PORTS} == before
    assert {port: most[port] - had[port] < MORE for port in PORTS} == dict.fromkeys(PORTS, True)
    assert len(said) > SECONDS / 10, log
    assert probe_warnings(node) == []
    assert ready == looks
    assert served, "metrics"
    client = scene.pod("client", templates=[scene.template()])
    scene.running(client, timeout=60)


def probe_warnings(node: InstalledNode) -> list[str]:
    """What the kubelet said of failed probes, once everything had started."""
    found = node.cluster.api.all("Event", NAMESPACE, fieldSelector="reason=Unhealthy")
    return [one["message"] for one in found if "Liveness" in one["message"]]


def attackers_pod(*targets: str) -> Object:
    return {
        "terminationGracePeriodSeconds": 1,
        "automountServiceAccountToken": False,
        "containers": [
            {
                "name": "ctr",
                "image": f"{IMAGE}:{version()}",
                "imagePullPolicy": "Never",
                "command": ["python3", "-c", FLOOD.read_text(), *targets],
                "env": [{"name": "GRPC_VERBOSITY", "value": "NONE"}],
                "securityContext": {
                    "runAsUser": 12345,
                    "allowPrivilegeEscalation": False,
                    "capabilities": {"drop": ["ALL"]},
                },
            }
        ],
    }


def _is_ready(pod: Object) -> bool:
    return all(one["ready"] for one in pod["status"]["containerStatuses"])


def _read(path: Path) -> str:
    with suppress(OSError):
        return path.read_text(errors="replace")
    return ""
