"""Who holds what a claim wants, and who has left something there."""

import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

import make
from dra_driver.claims.model.claim import ClaimRef, ClaimUid
from dra_driver.claims.model.record import (
    ClaimRecord,
    ClaimStep,
    DeviceRecord,
    MakeMigDevices,
    PendingCleanup,
    RecordState,
    TurnMigModeOff,
    TurnMigModeOn,
)
from dra_driver.claims.state.holdings import Neighbours, neighbours, owed, tenants
from dra_driver.claims.state.ledger import Ledger
from dra_driver.claims.state.locks import NodeLocks
from dra_driver.devices.device import Device, equal_shares
from dra_driver.devices.model import GpuUuid
from dra_driver.devices.shares import ConsumedShare, Division, ShareStrategy
from dra_driver.errors import ConflictError, StateError
from dra_driver.sharing.limiters import Limiter
from dra_driver.sharing.steps import NvidiaMpsDaemon, ShareLimits, TimeSlice, UseShares

CARD, OTHER_CARD, FOUND = make.gpu(0), make.gpu(1), make.mig_device(0, start=0)
GPU, OTHER, MIG = make.device(CARD), make.device(OTHER_CARD), make.device(FOUND)
MADE = MakeMigDevices(devices=(Device(base=MIG.place),), claim=ClaimUid("uid"))
MADE_BESIDE = replace(MADE, devices=(Device(base=make.place(make.mig_device(0, start=1))),))
MODE_ON = TurnMigModeOn(devices=MADE.devices, claim=MADE.claim)
MODE_OFF = TurnMigModeOff(devices=(GPU,), restore=True)
SLOT = MADE.places[0].slot
DIVISION = Division(count=2, strategy=ShareStrategy.MPS, served_as="nvidia.com/gpu", combines=True)
ME = ClaimUid("me")


class Node:
    """Records on disk, as prepared claims have them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.ledger = Ledger(folder, boot_id="boot-1", version="1.2.3")

    def claim(
        self, uid: str, *devices: Device, admin_access: bool = False, **facts: Any
    ) -> ClaimRecord:
        """A claim's record, which is on disk."""
        record = self.wanted(uid, *devices, admin_access=admin_access, **facts)
        self.ledger.write(record)
        return record

    def wanted(
        self, uid: str = ME, *devices: Device, admin_access: bool = False, **facts: Any
    ) -> ClaimRecord:
        entries = tuple(
            DeviceRecord(
                name=f"device-{number}",
                device=one,
                pool="node-1",
                request_names=("gpu",),
                cdi_device_ids=(),
                admin_access=admin_access,
            )
            for number, one in enumerate(devices)
        )
        ref = ClaimRef(uid=ClaimUid(uid), namespace="default", name=uid)
        return make.record(ref=ref, devices=entries, **facts)

    def of_newer_version(self, uid: str) -> None:
        path = self.folder / "claims" / f"{uid}.json"
        path.write_bytes(path.read_bytes().replace(b'"version":3', b'"version":4'))

    def unreadable(self, uid: str) -> None:
        path = self.folder / "claims" / f"{uid}.json"
        path.unlink(missing_ok=True)
        path.mkdir()


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def share(of: Device, index: int) -> Device:
    return equal_shares(of.base, DIVISION)[index]


def consumed(of: Device, share_id: str, strategy: ShareStrategy) -> Device:
    return replace(of, share=ConsumedShare(share_id=share_id, strategy=strategy))


def daemon(*devices: Device) -> NvidiaMpsDaemon:
    return NvidiaMpsDaemon(devices=devices, daemon="d", folder="")


def owes(of: ClaimStep) -> PendingCleanup:
    return PendingCleanup(of=of, reason="refused")


# Who is there


def test_a_claim_that_holds_what_another_wants_is_its_rival(node: Node) -> None:
    holder = node.claim("holder", GPU)
    found = neighbours(node.ledger, node.wanted(ME, OTHER, GPU))
    assert found.rival is not None
    assert (found.rival.holder, found.rival.device.name) == (holder, "device-1")
    assert found.former == ()


@pytest.mark.parametrize(
    ("held", "wanted"),
    [(GPU, MIG), (share(GPU, 0), MIG), (MIG, GPU), (MIG, share(GPU, 0))],
)
def test_a_mig_device_is_not_given_below_a_whole_gpu_or_its_share_and_neither_is_that_below_it(
    node: Node, held: Device, wanted: Device
) -> None:
    """As when an admin switches the MIG mode of a GPU that a claim has some of."""
    holder = node.claim("holder", held)
    rival = neighbours(node.ledger, node.wanted(ME, wanted)).rival
    assert rival is not None
    assert rival.holder == holder


@pytest.mark.parametrize(
    ("boot_id", "state"), [("boot-0", RecordState.PREPARED), ("boot-1", RecordState.RELEASED)]
)
def test_released_and_earlier_claims_only_leave_something(
    node: Node, boot_id: str, state: RecordState
) -> None:
    former = node.claim("former", GPU, boot_id=boot_id, state=state)
    assert not node.ledger.holds(former)
    assert neighbours(node.ledger, node.wanted(ME, GPU)) == Neighbours(former=(former.ref.uid,))
    assert not node.ledger.is_prepared(former)


