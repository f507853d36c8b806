"""The writes that bring slices about, and what they do to the generation."""

import copy
from collections.abc import Sequence
from typing import Any

from dra_driver.slices.pool import DesiredPool, build_slices
from dra_driver.slices.publish.writes import (
    Create,
    Delete,
    Settled,
    Update,
    Write,
    owner_reference,
    writes_for,
)

OWNER = owner_reference(name="n1", uid="node-uid")
TAINT = {"key": "gpu.nvidia.com/xid", "value": "79", "effect": "NoSchedule"}

Slice = dict[str, Any]


def devices(count: int, **more: object) -> list[dict[str, object]]:
    return [{"name": f"gpu-{minor}", **more} for minor in range(count)]


def pool(wanted: Sequence[dict[str, object]]) -> DesiredPool:
    return build_slices(wanted, driver="gpu.nvidia.com", node_name="n1")


def served(wanted: Sequence[dict[str, object]], generation: int = 1) -> list[Slice]:
    """Slices as the API server has them once these devices are published."""
    desired = pool(wanted)
    return [
        {
            "metadata": {
                "name": desired.slice_name(index),
                "uid": f"uid-{index}",
                "resourceVersion": str(100 + index),
                "ownerReferences": [OWNER],
            },
            "spec": copy.deepcopy(desired.spec(index, generation=generation)),
        }
        for index in range(len(desired.contents))
    ]


def generations(writes: Sequence[Write]) -> set[int]:
    return {
        write.body["spec"]["pool"]["generation"]  # type: ignore[index]
        for write in writes
        if not isinstance(write, Delete)
    }


def kinds(writes: Sequence[Write]) -> list[tuple[type, str]]:
    return [(type(write), write.name) for write in writes]


def name(index: int) -> str:
    return f"{index:05x}-gpu.nvidia.com-n1"


def test_a_new_pool_begins_with_generation_one() -> None:
    writes = writes_for(pool(devices(65)), [], owner=OWNER)
    assert kinds(writes) == [(Create, name(0)), (Create, name(1))]
    assert generations(writes) == {1}
    assert isinstance(writes[0], Create)
    assert writes[0].body["metadata"] == {"name": name(0), "ownerReferences": [OWNER]}


def test_two_changed_slices_raise_the_generation_and_write_every_slice() -> None:
    existing = served(devices(130), generation=7)
    for entry in existing[:2]:
        entry["spec"]["devices"][0]["name"] = "other"
    writes = writes_for(pool(devices(130)), existing, owner=OWNER)
    assert kinds(writes) == [(Update, name(0)), (Update, name(1)), (Update, name(2))]
    assert generations(writes) == {8}


def test_a_slice_is_known_by_its_place_in_hexadecimal() -> None:
    many = devices(17 * 64)
    assert served(many)[-1]["metadata"]["name"] == name(0x10)
    assert writes_for(pool(many), served(many), owner=OWNER) == ()


def test_a_slice_left_behind_at_an_older_generation_is_the_only_one_written() -> None:
    existing = [served(devices(65), generation=8)[0], served(devices(65), generation=7)[1]]
    writes = writes_for(pool(devices(65)), existing, owner=OWNER)
    assert kinds(writes) == [(Update, name(1))]
    assert generations(writes) == {8}


def test_slices_of_another_pool_and_with_odd_names_are_deleted() -> None:
    existing = served(devices(1))
    for odd in ("n1-gpu.nvidia.com-x7k2p", "0000-short", "00007-gpu.nvidia.com-n1", "0000g-x"):
        other = copy.deepcopy(existing[0])
        other["metadata"]["name"] = odd
        existing.append(other)
    elsewhere = copy.deepcopy(existing[0])
    elsewhere["metadata"]["name"] = "00000-other"
    elsewhere["spec"]["pool"]["name"] = "n1/old"
    writes = writes_for(pool(devices(1)), [*existing, elsewhere], owner=OWNER)
    assert {type(write) for write in writes} == {Delete}
    assert len(writes) == 5


def test_the_newer_of_two_slices_stays_else_our_own() -> None:
    ours, theirs = served(devices(1)), served(devices(1))
    theirs[0]["metadata"]["name"] = "00000-gpu.nvidia.com-n1-zzzzz"
    writes = writes_for(pool(devices(1)), [*theirs, *ours], owner=OWNER)
    assert kinds(writes) == [(Delete, "00000-gpu.nvidia.com-n1-zzzzz")]
    theirs[0]["spec"]["pool"]["generation"] = 2
    writes = writes_for(pool(devices(1)), [*theirs, *ours], owner=OWNER)
    assert kinds(writes) == [(Delete, name(0))]


def test_the_order_of_devices_matters() -> None:
    writes = writes_for(pool(devices(2)), served(devices(2)[::-1]), owner=OWNER)
    assert kinds(writes) == [(Update, name(0))]


def test_an_update_is_of_what_was_seen_and_keeps_what_others_wrote() -> None:
    existing = served(devices(1))
    meta = existing[0]["metadata"]
    meta |= {"labels": {"theirs": "yes"}, "managedFields": [{}], "resourceVersion": "7"}
    theirs = {"apiVersion": "v1", "kind": "ConfigMap", "name": "c", "uid": "u"}
    former = OWNER | {"uid": "of-a-node-before"}
    no_node = theirs | {"controller": True}
    meta["ownerReferences"] += [theirs, former | {"controller": False}, no_node]
    (write,) = writes_for(pool(devices(2)), existing, owner=OWNER)
    assert isinstance(write, Update)
    assert (write.body["apiVersion"], write.body["kind"]) == ("resource.k8s.io/v1", "ResourceSlice")
    assert write.body["metadata"] == {
        "name": name(0),
        "uid": "uid-0",
        "resourceVersion": "7",
        "labels": {"theirs": "yes"},
        "ownerReferences": [OWNER, theirs],
    }


def test_slices_of_a_node_that_was_made_again_get_its_uid_and_keep_their_generation() -> None:
    new = owner_reference(name="n1", uid="another")
    writes = writes_for(pool(devices(65)), served(devices(65), generation=4), owner=new)
    assert kinds(writes) == [(Update, name(0)), (Update, name(1))]
    assert generations(writes) == {4}
    assert isinstance(writes[0], Update)
    assert writes[0].body["metadata"]["ownerReferences"] == [new]  # type: ignore[index]


def test_a_slice_not_stored_as_requested_is_written_once() -> None:
    wanted = devices(1, taints=[TAINT])
    existing = served(devices(1))
    asked = pool(wanted).spec(0, generation=1)
    settled = {name(0): Settled(asked=asked, answered=copy.deepcopy(existing[0]["spec"]))}
    assert writes_for(pool(wanted), existing, owner=OWNER, settled=settled) == ()
    existing[0]["spec"]["devices"][0]["name"] = "edited"
    assert len(writes_for(pool(wanted), existing, owner=OWNER, settled=settled)) == 1
    assert len(writes_for(pool(devices(2)), served(devices(1)), owner=OWNER, settled=settled)) == 1


def test_slices_that_make_no_sense_are_replaced() -> None:
    broken: list[Slice] = [{}, {"metadata": None, "spec": None}, {"metadata": {"name": "x"}}]
    writes = writes_for(pool(devices(1)), broken, owner=OWNER)
    assert [type(write) for write in writes] == [Delete, Delete, Delete, Create]
