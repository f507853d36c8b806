"""Who has more memory than the limit is reported, or ended where an admin says so; nobody else."""

from typing import cast

import pytest
from msgspec.structs import replace

import make
from dra_driver.claims.report.claim_events import ClaimEvents
from dra_driver.devices.load import MigLoad
from dra_driver.errors import StateError
from dra_driver.kube.events import Regarding
from dra_driver.usage.model import Known, holdings, used
from dra_driver.usage.over_limit import KILLED, OVER, excesses, used_bytes
from dra_driver.usage.watch import BETWEEN_EVENTS, REPORT_SECONDS, tell
from worlds.tenants import CONTEXT, GPU, Tenants, container_id

LIMIT = 5000
MUCH = LIMIT + CONTEXT + 1


@pytest.fixture
def tenants() -> Tenants:
    return Tenants()


@pytest.mark.parametrize("by", ["share", "part", "mps"])
def test_a_container_above_the_limit_twice_is_ended_with_an_event(
    tenants: Tenants, by: str
) -> None:
    tenants.claim("greedy", LIMIT, "a", by=by)
    tenants.claim("modest", LIMIT, "b", by=by)
    tenants.run(7, "a", MUCH)
    tenants.run(8, "b", LIMIT)
    tenants.look()
    assert tenants.ended == []
    tenants.look()
    assert (tenants.ended, tenants.counted) == (["a/ctr"], ["ended"])
    ((reason, about, note),) = tenants.told
    assert (reason, about) == (KILLED, ["greedy", "a"])
    assert note == (
        "container ctr had 5511 MiB of gpu-0, and its limit is 5000 MiB; its processes were ended. "
        "Let the program use less memory, or ask for more of the GPU"
    )
    tenants.look(5)
    assert len(tenants.ended) == 1


def test_a_cuda_context_is_allowed_above_the_limit(tenants: Tenants) -> None:
    tenants.claim("one", LIMIT, "a")
    tenants.run(7, "a", LIMIT + CONTEXT)
    tenants.look(3)
    assert (tenants.ended, tenants.told) == ([], [])


def test_a_container_below_the_limit_once_starts_again(tenants: Tenants) -> None:
    tenants.claim("one", LIMIT, "a")
    for mib in (MUCH, 10, MUCH, 10, MUCH):
        tenants.run(7, "a", mib)
        tenants.look()
    assert tenants.ended == []


def test_a_container_that_came_since_the_first_look_is_not_ended_for_the_one_before(
    tenants: Tenants,
) -> None:
    tenants.claim("one", LIMIT, "a")
    tenants.run(7, "a", MUCH)
    tenants.look()
    del tenants.jobs[7]
    tenants.run(7, "a", MUCH, container="other")
    tenants.look()
    assert tenants.ended == []
    tenants.look()
    assert tenants.ended == ["a/other"]


def test_by_default_a_container_above_the_limit_is_only_reported() -> None:
    tenants = Tenants(action="report")
    tenants.claim("one", LIMIT, "a")
    tenants.run(7, "a", MUCH)
    tenants.look(4)
    assert (tenants.ended, tenants.counted) == ([], ["reported"])
    ((reason, about, note),) = tenants.told
    assert (reason, about) == (OVER, ["one", "a"])
    assert note.startswith("container ctr has 5511 MiB of gpu-0, and its limit is 5000 MiB; others")
    assert tenants.watch.check() == REPORT_SECONDS
    tenants.seconds += BETWEEN_EVENTS
    tenants.look()
    assert len(tenants.told) == 2


@pytest.mark.parametrize(
    ("node", "resource", "ended"), [("report", "end", True), ("end", "report", False)]
)
def test_the_share_config_overrides_the_setting_for_a_resource(
    node: str, resource: str, ended: bool
) -> None:
    tenants = Tenants(action=node, resources={"nvidia.com/gpu.slow": resource})
    tenants.claim("one", LIMIT, "a", resource="nvidia.com/gpu.slow")
    tenants.claim("all", None, "b")
    tenants.run(7, "a", MUCH)
    tenants.look(2)
    assert bool(tenants.ended) is ended
    assert tenants.watch.check() == (0.5 if ended else REPORT_SECONDS)


def test_a_party_is_ended_only_if_all_of_its_resources_say_so() -> None:
    tenants = Tenants(resources={"nvidia.com/slow": "report", "nvidia.com/fast": "end"})
    tenants.claim("one", LIMIT, "a", resource="nvidia.com/fast")
    tenants.claim("two", LIMIT, "a", resource="nvidia.com/slow")
    tenants.run(7, "a", 2 * MUCH)
    tenants.look(3)
    assert (tenants.ended, tenants.counted) == ([], ["reported"])
    assert tenants.watch.check() == 0.5  # a pod may have a claim of the fast ones alone


