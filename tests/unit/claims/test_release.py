"""What is taken back of a claim, in which order, and what of it stays to be done later."""

import time
from collections.abc import Iterator
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
from dra_driver.claims.prepare.release import Release
from dra_driver.claims.prepare.steps import NO_WAIT, Sharing, Steps
from dra_driver.claims.state.ledger import Ledger
from dra_driver.claims.state.locks import NodeLocks
from dra_driver.devices.device import Device
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
    """Records on disk; what carries out steps does as told, and is noted."""

    def __init__(self, folder: Path) -> None:
        self.ledger = Ledger(folder, boot_id="boot-1", version="1.2.3")
        self.refusals: dict[Any, DriverError] = {}
        self.done: list[object] = []
        self.failed: list[str] = []
        self.on_end: Any = lambda: None
        node: Any = self
        sharing = Sharing(
            planners={},
            time_slices=node,
            domains=node,
            nvidia_mps=node,
            shares=node,
            passthrough=node,
        )
        self.locks = NodeLocks(folder / "locks", lambda: 0.0, on_other=self.ledger.reread)
        self.of = Release(
            self.ledger,
            self.locks,
            node,
            Steps(node, sharing),
            lambda: 0.0,
            on_failed=self.failed.append,
        )

    def claim(self, *gpus: Any, uid: str = "uid-1", **facts: Any) -> ClaimRecord:
        record = make.record(*gpus, uid=uid, **facts)
        self.ledger.write(record)
        return record

    def record(self, uid: str = "uid-1") -> ClaimRecord | None:
        return self.ledger.peek(ClaimUid(uid))

    def touched(self) -> list[str]:
        """The GPUs that records are about."""
        return [one.uuid for one in (GPU, OTHER) if self.ledger.is_about(one.uuid)]

    # Specs, and what carries out steps

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
def node(tmp_path: Path) -> Iterator[Node]:
    node = Node(tmp_path)
    yield node
    node.locks.close()


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
    node.of.release(record, DEADLINE)
    assert states == [RecordState.RELEASED] * 2
    assert all(("ended", one, DEADLINE) in node.done[:2] for one in (DAEMON, ELSEWHERE))


def test_where_a_release_cannot_be_noted_nothing_is_undone(node: Node, tmp_path: Path) -> None:
    record = node.claim(GPU, steps=(DAEMON,), state=RecordState.PREPARING)
    path = tmp_path / "claims" / "uid-1.json"
    path.unlink()
    path.symlink_to(path)
    with pytest.raises(StateError, match=f"cannot change {path}"):
        node.of.release(record, DEADLINE)
    assert node.done == []


def test_steps_are_undone_in_reverse_and_sharing_before_devices(node: Node) -> None:
    record = node.claim(
        GPU, steps=(MODE, MADE, SETTING, DAEMON), pending=(owes(OLD_SETTING), owes(OLD_MADE))
    )
    assert node.of.release(record, DEADLINE) == ()
    assert node.done[1:] == [
        DAEMON, DAEMON, SETTING, OLD_SETTING, MADE, MODE, OLD_MADE, "spec",
    ]  # fmt: skip
    assert (node.record(), node.touched(), node.failed) == (None, [], [])


def test_only_failed_undos_stay_of_a_claim(node: Node) -> None:
    node.refusals["MPS"] = DeviceError("it hangs")
    record = node.claim(GPU, OTHER, steps=(MADE, OTHER_MODE, SETTING, DAEMON))
    before = time.time()
    left = node.of.release(record, DEADLINE)
    assert [(one.of, one.reason, one.may_pass) for one in left] == [
        (MADE, "it hangs", False),  # nothing is destroyed below its users
        (DAEMON, "it hangs", False),
    ]
    assert OTHER_MODE in node.done
    found = node.record()
    assert found is not None
    assert (found.state, found.steps) == (RecordState.RELEASED, ())
    assert found.pending == left
    assert all(before <= (one.since or 0) <= time.time() for one in left)
    assert node.failed == ["MPS"]


def test_a_setting_that_stays_keeps_no_device_from_being_destroyed(node: Node) -> None:
    node.refusals["TimeSlicing"] = TransientError("it is busy")
    record = node.claim(GPU, steps=(MADE, SETTING))
    (left,) = node.of.release(record, DEADLINE)
    assert (left.of, left.may_pass) == (SETTING, True)
    assert MADE in node.done


def test_pending_cleanup_keeps_its_time_and_none_is_in_the_future(node: Node) -> None:
    node.refusals |= {"TimeSlicing": DeviceError("no"), "MPS": DeviceError("no")}
    tomorrow = time.time() + 86400
    record = node.claim(
        GPU,
        state=RecordState.RELEASED,
        pending=(owes(SETTING, since=5.0), owes(ELSEWHERE, since=tomorrow)),
    )
    left = node.of.release(record, DEADLINE)
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
    left = node.of.release(record, DEADLINE)
    assert [one for one in node.done if one in (MADE, SETTING, OLD_SETTING, MODE)] == []
    assert [one.of for one in left] == [ELSEWHERE, DAEMON]
    found = node.record()
    assert found is not None
    assert found.boot_id == "boot-1"


# Later


def test_pending_cleanup_is_settled_on_the_requested_gpus(node: Node) -> None:
    record = node.claim(GPU, pending=(owes(ELSEWHERE, since=5.0), owes(MADE, since=6.0)))
    assert node.touched() == [GPU.uuid, OTHER.uuid]
    left = node.of.settle(record, DEADLINE, gpus=[OTHER.uuid])
    assert [one.of for one in left] == [MADE]
    found = node.record()
    assert found is not None
    assert found.pending == left
    assert node.touched() == [GPU.uuid]
    node.refusals[MADE.name] = DeviceError("refused again")
    assert [one.since for one in node.of.settle(found, DEADLINE)] == [6.0]
    node.refusals.clear()
    assert node.of.settle(found, DEADLINE) == ()
    assert node.done == [ELSEWHERE, MADE, MADE]
    assert node.record() == replace(record, pending=())
    assert node.touched() == [GPU.uuid], "the claim still has it"


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
        node.of.check_free(node.of.settle(record, DEADLINE), draft)
        return
    with pytest.raises(
        TransientError,
        match=rf"{GPU.uuid} cannot be used yet: {of.name} of an earlier .* ended \(it hangs\)",
    ):
        node.of.check_free(node.of.settle(record, DEADLINE), draft)


def test_an_old_boots_record_is_undone_before_the_gpu_is_used(node: Node) -> None:
    record = node.claim(GPU, boot_id="boot-0", steps=(SETTING, DAEMON))
    assert node.of.settle(record, DEADLINE, gpus=[GPU.uuid]) == ()
    assert node.done == ["spec", DAEMON]


def test_after_a_reboot_a_claim_lapses_and_its_record_stays(node: Node) -> None:
    record = node.claim(GPU, boot_id="boot-0", steps=(DAEMON,), pending=(owes(ELSEWHERE),))
    node.refusals["MPS"] = DeviceError("it hangs")
    assert node.of.settle(record, DEADLINE) != ()
    assert node.record() == record
    node.refusals.clear()
    assert node.of.settle(record, DEADLINE) == ()
    assert node.record() == replace(record, pending=())
    assert node.touched() == [GPU.uuid]
    assert node.done.count("spec") == 2
