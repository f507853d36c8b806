"""Killed at any point, the driver is consistent again after the next call or the next start."""

import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest

import make
from claims_world import CONFIGS, World
from dra_driver.claims.model import ClaimRef
from dra_driver.claims.reconcile import ReconcileTiming
from dra_driver.claims.record import RecordState
from dra_driver.errors import DeviceError

CHILD = Path(__file__).with_name("child.py")
GPU = make.gpu(1).uuid
PREPARE_STEPS = [
    ("exclusive", "marked"),
    ("exclusive", "recorded"),
    ("exclusive", "specified"),
    ("sharing", "marked"),
    ("sharing", "intended"),
    ("sharing", "applied"),
    ("sharing", "recorded"),
]
UNPREPARE_STEPS = [
    ("exclusive", "unspecified"),
    ("exclusive", "forgotten"),
    ("sharing", "undone"),
    ("sharing", "unspecified"),
    ("sharing", "forgotten"),
]


Killed = Callable[[str, str, str], tuple[World, ClaimRef]]


@pytest.fixture(scope="module")
def wrecks(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, str, str], Path]:
    """What a driver leaves when it is killed at a step; made once for all tests."""

    @cache
    def wreck(mode: str, call: str, step: str) -> Path:
        root = tmp_path_factory.mktemp("wreck")
        if call == "unprepare":
            before = World(root)
            before.prepare(before.api.add("gpu-1", configs=CONFIGS[mode]))
            before.close()
        done = subprocess.run([sys.executable, CHILD, "die", root, mode, call, step], check=False)
        assert done.returncode == -signal.SIGKILL
        return root

    return wreck


@pytest.fixture
def killed(wrecks: Callable[[str, str, str], Path], tmp_path: Path) -> Iterator[Killed]:
    """Give the driver that is started after one was killed at a step, and the claim."""
    worlds: list[World] = []

    def start(mode: str, call: str, step: str) -> tuple[World, ClaimRef]:
        root = tmp_path / "node"
        shutil.copytree(wrecks(mode, call, step), root)
        worlds.append(World(root))
        return worlds[-1], worlds[-1].api.add("gpu-1", configs=CONFIGS[mode])

    yield start
    for world in worlds:
        world.close()


@pytest.mark.parametrize(("mode", "step"), PREPARE_STEPS)
def test_killed_in_prepare_the_next_prepare_completes(killed: Killed, mode: str, step: str) -> None:
    world, ref = killed(mode, "prepare", step)
    (device,) = world.prepare(ref)
    assert device.device_name == "gpu-1"
    assert world.nodes(ref) == ["/dev/nvidia1"]
    assert world.set_on(GPU) == (ref.uid if mode == "sharing" else None)
    world.unprepare(ref)
    assert world.left() == []


@pytest.mark.parametrize(("mode", "step"), PREPARE_STEPS)
def test_killed_in_prepare_unprepare_takes_all_back(killed: Killed, mode: str, step: str) -> None:
    world, ref = killed(mode, "prepare", step)
    world.unprepare(ref)
    assert world.set_on(GPU) is None
    assert world.left() == []


@pytest.mark.parametrize(("mode", "step"), PREPARE_STEPS)
def test_killed_in_prepare_the_next_start_leaves_all_or_nothing(
    killed: Killed, mode: str, step: str
) -> None:
    world, ref = killed(mode, "prepare", step)
    assert not world.reconciler(ReconcileTiming()).mend()
    record = world.claims.records.read(ref.uid)
    if record:
        assert record.state is RecordState.PREPARED
        assert world.nodes(ref) == ["/dev/nvidia1"]
        assert world.set_on(GPU) == (ref.uid if mode == "sharing" else None)
    else:
        assert world.set_on(GPU) is None
        assert world.left() == []


@pytest.mark.parametrize(("mode", "step"), UNPREPARE_STEPS)
@pytest.mark.parametrize(
    "after",
    ["unprepare", "mend and unprepare", "prepare and unprepare", "mend and prepare and unprepare"],
)
def test_killed_in_unprepare_nothing_is_left_in_the_end(
    killed: Killed, mode: str, step: str, after: str
) -> None:
    world, ref = killed(mode, "unprepare", step)

    def prepare() -> None:
        world.prepare(ref)
        assert world.set_on(GPU) == (ref.uid if mode == "sharing" else None)
        assert world.nodes(ref) == ["/dev/nvidia1"]

    calls: dict[str, Callable[[], object]] = {
        "unprepare": lambda: world.unprepare(ref),
        "prepare": prepare,
        "mend": world.reconciler(ReconcileTiming()).mend,
    }
    for call in after.split(" and "):
        calls[call]()
    assert world.set_on(GPU) is None
    assert world.left() == []


@pytest.mark.parametrize("mode", ["exclusive", "sharing"])
def test_a_mark_without_a_record_goes_with_the_next_start(killed: Killed, mode: str) -> None:
    world, ref = killed(mode, "unprepare", "forgotten")
    assert world.left() == [f"plugin/gpus/{GPU}/{ref.uid}"]
    assert not world.reconciler(ReconcileTiming()).mend()
    assert world.left() == []


def test_a_refused_change_is_undone_and_leaves_nothing(world: World) -> None:
    ref = world.api.add("gpu-1", "gpu-2", configs=CONFIGS["sharing"])
    world.sharing.refuse_apply = DeviceError("the GPU refused")
    with pytest.raises(DeviceError, match="the GPU refused"):
        world.prepare(ref)
    assert world.left() == []
    world.sharing.refuse_apply = None
    world.prepare(ref)
    assert world.set_on(GPU) == ref.uid


def test_the_edits_of_a_strategy_are_in_the_spec_and_come_back_into_it(world: World) -> None:
    ref = world.api.add("gpu-1", configs=CONFIGS["sharing"])
    world.prepare(ref)
    spec = world.spec(ref)
    assert spec["devices"][0]["containerEdits"]["env"] == [f"MPS={ref.uid}"]
    world.specs.delete(ref.uid)
    world.prepare(ref)
    assert world.spec(ref) == spec


def test_what_cannot_be_undone_does_not_block_unprepare_and_is_tried_again(world: World) -> None:
    ref = world.api.add("gpu-1", configs=CONFIGS["sharing"])
    world.prepare(ref)
    world.sharing.refuse_undo = DeviceError("the GPU refused")
    world.unprepare(ref)
    world.unprepare(ref)
    assert not world.specs.exists(ref.uid)
    record = world.claims.records.read(ref.uid)
    assert record is not None
    assert record.state is RecordState.RELEASED

    newcomer = world.api.add("gpu-1", uid="new", name="new", configs=CONFIGS["sharing"])
    world.prepare(newcomer)
    world.sharing.refuse_undo = None
    reconciler = world.reconciler(ReconcileTiming())
    assert reconciler.mend() == {ref.uid}, "the GPU is another claim's now, so it must wait"
    assert world.set_on(GPU) == "new"
    world.unprepare(newcomer)
    assert not reconciler.mend()
    assert world.left() == []