def test_a_claim_that_is_being_prepared_is_a_rival_and_not_prepared(node: Node) -> None:
    holder = node.claim("holder", GPU, state=RecordState.PREPARING)
    assert neighbours(node.ledger, node.wanted(ME, GPU)).rival is not None
    assert not node.ledger.is_prepared(holder)


def test_neighbours_and_admin_access_are_not_rivals(node: Node) -> None:
    node.claim("beside", share(GPU, 0))
    node.claim("admin", GPU, admin_access=True)
    found = partial(neighbours, node.ledger)
    assert found(node.wanted(ME, share(GPU, 1))) == Neighbours()
    assert found(node.wanted(ME, GPU, admin_access=True)) == Neighbours()
    assert found(node.wanted(ME, OTHER)) == Neighbours()
    assert found(node.wanted("beside", GPU)) == Neighbours(), "its own record is no neighbour's"
    assert found(node.wanted(ME, share(GPU, 0))).rival is not None


def test_old_pending_cleanup_is_reported(node: Node) -> None:
    node.claim("debtor", share(GPU, 0), pending=(owes(daemon(GPU)),))
    found = neighbours(node.ledger, node.wanted(ME, share(GPU, 1)))
    assert found == Neighbours(former=(ClaimUid("debtor"),))


@pytest.mark.parametrize("whose", [ME, "another"])
def test_where_a_record_is_damaged_something_may_be_set_but_not_where_there_is_none(
    node: Node, whose: str
) -> None:
    def lost() -> frozenset[GpuUuid]:
        return frozenset(node.ledger.lost_on((CARD.uuid, OTHER_CARD.uuid)))

    record = node.claim(whose, GPU)
    path = node.folder / "claims" / f"{whose}.json"
    sound = path.read_bytes()
    for content, is_lost in ((sound[:-9], True), (b"", False)):
        path.write_bytes(content)
        assert lost() == frozenset([CARD.uuid] * is_lost)
    path.unlink()  # killed before it was written, or after it was deleted
    assert lost() == frozenset()
    path.write_bytes(sound[:-9])
    assert node.ledger.read(record.ref.uid) is None
    assert not path.exists(), "it is in quarantine"
    assert lost() == {CARD.uuid}
    if whose == ME:
        node.ledger.write(record)
        assert lost() == frozenset(), "it is prepared again"


def test_a_gpu_of_a_claim_by_a_newer_driver_is_held(node: Node) -> None:
    node.claim("newer", GPU)
    node.of_newer_version("newer")
    with pytest.raises(
        ConflictError, match=f"{CARD.uuid} is held by another claim: a newer version of"
    ):
        neighbours(node.ledger, node.wanted(ME, GPU))
    assert node.ledger.holds_any([CARD.uuid], [GPU], but=ME)
    assert not node.ledger.holds_any([OTHER_CARD.uuid], [GPU], but=ME)
    assert not node.ledger.holds_any([CARD.uuid], [GPU], but=ClaimUid("newer"))
    node.claim("older", GPU)
    node.claim("a-third", GPU)
    found = {record.ref.uid for record in node.ledger.users_of(CARD.uuid)}
    assert found == {"older", "a-third"}, "and hides no other"


def test_only_overlapping_devices_are_held(node: Node) -> None:
    node.claim("mig", MIG)
    held = node.ledger.holds_any
    beside = make.device(make.mig_device(0, start=1))
    assert held([OTHER_CARD.uuid, CARD.uuid], [GPU], but=ME)
    assert not held([CARD.uuid], [beside], but=ME)
    assert not held([CARD.uuid], [GPU], but=ClaimUid("mig"))


@pytest.mark.parametrize(
    ("wanted", "holder", "expected"),
    [
        (consumed(GPU, "a", ShareStrategy.MPS), consumed(GPU, "b", ShareStrategy.MPS), None),
        (
            consumed(GPU, "a", ShareStrategy.MPS),
            consumed(GPU, "b", ShareStrategy.TIME_SLICING),
            ShareStrategy.TIME_SLICING,
        ),
        (GPU, consumed(GPU, "b", ShareStrategy.TIME_SLICING), None),
        (consumed(GPU, "a", ShareStrategy.MPS), share(GPU, 0), None),
    ],
)
def test_a_rival_that_only_shares_in_another_way_says_in_which(
    node: Node, wanted: Device, holder: Device, expected: ShareStrategy | None
) -> None:
    # A device of another GPU beside it says nothing of this one.
    node.claim("holder", consumed(OTHER, "c", ShareStrategy.TIME_SLICING), holder)
    rival = neighbours(node.ledger, node.wanted(ME, wanted)).rival
    assert (rival.other_strategy if rival else None) == expected


# What they have


