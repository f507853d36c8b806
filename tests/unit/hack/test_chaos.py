"""Every rule of a campaign can be broken: no campaign would show that it checks nothing."""

from dataclasses import replace
from typing import Any

import pytest
from chaos.holds import ClaimSeen, ContainerSeen, Look, ProcessSeen, Wanted, judge, judge_containers
from testbed.machine import GpuSettings

A, B, C = "GPU-a", "GPU-b", "GPU-c"
USUAL = GpuSettings(compute_mode="Default", time_slice="Default", mig_mode="Disabled")
PROCESS = ProcessSeen(same_life=True, resident=70 << 20, descriptors=20)


WANTED = Wanted(
    workloads=("mps-1", "mig-2", "share-3", "share-pair-4"),
    division="mps",
    offers={
        "mps": {A: ("one",), B: ("two",), C: ("three", "share")},
        "turns": {A: ("one",), B: ("two",), C: ("three", "turn")},
    },
    settings={A: USUAL, B: USUAL, C: USUAL},
    processes={"driver": PROCESS},
)
UNDER_MPS = replace(USUAL, compute_mode="Exclusive_Process")
DIVIDED = replace(USUAL, mig_mode="Enabled")
GOOD = Look(
    pods=dict.fromkeys(
        ("mps-1-a", "mps-1-b", "mig-2-a", "share-3-a", "share-pair-4-a", "share-pair-4-b"), ""
    ),
    claims=(
        ClaimSeen(uid="uid-1", workload="mps-1", gpus=(A,)),
        ClaimSeen(uid="uid-2", workload="mig-2", parents=(B, B, B)),
        ClaimSeen(uid="uid-3", workload="share-3", shares={C: "mps"}, devices=("first",)),
        ClaimSeen(uid="uid-4", workload="share-pair-4", shares={C: "mps"}, devices=("last",)),
    ),
    records=tuple(f"uid-{number}.json" for number in range(1, 5)),
    marks=(f"{A}/uid-1", f"{B}/uid-2", f"{C}/uid-3", f"{C}/uid-4"),
    specs=tuple(f"k8s.gpu.nvidia.com-claim_uid-{number}.json" for number in range(1, 5)),
    domains=("desired/uid-1.json", "domains/uid-1", f"members/shared_{C}"),
    members=(f"shared_{C}/uid-3", f"shared_{C}/uid-4"),
    daemons={100: "uid-1", 200: f"shared_{C}"},
    grouped=(100, 200),
    mounts=("/mps/domains/uid-1/shm",),
    migs=(B, B, B),
    settings={A: UNDER_MPS, B: DIVIDED, C: UNDER_MPS},
    devices=("two", "one", "three", "share"),
    processes={"driver": PROCESS},
)


