"""How a sick device shows in the status of its pods and claims, through what restarts."""

import re
import shlex
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from testbed.commands import REPOSITORY, TestbedError, wait_until

from e2e.kubernetes import needs
from e2e.scene import NAMESPACE, Scene, cel
from e2e.sickness import (
    GPU,
    device,
    forget,
    in_claim,
    in_pod,
    mend,
    tainted_soon,
    uuid,
    wait_told,
    wanting_it,
)

pytestmark = [pytest.mark.e2e, needs("DRADeviceTaints", "ResourceHealthStatus")]

XID_79 = "XID 79: the GPU has fallen off the bus"


@pytest.fixture(autouse=True)
def machine_as_before(scene: Scene) -> Iterator[None]:
    """Mend the machine after a test, whether it went well or not; let the driver forget."""
    settings = scene.node.driver_settings
    yield
    forget(scene, settings)


def said(scene: Scene, pod: str) -> object:
    """All that is said of a pod's device, and the versions of the claims that say it."""
    claims = scene.api.all("ResourceClaim", NAMESPACE)
    versions = {claim["metadata"]["name"]: claim["metadata"]["resourceVersion"] for claim in claims}
    mine = {name: version for name, version in versions.items() if name.startswith(pod)}
    return in_pod(scene, pod), in_claim(scene, pod), mine


def test_a_pod_and_its_claim_say_that_the_gpu_is_sick_and_that_it_is_well_again(
    scene: Scene,
) -> None:
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


@pytest.mark.long(
    "tests/contract/kubelet/test_health_stream.py"
    "::test_what_is_steady_is_told_again_well_within_the_kubelets_patience"
)
def test_a_steady_device_is_never_unknown(scene: Scene) -> None:
    there = scene.pod("there", templates=[wanting_it(scene)])
    scene.running(there)
    scene.node.machine.xid(GPU, 79)
    wait_told(scene, there, "Unhealthy", XID_79)
    before_that = said(scene, there)
    time.sleep(45)  # the kubelet takes what it has not heard of for 30 s as unknown
    touched = scene.pod("touched", templates=[scene.template("any")])
    scene.running(touched)  # while the kubelet is at work
    assert [one.health for one in in_pod(scene, there)] == ["Unhealthy"]
    assert said(scene, there) == before_that


@pytest.mark.long(
    "tests/contract/test_app_health_stream.py"
    "::test_a_successor_tells_what_was_wrong_before_it_and_a_restarted_kubelet_hears_it"
)
def test_a_killed_drivers_successor_tells_the_same_and_lifts_it(scene: Scene) -> None:
    there = scene.pod("there", templates=[wanting_it(scene)])
    scene.running(there)
    scene.node.machine.xid(GPU, 79)
    tainted_soon(scene)
    wait_told(scene, there, "Unhealthy", XID_79)
    before, claimed = device(scene)["taints"], in_claim(scene, there)
    scene.node.driver.kill()
    wait_until(
        lambda: [one.health for one in in_pod(scene, there)] == ["Unknown"],
        "the kubelet to know no more",
        timeout=90,
    )
    assert in_claim(scene, there) == claimed
    scene.node.driver.start()
    scene.node.driver.wait_registered()
    wait_told(scene, there, "Unhealthy", XID_79)
    assert device(scene)["taints"] == before
    mend(scene)
    wait_told(scene, there, "Healthy")


@pytest.mark.long(
    "tests/contract/test_app_health_stream.py"
    "::test_a_successor_tells_what_was_wrong_before_it_and_a_restarted_kubelet_hears_it"
)
def test_a_restarted_kubelet_is_told_anew_and_the_taint_comes_back_with_the_slices(
    scene: Scene,
) -> None:
    there = scene.pod("there", templates=[wanting_it(scene)])
    scene.running(there)
    scene.node.machine.xid(GPU, 79)
    tainted_soon(scene)
    wait_told(scene, there, "Unhealthy", XID_79)
    before = device(scene)["taints"]
    scene.node.cluster.stop("kubelet")
    scene.node.cluster.start("kubelet")
    # A starting kubelet deletes all ResourceSlices of its node.
    new = scene.pod("new", templates=[scene.template("any")])
    scene.running(new, timeout=90)
    wait_told(scene, there, "Unhealthy", XID_79)
    assert device(scene)["taints"] == before
    mend(scene)
    wait_told(scene, there, "Healthy")


def wait_as_on_the_page(scene: Scene, claim: str, *, seconds: int) -> str:
    """Run the command of docs/claim-status.md with a claim's name; return what it printed."""
    page = (REPOSITORY / "docs/claim-status.md").read_text()
    (line,) = re.findall(r"^kubectl (wait .*)$", page, re.MULTILINE)
    assert line.count("CLAIM") == 1
    words = shlex.split(line.replace("CLAIM", claim))
    limits = ("--namespace", NAMESPACE, f"--timeout={seconds}s")
    return scene.node.cluster.kubectl(*words, *limits, timeout=seconds + 30)