def test_a_party_with_an_unlimited_claim_has_no_limit(tenants: Tenants) -> None:
    tenants.claim("one", LIMIT, "a")
    tenants.claim("all", None, "a")
    tenants.run(7, "a", 3 * MUCH)
    tenants.look(3)
    assert (tenants.ended, tenants.told) == ([], [])


@pytest.mark.parametrize("is_one_claim", [True, False])
def test_admin_access_does_not_remove_a_shares_limit(tenants: Tenants, is_one_claim: bool) -> None:
    tenants.claim("one", LIMIT, "a")
    tenants.claim("seen", None, "a", by="seen")
    if is_one_claim:
        share, seen = tenants.records
        tenants.records[:] = [replace(share, devices=(*seen.devices, *share.devices))]
    tenants.run(7, "a", MUCH)
    known = Known(records=tuple(tenants.records))
    ((user,),) = (device.users for device in used(*tenants.seen(), known).devices)
    assert user.limit_bytes == LIMIT << 20
    tenants.look(2)
    assert tenants.ended == ["a/ctr"]
    assert "its limit is 5000 MiB" in tenants.told[0][2]


def test_a_failed_look_interrupts_a_row(tenants: Tenants, monkeypatch: pytest.MonkeyPatch) -> None:
    tenants.claim("one", LIMIT, "a")
    tenants.run(7, "a", MUCH)
    tenants.look()
    with monkeypatch.context() as patched:
        patched.setattr(tenants, "current", fails)
        with pytest.raises(StateError):
            tenants.look()
    tenants.look()
    assert tenants.ended == []
    tenants.look()
    assert tenants.ended == ["a/ctr"]


def fails() -> None:
    raise StateError("a record cannot be read")


def test_a_restarting_container_is_ended_again_with_one_event(tenants: Tenants) -> None:
    tenants.claim("one", LIMIT, "a")
    for child in range(7, 11):  # where the kernel cannot end a whole group
        tenants.run(child, "a", MUCH)
        tenants.look(2)
    assert tenants.counted == ["ended"] * 4
    assert [reason for reason, _, _ in tenants.told] == [KILLED]
    tenants.seconds += BETWEEN_EVENTS
    tenants.run(11, "a", MUCH)
    tenants.look(2)
    assert len(tenants.told) == 2


def test_an_ended_container_that_keeps_memory_is_reported(tenants: Tenants) -> None:
    tenants.claim("one", LIMIT, "a", "b")
    tenants.run(7, "a", MUCH)
    tenants.run(8, "b", 10)
    stuck = tenants.jobs[7]
    tenants.look(2)
    tenants.jobs[7] = stuck  # the kernel cannot end it
    tenants.look(10)  # 5 s
    assert [reason for reason, _, _ in tenants.told] == [KILLED]
    tenants.look(int(2 * REPORT_SECONDS))
    assert [reason for reason, _, _ in tenants.told] == [KILLED, OVER]
    assert tenants.ended == ["a/ctr"]