def test_sharing_that_was_not_undone_is_left_to_the_next_claim(node: Node) -> None:
    mine, theirs, gone = daemon(GPU), daemon(GPU, OTHER), TimeSlice(devices=(GPU,))
    node.claim("debtor", GPU, pending=(owes(theirs), owes(MODE_OFF)))
    node.claim("of-another-boot", GPU, boot_id="boot-0", pending=(owes(gone),))
    node.claim("elsewhere", OTHER, pending=(owes(daemon(OTHER)),))
    assert owed(node.ledger, node.wanted(ME, GPU, pending=(owes(mine),))) == (mine, theirs)
    written = node.claim(ME, GPU, pending=(owes(mine),))
    assert owed(node.ledger, written) == (mine, theirs)


def test_holders_have_a_gpu_now_and_users_also_since_before_a_reboot(node: Node) -> None:
    now = node.claim("now", GPU)
    before = node.claim("before", GPU, boot_id="boot-0")
    node.claim("released", GPU, state=RecordState.RELEASED)
    assert list(node.ledger.holders_of(CARD.uuid)) == [now]
    assert list(node.ledger.users_of(CARD.uuid)) == [before, now]
    assert list(node.ledger.users_of(OTHER_CARD.uuid)) == []


def test_records_show_what_was_made_and_for_which_claim(node: Node) -> None:
    node.claim("beside", share(MIG, 1))
    node.claim("before", MIG, steps=(MADE,), boot_id="boot-0")
    node.claim("mode", GPU, steps=(MODE_OFF,))
    assert node.ledger.made() == {}
    node.claim("other-place", GPU, steps=(MADE_BESIDE,))
    node.claim("one", share(MIG, 0), steps=(MODE_ON, MADE))
    node.claim("left", share(MIG, 0), pending=(owes(MADE),), state=RecordState.RELEASED)
    made = {SLOT: {"one", "left"}, MADE_BESIDE.places[0].slot: {"other-place"}}
    assert node.ledger.made() == node.ledger.made(CARD.uuid) == made
    assert node.ledger.made(OTHER_CARD.uuid) == {}
    assert node.ledger.turned_on() == node.ledger.turned_on(CARD.uuid) == {CARD.uuid: {"one"}}


def limited(pod: str, of: Device, index: int = 0) -> UseShares:
    return UseShares(
        devices=(share(of, index),),
        strategy=ShareStrategy.MPS,
        limits=(ShareLimits(taken=1, count=2),),
        limited_by=Limiter.CONTROL_GROUPS,
        memory_mib=1024,
        pod=pod,
    )


def test_memory_of_a_gpu_and_of_a_pod_is_summed_up_over_claims_that_hold_it(node: Node) -> None:
    node.claim("one", share(GPU, 0), steps=(limited("pod-1", GPU), daemon(GPU)))
    node.claim("two", share(GPU, 1), share(OTHER, 0), steps=(limited("pod-2", OTHER),))
    node.claim(
        "released", share(GPU, 1), steps=(limited("pod-1", GPU, 1),), state=RecordState.RELEASED
    )
    assert tenants(node.ledger, CARD.uuid) == [limited("pod-1", GPU)]
    assert tenants(node.ledger, OTHER_CARD.uuid) == [limited("pod-2", OTHER)]


# Whether anything is there


def test_a_claim_holds_its_devices_until_its_record_changes(node: Node) -> None:
    record = node.claim("claim", GPU)
    assert node.ledger.still_holds(record)
    assert not node.ledger.still_holds(replace(record, boot_id="boot-0"))
    node.claim("claim", GPU)
    assert not node.ledger.still_holds(record), "it says the same, and was prepared again"
    now = node.ledger.peek(record.ref.uid)
    assert now is not None
    node.unreadable("claim")
    assert not node.ledger.still_holds(now)


def test_whether_claims_are_there_is_not_known_while_the_only_record_cannot_be_read(
    node: Node,
) -> None:
    assert not node.ledger.anything_held()
    node.claim("released", GPU, state=RecordState.RELEASED)
    assert not node.ledger.anything_held()
    node.unreadable("unreadable")
    with pytest.raises(StateError):
        node.ledger.anything_held()
    node.claim("held", GPU)
    assert node.ledger.anything_held()


# Two drivers


def test_records_of_another_process_are_read_after_the_lock(node: Node) -> None:
    other = Node(node.folder)
    mine = NodeLocks(node.folder / "locks", time.monotonic, on_other=node.ledger.reread)
    its = NodeLocks(node.folder / "locks", time.monotonic, on_other=other.ledger.reread)
    for write, read, locks in ((node, other, its), (other, node, mine), (node, other, its)):
        with (mine if locks is its else its).gpus([CARD.uuid], 0.0):
            for uid in ("claim", "released", "gone"):
                write.claim(uid, GPU)
            write.ledger.delete(ClaimUid("gone"))
        with locks.gpus([CARD.uuid], 0.0):
            found = [record.ref.uid for record in read.ledger.holders_of(CARD.uuid)]
            assert found == ["claim", "released"]
            read.ledger.release(ClaimUid("released"))
        assert len(write.ledger.holders_of(CARD.uuid)) == 1, "a release needs no lock to be seen"
        read.ledger.delete(ClaimUid("claim"))
        write.ledger.delete(ClaimUid("released"))
        assert not read.ledger.is_about(CARD.uuid)
        assert not write.ledger.is_about(CARD.uuid)
    mine.close()
    its.close()
