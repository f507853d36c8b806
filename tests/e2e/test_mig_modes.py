"""Which GPUs are divided on a real node: what `--mig` and admins say."""

from collections.abc import Iterator

import pytest
from testbed.commands import wait_until

from dra_driver.admin.doctor.facts.cluster_facts import Feature
from e2e.kubernetes import needs
from e2e.scene import Scene
from e2e.test_mig import MEDIUM, MIG_CLASS, migs, seen, set_mig_mode, template, there

pytestmark = [pytest.mark.e2e, pytest.mark.stream("own"), needs(Feature.COUNTERS)]

BY_HAND = 7


@pytest.fixture
def in_mig_mode(scene: Scene) -> Iterator[None]:
    """GPU 7 in MIG mode, as its admin put it; afterwards the node is as it was."""
    set_mig_mode(scene, "on")
    yield
    scene.clear()
    scene.node.driver.env.pop("MIG", None)
    set_mig_mode(scene, "off")
    scene.rewritten()


@pytest.fixture
def by_hand(scene: Scene, in_mig_mode: None) -> Iterator[str]:
    """A MIG device that somebody made by hand on GPU 7; afterwards the node is as it was."""
    uuid = scene.node.machine.mig("create", "--gpu", str(BY_HAND), "--profile", MEDIUM)
    yield uuid
    scene.node.machine.mig("destroy", "--device", uuid)


def restart(scene: Scene, **env: str) -> list[str]:
    """Start the driver again with settings; return what it says is offered of MIG, and why."""
    scene.node.driver.stop()
    scene.node.driver.env |= env
    scene.node.driver.start()
    scene.node.driver.wait_registered()
    offered = scene.node.driver.wait_log("mig devices offered")
    return [offered["source"], offered["why"]]


def wait_devices(scene: Scene, expected: set[str]) -> None:
    wait_until(lambda: set(scene.node.devices()) == expected, f"{expected}", timeout=120)


WHOLE = {f"gpu-{minor}" for minor in range(8) if minor != BY_HAND}
HAND_MADE = f"gpu-{BY_HAND}-mig-2g20gb-14-0"


def test_existing_gives_out_what_others_made_and_makes_nothing(scene: Scene, by_hand: str) -> None:
    assert restart(scene, MIG="existing") == ["existing", "--mig is existing"]
    wait_devices(scene, WHOLE | {HAND_MADE})
    pod = scene.pod("fits", templates=[template(scene, migs(mig=MEDIUM))])
    scene.running(pod)
    assert seen(scene, pod) == {by_hand: MEDIUM}
    late = scene.pod("late", templates=[scene.template("small", deviceClassName=MIG_CLASS)])
    assert "cannot allocate all claims" in scene.unschedulable(late)
    whole = scene.pod("whole", claims=[scene.claim("seven", count=7)])
    scene.running(whole)
    assert there(scene) == 1
    scene.delete(pod, late, whole)
    assert there(scene) == 1
