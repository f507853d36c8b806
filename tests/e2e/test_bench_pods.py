"""`dra-driver bench pods`: pods of every strategy run under it on simulated GPUs, and go again."""

import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from testbed.commands import wait_until
from testbed.node import GpuNode

from bench_processes import scenario_of
from dra_driver.bench.pods.manifests import LABEL
from e2e.bench_run import Run, loaded
from e2e.scene import Scene

pytestmark = [pytest.mark.e2e, pytest.mark.stream("own")]


@pytest.fixture(scope="module")
def image(node: GpuNode, image_archive: Path) -> str:
    """The driver's image with the benchmark's code: what a tenant needs on simulated GPUs."""
    return loaded(node.cluster, image_archive)


def namespace_of_a_run(scene: Scene) -> str:
    """The namespace of the run that is under way."""

    def found() -> str | None:
        namespaces = scene.api.all("Namespace", labelSelector=LABEL)
        return namespaces[0]["metadata"]["name"] if namespaces else None

    return str(wait_until(found, "the namespace of the run", timeout=60))


def await_pod(
    scene: Scene, namespace: str, is_it: Callable[[dict[str, Any]], bool], phase: str
) -> None:
    """Wait until a pod of a run is in a phase."""
    wait_until(
        lambda: any(
            is_it(pod) and pod["status"].get("phase") == phase
            for pod in scene.api.all("Pod", namespace)
        ),
        f"a pod to be {phase}",
        timeout=120,
    )


def test_an_interrupted_run_keeps_what_was_done_and_leaves_nothing(
    scene: Scene, image: str, tmp_path: Path
) -> None:
    # Alone it ends at once; the second of two tenants does not.
    program = "import socket, time; time.sleep(300 * (socket.gethostname() == 'tenant-1'))"
    scenario = scenario_of(tmp_path / "s.yaml", "time-slicing", "python3", "-c", program)
    with Run(scene.node, image, tmp_path, "--scenario", str(scenario)) as run:
        namespace = namespace_of_a_run(scene)
        await_pod(scene, namespace, lambda pod: pod["metadata"]["name"] == "tenant-1", "Running")
        run.process.send_signal(signal.SIGINT)
        out = run.end()
    assert run.process.returncode == 130
    assert "SIGINT: ending what runs, and cleaning up" in out
    assert "the run was interrupted" in out
    assert run.states() == ["passed"]
    assert scene.api.find("Namespace", namespace, None) is None
