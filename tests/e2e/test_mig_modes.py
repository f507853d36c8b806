"""Which GPUs are divided on a real node: what `--mig` and admins say, and a card that refuses."""

from collections.abc import Iterator

import pytest
from testbed.commands import wait_until
from testbed.holder import holding

from dra_driver.admin.doctor.facts.cluster_facts import Feature
from e2e.kubernetes import makes_mig_by_default, needs
from e2e.scene import Scene
from e2e.test_mig import MEDIUM, MIG_CLASS, SMALL, migs, parent, seen, set_mig_mode, template, there

pytestmark = [pytest.mark.e2e, pytest.mark.stream("own"), needs(Feature.COUNTERS)]

PARTS_OF_A_GPU = 25
FIRST_TO_BE_DIVIDED = 0
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


@makes_mig_by_default()
@pytest.mark.usefixtures("in_mig_mode")
def test_auto_divides_the_gpu_that_its_admin_put_in_mig_mode_and_no_other(scene: Scene) -> None:
    assert scene.node.driver.wait_log("mig devices offered")["source"] == "auto"
    assert set(scene.node.devices()) - set(parts(scene)) == WHOLE
    assert len(parts(scene)) == PARTS_OF_A_GPU
    modes = mig_modes(scene)
    seven = {"r" + str(number): SMALL for number in range(7)}
    cut = scene.pod("cut", templates=[template(scene, migs(**seven))])
    whole = scene.pod("whole", claims=[scene.claim("seven", count=7)])
    scene.running(cut, whole)
    assert len(seen(scene, cut)) == 7
    assert parent(scene, cut) not in scene.gpus(whole)
    one = {"spec": {"spec": migs(mig=SMALL)}}
    late = scene.pod("late", templates=[scene.make("ResourceClaimTemplate", "one", one)])
    assert "cannot allocate all claims" in scene.unschedulable(late)
    scene.delete(cut, whole)
    scene.running(late)
    scene.delete(late)
    assert there(scene) == 0
    assert mig_modes(scene) == modes


@pytest.mark.long(
    "tests/unit/slices/test_mig_offer.py::test_where_mig_manager_makes_devices_this_driver_does_not"
)
@makes_mig_by_default()
@pytest.mark.usefixtures("in_mig_mode")
def test_a_node_that_mig_manager_divides_is_left_to_it(scene: Scene) -> None:
    name = template(scene, migs(mig=SMALL))
    before = scene.pod("before", templates=[name])
    scene.running(before)
    label(scene, "all-1g.10gb")
    try:
        wait_until(lambda: len(parts(scene)) <= 1, "the parts of GPU 7 to go", timeout=120)
        assert seen(scene, before)
        late = scene.pod("late", templates=[name])
        assert "cannot allocate all claims" in scene.unschedulable(late)
        scene.delete(before)
        assert there(scene) == 0
        wait_until(lambda: parts(scene) == [], "the last part to go", timeout=120)
        wait_devices(scene, WHOLE)
    finally:
        label(scene, None)
    scene.running(late)
    scene.delete(late)


def label(scene: Scene, value: str | None) -> None:
    """Give the Node mig-manager's label, or take it away."""
    labels = {"nvidia.com/mig.config": value}
    scene.api.patch("Node", scene.node.cluster.node, {"metadata": {"labels": labels}})


def parts(scene: Scene) -> list[str]:
    """The devices that are parts of GPUs."""
    return [name for name in scene.node.devices() if "-mig-" in name]


def mig_modes(scene: Scene) -> list[str]:
    """The MIG mode of each GPU."""
    return [setting.mig_mode for setting in scene.node.machine.settings().values()]


@pytest.mark.long(
    "tests/contract/test_app_mig.py"
    "::test_partitions_of_a_gpu_that_others_have_open_are_withdrawn_until_they_let_go"
)
@pytest.mark.driver(MIG="on-demand")
def test_a_card_that_refuses_is_told_and_passed_over_until_it_is_let_go(scene: Scene) -> None:
    name = template(scene, migs(mig=SMALL))
    with holding(scene.node.machine.root, FIRST_TO_BE_DIVIDED) as pid:
        held = scene.pod("held", templates=[name])
        words = f"dcgm-exporter (PID {pid})"
        withdrawn = scene.node.driver.wait_log("mig partitions withdrawn")
        assert words in withdrawn["reason"]
        wait_until(lambda: len(of_the_held(scene)) == 1, "its other parts to go", timeout=120)
        scene.node.wait_published()
        # The part that the pod has is counted: its GPU is not given out as a whole beside it.
        eight = scene.pod("eight", claims=[scene.claim("eight", count=8)])
        assert "cannot allocate all claims" in scene.unschedulable(eight)
        scene.delete(eight)
        passed = scene.pod("passed", templates=[name])
        scene.running(passed)
        assert f"gpu-{FIRST_TO_BE_DIVIDED}" in scene.node.devices()
        event = scene.warning(held, "FailedPrepareDynamicResources", timeout=90)
        assert words in event
        assert "cannot be switched to MIG mode while others have it open" in event
        scene.delete(held)
        wait_until(lambda: of_the_held(scene) == [], "the pod's part to go", timeout=120)
        again = scene.pod("again", templates=[name])
        scene.running(again)
        assert parent(scene, again) == parent(scene, passed) != withdrawn["gpu"]
    wait_until(lambda: len(of_the_held(scene)) == 25, "its parts to be back", timeout=120)
    scene.delete(passed, again)
    after = scene.pod("after", templates=[name])
    scene.running(after)
    assert parent(scene, after) == withdrawn["gpu"]
    scene.delete(after)
    scene.rewritten()


def of_the_held(scene: Scene) -> list[str]:
    """The partitions that are offered of the GPU that is held."""
    prefix = f"gpu-{FIRST_TO_BE_DIVIDED}-mig-"
    return [name for name in scene.node.devices() if name.startswith(prefix)]
