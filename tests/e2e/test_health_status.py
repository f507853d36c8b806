"""How a sick device shows in the status of its pods and claims, through what restarts."""

import re
import shlex
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from testbed.commands import REPOSITORY, TestbedError

from e2e.kubernetes import needs
from e2e.scene import NAMESPACE, Scene, cel
from e2e.sickness import (
    GPU,
    forget,
    in_claim,
    in_pod,
    mend,
    tainted_soon,
    uuid,
    wait_told,
)

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.stream("own"),
    needs("DRADeviceTaints", "ResourceHealthStatus"),
]

XID_79 = "XID 79: the GPU has fallen off the bus"


@pytest.fixture(autouse=True)
def machine_as_before(scene: Scene) -> Iterator[None]:
    """Mend the machine after a test, whether it went well or not; let the driver forget."""
    settings = scene.node.driver_settings
    yield
    forget(scene, settings)


def test_pod_and_claim_report_a_sick_gpu_and_its_recovery(scene: Scene) -> None:
    claim = scene.claim(
        "wanted", selectors=cel(f'device.attributes["gpu.nvidia.com"].uuid == "{uuid(scene)}"')
    )
    there = scene.pod("there", claims=[claim])
    other = scene.pod("other", templates=[scene.template("any")])
    scene.running(there, other)
    containers = scene.container_ids(there, other)
    wait_told(scene, there, "Healthy")
    wait_told(scene, other, "Healthy")
    with pytest.raises(TestbedError, match="timed out"):
        wait_as_on_the_page(scene, claim, seconds=1)
    with ThreadPoolExecutor() as threads:
        waiting = threads.submit(wait_as_on_the_page, scene, claim, seconds=90)
        scene.node.machine.xid(GPU, 79)
        tainted_soon(scene)
        wait_told(scene, there, "Unhealthy", XID_79)
        assert f"{claim} condition met" in waiting.result(timeout=120)
    assert {one.health for one in (*in_pod(scene, other), *in_claim(scene, other))} == {"Healthy"}
    mend(scene)
    wait_told(scene, there, "Healthy")
    assert scene.container_ids(there, other) == containers


def wait_as_on_the_page(scene: Scene, claim: str, *, seconds: int) -> str:
    """Run the command of docs/claim-status.md with a claim's name; return what it printed."""
    page = (REPOSITORY / "docs/claim-status.md").read_text()
    (line,) = re.findall(r"^kubectl (wait .*)$", page, re.MULTILINE)
    assert line.count("CLAIM") == 1
    words = shlex.split(line.replace("CLAIM", claim))
    limits = ("--namespace", NAMESPACE, f"--timeout={seconds}s")
    return scene.node.cluster.kubectl(*words, *limits, timeout=seconds + 30)