def test_nothing_is_wrong_with_a_node_as_it_should_be() -> None:
    assert judge(WANTED, GOOD) == []


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"pods": GOOD.pods | {"mig-2-a": "Pending"}}, "mig-2-a does not run: Pending"),
        ({"pods": {"mps-1-a": "", "mps-1-b": ""}}, "pod mig-2-a is missing"),
        ({"pods": GOOD.pods | {"old-7-a": ""}}, "pod old-7-a is still there"),
        ({"claims": (*GOOD.claims, ClaimSeen(uid="x", workload="whole-9"))}, "a claim of whole-9"),
        ({"records": GOOD.records[:1]}, "records missing: uid-2.json, uid-3.json"),
        ({"records": (*GOOD.records, "old.json")}, "records too many: old.json"),
        ({"marks": GOOD.marks[:1]}, f"marks missing: {B}/uid-2, {C}/uid-3"),
        ({"marks": (*GOOD.marks, f"{A}/old")}, f"marks too many: {A}/old"),
        ({"specs": GOOD.specs[:1]}, "CDI specs missing: uid-2, uid-3"),
        ({"specs": (*GOOD.specs, "old.json")}, "CDI specs too many: old.json"),
        ({"domains": ("domains/old",)}, "left over of MPS: domains/old"),
        ({"mounts": ("/mps/domains/old/shm",)}, "left over of MPS: /mps/domains/old/shm"),
        ({"daemons": {}, "grouped": ()}, f"['shared_{C}', 'uid-1'] are to have one"),
        ({"daemons": GOOD.daemons | {101: "uid-1"}}, f"serve ['shared_{C}', 'uid-1', 'uid-1']"),
        ({"daemons": {100: "uid-1", 101: "old"}}, "serve ['old', 'uid-1']"),
        ({"members": GOOD.members[:1]}, f"members of shared MPS domains missing: shared_{C}/uid-4"),
        ({"members": (*GOOD.members, f"shared_{C}/old")}, f"domains too many: shared_{C}/old"),
        ({"domains": (*GOOD.domains, f"members/shared_{A}")}, f"members/shared_{A}"),
        ({"grouped": (100, 666)}, "without being a daemon: [666]"),
        ({"migs": (B, B)}, "MIG devices by GPU are {'GPU-b': 2}"),
        ({"settings": {A: USUAL, B: DIVIDED}}, f"GPU {A} is set to"),
        ({"settings": {C: USUAL}}, f"GPU {C} is set to"),
        ({"settings": {A: UNDER_MPS, B: USUAL}}, f"GPU {B} is set to"),
        ({"devices": ("one", "three")}, "devices in the slices missing: share, two"),
        ({"devices": (*GOOD.devices, "four")}, "devices in the slices too many: four"),
        ({"processes": {"driver": replace(PROCESS, same_life=False)}}, "ended by itself"),
        ({"processes": {"driver": replace(PROCESS, resident=1 << 30)}}, "1024 MiB, 70 at first"),
        ({"processes": {"driver": replace(PROCESS, descriptors=900)}}, "900 open files, 20 at"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_does_not_hold_is_said(change: dict[str, Any], words: str) -> None:
    assert words in "\n".join(judge(WANTED, replace(GOOD, **change)))


def test_a_share_that_two_claims_have_is_said() -> None:
    twice = tuple(
        replace(claim, devices=("share",)) if claim.shares else claim for claim in GOOD.claims
    )
    assert judge(WANTED, replace(GOOD, claims=twice)) == ["share is given to 2 claims"]


def test_a_gpu_stays_divided_as_its_tenants_have_it_and_others_as_the_config_says() -> None:
    assert judge(replace(WANTED, division="turns"), GOOD) == []
    free = replace(WANTED, division="turns", workloads=("mps-1", "mig-2"))
    assert "devices in the slices missing: turn" in judge(
        free, replace(GOOD, claims=GOOD.claims[:2])
    )


def test_tenants_of_a_gpu_may_see_the_same_and_others_may_not() -> None:
    seen = {name: ContainerSeen(gpus=(A,)) for name in ("share-1-a", "share-2-a", "whole-3-a")}
    assert judge_containers({"share-1": 0, "share-2": 0}, seen) == []
    assert judge_containers({"share-1": 0, "whole-3": 0}, seen) == [
        f"{A} is given to both share-1 and whole-3"
    ]


@pytest.mark.parametrize(
    ("seen", "words"),
    [
        ({"whole-1-a": ContainerSeen(gpus=())}, "whole-1-a: sees GPUs ()"),
        ({"whole-1-a": ContainerSeen(gpus=(A,), migs=("1",))}, "MIG devices ('1',)"),
        ({"whole-1-a": ContainerSeen(gpus=(A,), restarts=1)}, "was restarted 1 times"),
        ({"whole-1-a": ContainerSeen(gpus=(B,))}, f"{B} is given to both whole-1 and whole-2"),
    ],
)
def test_what_a_container_should_not_see_is_said(
    seen: dict[str, ContainerSeen], words: str
) -> None:
    other = {"whole-2-a": ContainerSeen(gpus=(B,))}
    assert words in "\n".join(judge_containers({"whole-1": 0, "whole-2": 0}, seen | other))


@pytest.mark.parametrize(
    ("greedy", "modest", "words"),
    [
        (ContainerSeen(gpus=(A,), id="new", restarts=1), ContainerSeen(gpus=(A,)), ""),
        (
            ContainerSeen(gpus=(A,), id="old"),
            ContainerSeen(gpus=(A,)),
            "share-pair-1-a: has more memory than its limit, and was not ended",
        ),
        (
            ContainerSeen(gpus=(A,), id="new", restarts=2),
            ContainerSeen(gpus=(A,)),
            "share-pair-1-a: its container was restarted 2 times",
        ),
        (
            ContainerSeen(gpus=(A,), id="new", restarts=1),
            ContainerSeen(gpus=(A,), restarts=1),
            "share-pair-1-b: its container was restarted 1 times",
        ),
    ],
)
def test_who_has_more_memory_than_the_limit_is_ended_once_and_nobody_else(
    greedy: ContainerSeen, modest: ContainerSeen, words: str
) -> None:
    seen = {"share-pair-1-a": greedy, "share-pair-1-b": modest}
    told = {"greedy": {"share-pair-1-a": "old"}, "ended": {"share-pair-1-a": 1}}
    assert judge_containers({"share-pair-1": 0}, seen, **told) == [words][: bool(words)]
