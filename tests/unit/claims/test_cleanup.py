"""What is taken back of a claim, in which order, and what of it stays to be done later."""

import time
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

import make
from dra_driver.claims.model.claim import ClaimUid
from dra_driver.claims.model.record import (
    ClaimRecord,
    ClaimStep,
    MakeMigDevices,
    MigStep,
    PendingCleanup,
    RecordState,
    TurnMigModeOff,
)
from dra_driver.claims.prepare.cleanup import Cleanup
from dra_driver.claims.prepare.steps import NO_WAIT, Sharing, Steps
from dra_driver.claims.state.holdings import open_holdings
from dra_driver.devices.device import Device
from dra_driver.devices.model import Inventory
from dra_driver.errors import DeviceError, DriverError, StateError, TransientError
from dra_driver.sharing.steps import TimeSlice

GPU, OTHER = make.gpu(0), make.gpu(1)
MIG = make.device(make.mig_device(0, start=0))
UID = ClaimUid("uid-1")


def made(start: int) -> MakeMigDevices:
    return MakeMigDevices(
        devices=(Device(base=make.place(make.mig_device(0, start=start))),), claim=UID
    )


MADE, OLD_MADE = made(0), made(1)
MODE = TurnMigModeOff(devices=(make.device(GPU),), restore=True)
OTHER_MODE = TurnMigModeOff(devices=(make.device(OTHER),), restore=True)
SETTING = TimeSlice(devices=(make.device(GPU),))
OLD_SETTING = TimeSlice(devices=(make.device(GPU),), card="old")
DAEMON, ELSEWHERE = make.join(MIG), make.join(make.device(OTHER))
DEADLINE = 77.0


class Node:
    """Records and marks on disk; what carries out steps does as told, and is noted."""

    def __init__(self, folder: Path) -> None:
        self.holdings = open_holdings(folder, boot_id="boot-1", version="1.2.3")
        self.refusals: dict[Any, DriverError] = {}
        self.done: list[object] = []
        self.failed: list[str] = []
        self.on_end: Any = lambda: None
        self.inventory: Inventory = make.inventory()
        node: Any = self
        sharing = Sharing(
            planners={},
            time_slices=node,
            domains=node,
            nvidia_mps=node,
            shares=node,
            passthrough=node,
        )
        self.cleanup = Cleanup(
            self.holdings,
            node,
            Steps(node, sharing),
            node,
            on_failed=self.failed.append,
        )

    def claim(self, *gpus: Any, uid: str = "uid-1", **facts: Any) -> ClaimRecord:
        record = make.record(*gpus, uid=uid, **facts)
        self.holdings.records.write(record)
        for gpu in record.touched_gpus:
            self.holdings.ownership.mark(gpu, record.ref.uid)
        return record

    def record(self, uid: str = "uid-1") -> ClaimRecord | None:
        return self.holdings.records.peek(ClaimUid(uid))

    def marks(self) -> list[str]:
        """The GPUs that are marked for any claim."""
        return [one.uuid for one in (GPU, OTHER) if self.holdings.ownership.holders(one.uuid)]

    # Inventory, specs, and what carries out steps

    def current(self) -> Inventory:
        return self.inventory

    def delete(self, uid: str) -> None:
        self.done.append("spec")

    def undo(self, step: ClaimStep, deadline: float | None = None) -> None:
        if step.lives_by_itself and deadline != NO_WAIT:
            self.on_end()
            self.done.append(("ended", step, deadline))
        else:
            own = None if isinstance(step, MigStep) else DEADLINE
            assert deadline == (NO_WAIT if step.lives_by_itself else own)
            self.done.append(step)
        if step.name in self.refusals:
            raise self.refusals[step.name]


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def owes(of: ClaimStep, **facts: Any) -> PendingCleanup:
    return PendingCleanup(of=of, reason="refused", **facts)


# A claim ends


def test_a_claim_counts_as_released_before_its_daemons_are_waited_for(node: Node) -> None:
    record = node.claim(GPU, steps=(SETTING, DAEMON), pending=(owes(ELSEWHERE), owes(MODE)))
    states: list[RecordState] = []

    def look() -> None:
        found = node.record()
        assert found is not None
        states.append(found.state)

    node.on_end = look
    assert node.cleanup.begin_release(record, deadline=DEADLINE)
    node.refusals["MPS"] = DeviceError("it hangs")
    assert not node.cleanup.begin_release(record, deadline=DEADLINE)
    assert set(states) == {RecordState.RELEASED}
    ended = [("ended", one, DEADLINE) for one in (DAEMON, ELSEWHERE)] * 2
    assert len(node.done) == len(ended)
    assert all(one in ended for one in node.done)


def test_where_a_release_cannot_be_noted_nothing_is_undone(node: Node, tmp_path: Path) -> None:
    record = node.claim(GPU, steps=(DAEMON,), state=RecordState.PREPARING)
    path = tmp_path / "claims" / "uid-1.json"
    path.unlink()
    path.symlink_to(path)
    with pytest.raises(StateError, match=f"cannot change {path}"):
        node.cleanup.release(record, deadline=DEADLINE)
    assert node.done == []


def test_what_came_last_is_undone_first_and_sharing_before_the_devices_that_are_shared(
    node: Node,
) -> None:
    record = node.claim(
        GPU, steps=(MODE, MADE, SETTING, DAEMON), pending=(owes(OLD_SETTING), owes(OLD_MADE))
    )
    assert node.cleanup.release(record, deadline=DEADLINE) == ()
    assert node.done == [
        DAEMON, SETTING, OLD_SETTING, MADE, MODE, OLD_MADE, "spec",
    ]  # fmt: skip
    assert (node.record(), node.marks(), node.failed) == (None, [], [])