def test_each_device_of_a_gpu_has_its_own_tenants_and_limits(tenants: Tenants) -> None:
    migs = [
        MigLoad(uuid=f"MIG-{n}", gpu_instance=n, compute_instance=0, memory=None) for n in (7, 9)
    ]
    tenants.claim("one", LIMIT, "a")
    at = {1: (None, None), 2: (7, 0), 3: (7, 0), 4: (9, 0), 5: (9, 1)}  # the last has gone since
    for pid in at:
        tenants.run(pid, "a", pid * MUCH)
    load, seen = tenants.seen()
    processes = [
        replace(each, gpu_instance=at[each.pid][0], compute_instance=at[each.pid][1])
        for each in load.processes
    ]
    load = replace(load, migs=migs, processes=tuple(processes))
    found = used(load, seen, Known()).devices
    amounts = [used_bytes(device.users[0]) // (MUCH << 20) for device in found]
    assert [device.name for device in found] == ["gpu-0", "gpu-0 MIG 7", "gpu-0 MIG 9"]
    assert ([one.uuid for one in found], amounts) == ([GPU.uuid, "MIG-7", "MIG-9"], [1, 5, 4])
    (claim,) = holdings(tenants.records[0])
    for device in found:
        over = excesses(device, [claim])
        is_its = device.uuid == claim.device
        assert [each.party for each in over] == [(device.uuid, "uid-one")] * is_its


def test_the_containers_and_pods_of_a_share_have_its_limit_together(tenants: Tenants) -> None:
    tenants.claim("one", LIMIT, "a", "b")
    tenants.run(7, "a", LIMIT // 2, container="first-ctr")
    tenants.run(8, "a", LIMIT // 4, container="second-ctr")
    tenants.run(9, "b", LIMIT // 4 + CONTEXT)
    tenants.look(3)
    assert tenants.ended == []
    tenants.run(8, "a", LIMIT // 4 + 1, container="second-ctr")
    tenants.look(2)
    assert tenants.ended == ["a/first-ctr"]  # that with the most
    assert "first-ctr, with the others of its claim, had 5511 MiB" in tenants.told[0][2]


def test_claims_that_pods_have_together_are_one_party(tenants: Tenants) -> None:
    tenants.claim("one", LIMIT, "a", "b")
    tenants.claim("two", LIMIT, "b", "c")
    for pid, pod in enumerate("abc", start=7):
        tenants.run(pid, pod, LIMIT // 3 * 2)
    tenants.look(3)
    assert tenants.ended == []
    tenants.run(7, "a", MUCH)
    tenants.run(9, "c", 10)  # together they are below
    tenants.look(3)
    assert tenants.ended == []
    tenants.run(9, "c", LIMIT)
    tenants.look(2)
    assert tenants.ended == ["a/ctr"]


def test_the_limit_of_a_claims_mps_config_is_each_containers_own(tenants: Tenants) -> None:
    tenants.claim("one", LIMIT, "a", "b", by="mps")
    tenants.run(7, "a", LIMIT)
    tenants.run(8, "b", LIMIT)
    tenants.look(3)
    assert tenants.ended == []
    tenants.run(9, "b", LIMIT)
    tenants.run(10, "a", LIMIT)
    tenants.look(2)
    assert tenants.ended == ["a/ctr", "b/ctr"]


def test_the_next_of_a_party_is_ended_only_after_the_last_one_is_gone(tenants: Tenants) -> None:
    tenants.claim("one", LIMIT, "a", "b")
    tenants.run(7, "a", 3 * LIMIT)
    tenants.run(8, "b", 2 * LIMIT)
    stuck = tenants.jobs[7]
    tenants.look(2)
    tenants.jobs[7] = stuck  # its memory is still being freed
    tenants.look(5)
    assert tenants.ended == ["a/ctr"]
    del tenants.jobs[7]
    tenants.look(2)
    assert tenants.ended == ["a/ctr", "b/ctr"]


@pytest.mark.parametrize("trouble", ["silent", "late", "no figure", "no container", "no pod"])
def test_doubtful_containers_are_not_ended(tenants: Tenants, trouble: str) -> None:
    tenants.claim("one", LIMIT, "a")
    tenants.run(7, "a", MUCH)
    match trouble:
        case "silent":
            tenants.is_silent = True
        case "late":
            tenants.look_takes = 2.0
        case "no figure":
            tenants.run(7, "a", None)
        case "no container":  # in a group of the pod that is no container's
            tenants.run(7, "a", MUCH, container="")
        case "no pod":
            tenants.run(7, "", MUCH)
    tenants.look(4)
    assert tenants.ended == []
    is_told = trouble in ("late", "no container")
    assert [reason for reason, _, _ in tenants.told] == [OVER] * is_told


def test_a_pod_without_a_claim_counts_for_nobody(tenants: Tenants) -> None:
    tenants.claim("one", LIMIT, "a")
    tenants.run(7, "a", 10)
    tenants.run(8, "stranger", MUCH)
    tenants.look(3)
    assert (tenants.ended, tenants.told) == ([], [])


def test_pods_that_came_later_are_asked_for_only_where_there_are_any(tenants: Tenants) -> None:
    uid = tenants.claim("one", LIMIT, "a")
    first = tenants.records[0].pods
    tenants.run(7, "a", 10)
    tenants.look()
    assert tenants.asked == []
    tenants.run(8, "later", MUCH)
    later = type(first[0])(name="later", uid="uid-later")
    tenants.later[uid] = (*first, later)
    tenants.look(2)
    assert tenants.asked == [["uid-one"], ["uid-one"]]
    assert tenants.ended == ["later/ctr"]
    assert tenants.told[0][1] == ["one", "a", "later"]


def test_a_record_that_was_written_again_counts_from_then_on(tenants: Tenants) -> None:
    tenants.claim("one", LIMIT, "a")
    tenants.claim("two", LIMIT, "later")
    tenants.look()
    first, later = tenants.records
    tenants.records = [replace(first, pods=(*first.pods, *later.pods))]
    tenants.run(8, "later", MUCH)
    tenants.look(2)
    assert (tenants.ended, tenants.asked) == (["later/ctr"], [])


def test_a_later_pod_that_also_has_the_gpu_without_a_limit_has_none(tenants: Tenants) -> None:
    uids = (tenants.claim("one", LIMIT, "a"), tenants.claim("free", None, "a"))
    later = type(tenants.records[0].pods[0])(name="later", uid="uid-later")
    tenants.later = dict.fromkeys(uids, (later,))
    tenants.run(8, "later", MUCH)
    tenants.look(3)
    assert (tenants.ended, tenants.told) == ([], [])


def test_a_later_pod_whose_containers_no_log_link_names_is_ended_like_any_other(
    tenants: Tenants,
) -> None:
    """The kubelet cuts the container's ID off a link whose pod has a long name."""
    uid = tenants.claim("one", LIMIT, "a")
    first = tenants.records[0].pods
    tenants.later[uid] = (*first, type(first[0])(name="hidden", uid="uid-hidden"))
    tenants.run(7, "a", 10)
    tenants.run(8, "hidden", MUCH, container="unnamed-ctr")
    tenants.look(2)
    assert tenants.ended == ["hidden/unnamed-ctr"]


def test_a_failure_to_end_is_reported_once(tenants: Tenants) -> None:
    tenants.can_end = False
    tenants.claim("one", LIMIT, "a")
    tenants.run(7, "a", MUCH)
    tenants.look(6)
    assert tenants.counted == ["failed"]
    ((reason, _, note),) = tenants.told
    assert reason == KILLED
    assert "has 5511 MiB" in note
    assert "processes 7 cannot be ended" in note


@pytest.mark.parametrize("container", ["unnamed-ctr", "sandbox"])
def test_unnamed_things_are_described(container: str) -> None:
    tenants = Tenants(action="report")
    tenants.claim("one", LIMIT, "a")
    tenants.run(7, "a", MUCH, container=container)
    tenants.look(2)
    who = {"unnamed-ctr": "container with ID 612f756e6e616"}
    who["sandbox"] = "a process outside of the pod's containers"
    assert tenants.told[0][2].startswith(f"{who[container]} has 5511 MiB")


def test_there_is_no_look_while_no_claim_has_a_limit(tenants: Tenants) -> None:
    tenants.is_silent = True  # who asks would notice
    tenants.claim("all", None, "a")
    assert tenants.watch.check() > REPORT_SECONDS
    assert container_id("a") != container_id("b")


def test_claims_that_come_and_go_do_not_make_two_looks_one(
    tenants: Tenants, monkeypatch: pytest.MonkeyPatch
) -> None:
    waited: list[float] = []
    looks = iter([10.0, 10.0])

    def wait(seconds: float) -> bool:
        waited.append(seconds)
        return len(waited) > 2

    monkeypatch.setattr(tenants.watch, "check", lambda: next(looks))
    monkeypatch.setattr(tenants.watch._stop, "wait", wait)
    monkeypatch.setattr(tenants.watch._stop, "is_set", lambda: len(waited) >= 2)
    tenants.watch.ring()
    monkeypatch.setattr(tenants.watch, "_wait", waited.append)
    tenants.watch._run()
    assert waited == [0.5, 9.5]


def test_claims_and_pods_with_memory_get_events(tenants: Tenants) -> None:
    tenants.claim("one", LIMIT, "a", "b")
    posted: list[tuple[str, str, dict[str, str]]] = []

    class Events:
        def post(self, about: Regarding, **what: str) -> None:
            posted.append((about.kind, about.name, what))

    tenants.run(7, "a", MUCH)
    device = used(*tenants.seen(), Known()).devices[0]
    (excess,) = excesses(device, holdings(tenants.records[0]))
    tell(cast("ClaimEvents", Events()), excess, OVER, "too much")
    what = {"reason": OVER, "action": "LimitingMemory", "note": "too much"}
    assert posted == [("ResourceClaim", "one", what), ("Pod", "a", what)]


def test_only_on_a_device_that_is_shared_the_limit_is_the_shares(tenants: Tenants) -> None:
    tenants.claim("one", LIMIT, "a")
    tenants.claim("two", LIMIT, "a", by="mps")
    share, mps = tenants.records
    whole = replace(mps.devices[0], device=make.device(make.gpu(1)))
    both = replace(share, devices=(*share.devices, whole))
    assert [claim.is_share for claim in holdings(both)] == [True, False]
