"""Health by any course of events and looks: one GPU's is no other's, and it heals to what was."""

from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

from hypothesis import given, settings
from hypothesis import strategies as st

import make
from dra_driver.devices.health.findings import Severity
from dra_driver.devices.health.record import HealthFile
from dra_driver.devices.health.tracker import HealthTracker
from dra_driver.devices.model import Fabric, Gpu, GpuEvent, SickGpu, Vitals
from dra_driver.slices.project import projection
from dra_driver.slices.taints import Effect, tainted
from sampling import examples

WELL = make.vitals()
GPUS = tuple(make.gpu(minor, vitals=WELL) for minor in range(3))
ALL_TAINT = dict.fromkeys(Severity, Effect.NO_SCHEDULE)

vitals = st.builds(
    Vitals,
    recovery_action=st.none() | st.integers(0, 9),
    rows_pending=st.none() | st.booleans(),
    rows_failed=st.none() | st.booleans(),
    uncorrected=st.none() | st.integers(0, 2),
    slowdown=st.none() | st.sampled_from([0, 0x40, 0x80, 0x20]),
    fabric=st.none() | st.builds(Fabric, state=st.integers(0, 3), status=st.just(0)),
)
states = vitals | st.sampled_from(["lost", "silent", "refused"])


@dataclass(kw_only=True)
class Step:
    """A look at GPUs as they are then, an XID, or another driver in place of this one.

    The clock is so many seconds later, or it was set meanwhile.
    """

    seconds: int
    gpu: int
    state: Vitals | str | None = None
    xid: int | None = None
    restart: bool = False


steps = st.lists(
    st.builds(
        Step,
        seconds=st.integers(0, 200) | st.integers(-100_000, 100_000),
        gpu=st.integers(0, 2),
        state=st.none() | states,
        xid=st.none() | st.integers(0, 200),
        restart=st.booleans(),
    ),
    max_size=12,
)


@dataclass
class Node:
    """A node with its record; looks see each GPU in its last state."""

    folder: Path
    now: int = 10_000_000
    states: dict[int, Vitals | str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.restart()
        self.look()

    def restart(self) -> None:
        self.tracker = HealthTracker(
            HealthFile(self.folder, "boot"),
            settle=60,
            clock=lambda: float(self.now),
            on_change=lambda: None,
            on_begin=lambda _uuid, _gpu, _one: None,
        )

    def take(self, step: Step) -> None:
        self.now += step.seconds
        if step.restart:
            self.restart()
        if step.xid is not None:
            self.tracker.hear(GpuEvent(gpu=GPUS[step.gpu].uuid, xid=step.xid))
        if step.state is not None:
            self.states[step.gpu] = step.state
        self.look()

    def look(self) -> None:
        well: list[Gpu] = []
        sick: list[SickGpu] = []
        for gpu in GPUS:
            state = self.states.get(gpu.minor, WELL)
            if isinstance(state, Vitals):
                well.append(make.gpu(gpu.minor, vitals=state))
            else:
                lost, silent = state == "lost", state == "silent"
                sick.append(SickGpu(index=gpu.index, reason=state, is_lost=lost, is_silent=silent))
        self.seen = make.inventory(sick=tuple(sick), gpus=tuple(well))
        self.tracker.look(self.seen)

    def published(self) -> dict[str, object]:
        found = projection(self.tracker.published(self.seen))
        after = tainted(found, self.tracker.in_force(), ALL_TAINT)
        return {str(device["name"]): device for device in after.devices}

    def heal(self) -> None:
        self.states.clear()
        for _ in range(3):
            self.now += 3700
            self.look()


def node(folder: str) -> Node:
    return Node(Path(folder))


@settings(max_examples=examples(25), deadline=None)
@given(steps)
def test_whatever_happens_to_one_gpu_changes_nothing_of_another(course: list[Step]) -> None:
    with TemporaryDirectory() as all_of_it, TemporaryDirectory() as without:
        whole, less = node(all_of_it), node(without)
        for step in course:
            whole.take(step)
            less.take(
                step if step.gpu != 0 else Step(seconds=step.seconds, gpu=0, restart=step.restart)
            )
            for name in ("gpu-1", "gpu-2"):
                assert whole.tracker.in_force().get(
                    GPUS[int(name[-1])].uuid
                ) == less.tracker.in_force().get(GPUS[int(name[-1])].uuid)


@settings(max_examples=examples(25), deadline=None)
@given(steps)
def test_after_recovery_the_slices_are_as_before(course: list[Step]) -> None:
    with TemporaryDirectory() as folder:
        one = node(folder)
        before = one.published()
        for step in course:
            one.take(step)
        one.heal()
        assert one.published() == before


@settings(max_examples=examples(25), deadline=None)
@given(steps)
def test_a_restart_and_a_look_at_the_same_moment_change_nothing(course: list[Step]) -> None:
    with TemporaryDirectory() as folder:
        one = node(folder)
        for step in course:
            one.take(step)
        one.look()
        before = one.tracker.in_force()
        one.look()
        assert one.tracker.in_force() == before
        one.restart()
        one.look()
        assert one.tracker.in_force() == before
