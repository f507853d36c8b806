"""Killed at any point, the driver is consistent again after the next call or the next start."""

import shutil
import signal
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest

import make
from dra_driver.claims.model.claim import ClaimRef
from dra_driver.claims.model.record import RecordState
from dra_driver.claims.reconcile.reconciler import ReconcileTiming
from dra_driver.errors import DeviceError
from worlds import child
from worlds.configs import CONFIGS, PATIENCE
from worlds.driver import Driver

GPU = make.gpu(1).uuid
PREPARE_STEPS = [
    ("exclusive", "marked"),
    ("exclusive", "recorded"),
    ("exclusive", "described"),
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


Killed = Callable[[str, str, str], tuple[Driver, ClaimRef]]


@pytest.fixture(scope="module")
def wrecks(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, str, str], Path]:
    """What a driver leaves when it is killed at a step; made once for all tests."""

    @cache
    def wreck(mode: str, call: str, step: str) -> Path:
        root = tmp_path_factory.mktemp("wreck")
        if call == "unprepare":
            before = Driver(root)
            before.prepare(before.api.add("gpu-1", configs=CONFIGS[mode]))
            before.close()
        process = child.start("die", root, mode, call, step)
        assert process.wait(PATIENCE) == -signal.SIGKILL
        return root

    return wreck


@pytest.fixture
def killed(wrecks: Callable[[str, str, str], Path], tmp_path: Path) -> Iterator[Killed]:
    """Give the driver that is started after one was killed at a step, and the claim."""
    drivers: list[Driver] = []

    def start(mode: str, call: str, step: str) -> tuple[Driver, ClaimRef]:
        root = tmp_path / "node"
        shutil.copytree(wrecks(mode, call, step), root)
        drivers.append(Driver(root))
        return drivers[-1], drivers[-1].api.add("gpu-1", configs=CONFIGS[mode])

    yield start
    for driver in drivers:
        driver.close()


@pytest.mark.parametrize(("mode", "step"), PREPARE_STEPS)
def test_killed_in_prepare_the_next_prepare_completes(killed: Killed, mode: str, step: str) -> None:
    driver, ref = killed(mode, "prepare", step)
    (device,) = driver.prepare(ref)
    assert device.device_name == "gpu-1"
    assert driver.nodes(ref) == ["/dev/nvidia1"]
    assert driver.set_on(GPU) == (ref.uid if mode == "sharing" else None)
    driver.unprepare(ref)
    assert driver.left() == []


@pytest.mark.parametrize(("mode", "step"), PREPARE_STEPS)
def test_killed_in_prepare_unprepare_takes_all_back(killed: Killed, mode: str, step: str) -> None:
    driver, ref = killed(mode, "prepare", step)
    driver.unprepare(ref)
    assert driver.set_on(GPU) is None
    assert driver.left() == []


@pytest.mark.parametrize(("mode", "step"), PREPARE_STEPS)
def test_killed_in_prepare_the_next_start_leaves_all_or_nothing(
    killed: Killed, mode: str, step: str
) -> None:
    driver, ref = killed(mode, "prepare", step)
    assert not driver.reconciler(ReconcileTiming()).mend()
    record = driver.claims.records.read(ref.uid)
    if record:
        assert record.state is RecordState.PREPARED
        assert driver.nodes(ref) == ["/dev/nvidia1"]
        assert driver.set_on(GPU) == (ref.uid if mode == "sharing" else None)
    else:
        assert driver.set_on(GPU) is None
        assert driver.left() == []


@pytest.mark.parametrize(("mode", "step"), UNPREPARE_STEPS)
@pytest.mark.parametrize(
    "after",
    ["unprepare", "mend and unprepare", "prepare and unprepare", "mend and prepare and unprepare"],
)
def test_killed_in_unprepare_nothing_is_left_in_the_end(
    killed: Killed, mode: str, step: str, after: str
) -> None:
    driver, ref = killed(mode, "unprepare", step)

    def prepare() -> None:
        driver.prepare(ref)
        assert driver.set_on(GPU) == (ref.uid if mode == "sharing" else None)
        assert driver.nodes(ref) == ["/dev/nvidia1"]

    calls: dict[str, Callable[[], object]] = {
        "unprepare": lambda: driver.unprepare(ref),
        "prepare": prepare,
        "mend": driver.reconciler(ReconcileTiming()).mend,
    }
    for call in after.split(" and "):
        calls[call]()
    assert driver.set_on(GPU) is None
    assert driver.left() == []


@pytest.mark.parametrize("mode", ["exclusive", "sharing"])
def test_a_mark_without_a_record_goes_with_the_next_start(killed: Killed, mode: str) -> None:
    driver, ref = killed(mode, "unprepare", "forgotten")
    assert driver.left() == [f"plugin/gpus/{GPU}/{ref.uid}"]
    assert not driver.reconciler(ReconcileTiming()).mend()
    assert driver.left() == []


def test_a_refused_change_is_undone_and_leaves_nothing(driver: Driver) -> None:
    ref = driver.api.add("gpu-1", "gpu-2", configs=CONFIGS["sharing"])
    driver.sharing.refuse_apply = DeviceError("the GPU refused")
    with pytest.raises(DeviceError, match="the GPU refused"):
        driver.prepare(ref)
    assert driver.left() == []
    driver.sharing.refuse_apply = None
    driver.prepare(ref)
    assert driver.set_on(GPU) == ref.uid


def test_the_edits_of_a_strategy_are_in_the_spec_and_come_back_into_it(driver: Driver) -> None:
    ref = driver.api.add("gpu-1", configs=CONFIGS["sharing"])
    driver.prepare(ref)
    spec = driver.spec(ref)
    assert spec["devices"][0]["containerEdits"]["env"] == [f"MPS={ref.uid}"]
    driver.specs.delete(ref.uid)
    driver.prepare(ref)
    assert driver.spec(ref) == spec


def test_what_cannot_be_undone_does_not_block_unprepare_and_is_tried_again(driver: Driver) -> None:
    ref = driver.api.add("gpu-1", configs=CONFIGS["sharing"])
    driver.prepare(ref)
    driver.sharing.refuse_undo = DeviceError("the GPU refused")
    driver.unprepare(ref)
    driver.unprepare(ref)
    assert not driver.specs.exists(ref.uid)
    record = driver.claims.records.read(ref.uid)
    assert record is not None
    assert record.state is RecordState.RELEASED

    newcomer = driver.api.add("gpu-1", uid="new", name="new", configs=CONFIGS["sharing"])
    driver.prepare(newcomer)
    driver.sharing.refuse_undo = None
    reconciler = driver.reconciler(ReconcileTiming())
    assert reconciler.mend() == {ref.uid}, "the GPU is another claim's now, so it must wait"
    assert driver.set_on(GPU) == "new"
    driver.unprepare(newcomer)
    assert not reconciler.mend()
    assert driver.left() == []