def test_what_cannot_be_undone_is_all_that_stays_of_a_claim(node: Node) -> None:
    node.refusals["MPS"] = DeviceError("it hangs")
    record = node.claim(GPU, OTHER, steps=(MADE, OTHER_MODE, SETTING, DAEMON))
    before = time.time()
    left = node.cleanup.release(record, deadline=DEADLINE)
    assert [(one.of, one.reason, one.may_pass) for one in left] == [
        (DAEMON, "it hangs", False),
        (MADE, "it hangs", False),  # nothing is destroyed below its users
    ]
    assert OTHER_MODE in node.done
    found = node.record()
    assert found is not None
    assert (found.state, found.steps) == (RecordState.RELEASED, ())
    assert found.pending == left
    assert all(before <= (one.since or 0) <= time.time() for one in left)
    assert (node.marks(), node.failed) == ([GPU.uuid], ["MPS"])


def test_a_setting_that_stays_keeps_no_device_from_being_destroyed(node: Node) -> None:
    node.refusals["TimeSlicing"] = TransientError("it is busy")
    record = node.claim(GPU, steps=(MADE, SETTING))
    (left,) = node.cleanup.release(record, deadline=DEADLINE)
    assert (left.of, left.may_pass) == (SETTING, True)
    assert MADE in node.done


def test_what_has_waited_since_then_is_of_then_and_none_is_of_tomorrow(node: Node) -> None:
    node.refusals |= {"TimeSlicing": DeviceError("no"), "MPS": DeviceError("no")}
    tomorrow = time.time() + 86400
    record = node.claim(
        GPU,
        state=RecordState.RELEASED,
        pending=(owes(SETTING, since=5.0), owes(ELSEWHERE, since=tomorrow)),
    )
    left = node.cleanup.release(record, deadline=DEADLINE)
    since = {one.of.name: one.since for one in left}
    assert since["TimeSlicing"] == 5.0
    assert (since["MPS"] or tomorrow) < tomorrow


def test_after_a_reboot_only_what_lives_by_itself_is_undone(node: Node) -> None:
    record = node.claim(
        GPU,
        boot_id="boot-0",
        steps=(MADE, SETTING, DAEMON),
        pending=(owes(OLD_SETTING), owes(ELSEWHERE), owes(MODE)),
    )
    node.refusals["MPS"] = DeviceError("it hangs")
    left = node.cleanup.release(record, deadline=DEADLINE)
    assert node.done[:2] == [DAEMON, ELSEWHERE]
    assert [one.of for one in left] == [ELSEWHERE, DAEMON]
    found = node.record()
    assert found is not None
    assert found.boot_id == "boot-1"


# Later


def test_what_is_owed_is_settled_on_the_gpus_asked_for_and_their_marks_go(node: Node) -> None:
    record = node.claim(GPU, pending=(owes(ELSEWHERE, since=5.0), owes(MADE, since=6.0)))
    assert node.marks() == [GPU.uuid, OTHER.uuid]
    left = node.cleanup.settle(record, deadline=DEADLINE, gpus=[OTHER.uuid])
    assert [one.of for one in left] == [MADE]
    found = node.record()
    assert found is not None
    assert found.pending == left
    assert node.marks() == [GPU.uuid]
    node.refusals[MADE.name] = DeviceError("refused again")
    assert [one.since for one in node.cleanup.settle(found, deadline=DEADLINE)] == [6.0]
    node.refusals.clear()
    assert node.cleanup.settle(found, deadline=DEADLINE) == ()
    assert node.done == [ELSEWHERE, MADE, MADE]
    assert node.record() == replace(record, pending=())
    assert node.marks() == [GPU.uuid], "the claim still has it"


@pytest.mark.parametrize(
    ("of", "wanted", "is_free"),
    [
        (DAEMON, GPU, False),
        (DAEMON, OTHER, True),
        (SETTING, GPU, True),
        (MADE, GPU, False),
        (MODE, GPU, True),
    ],
)
def test_a_gpu_is_given_out_again_unless_something_that_excludes_others_stays(
    node: Node, of: ClaimStep, wanted: Any, is_free: bool
) -> None:
    node.refusals[of.name] = DeviceError("it hangs")
    record = node.claim(GPU, OTHER, state=RecordState.RELEASED, pending=(owes(of),))
    draft = make.record(wanted, uid="uid-2")
    if is_free:
        node.cleanup.vacate(record, draft, deadline=DEADLINE)
        return
    with pytest.raises(
        TransientError,
        match=rf"{GPU.uuid} cannot be used yet: {of.name} of an earlier .* ended \(it hangs\)",
    ):
        node.cleanup.vacate(record, draft, deadline=DEADLINE)


def test_of_a_record_of_another_boot_all_is_undone_before_its_gpu_is_given_out(node: Node) -> None:
    record = node.claim(GPU, boot_id="boot-0", steps=(SETTING, DAEMON))
    node.cleanup.vacate(record, make.record(GPU, uid="uid-2"), deadline=DEADLINE)
    assert node.done == [DAEMON]


def test_after_a_reboot_a_claim_lapses_and_its_record_stays(node: Node) -> None:
    record = node.claim(GPU, boot_id="boot-0", steps=(DAEMON,), pending=(owes(ELSEWHERE),))
    node.refusals["MPS"] = DeviceError("it hangs")
    assert not node.cleanup.lapse(record, deadline=DEADLINE)
    assert node.record() == record
    node.refusals.clear()
    assert node.cleanup.lapse(record, deadline=DEADLINE)
    assert node.record() == replace(record, pending=())
    assert node.marks() == [GPU.uuid]
    assert node.done.count("spec") == 2
