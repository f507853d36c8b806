"""Nodes are taken over from the files that NVIDIA's own DRA driver really wrote."""

import json
import os
import time
from collections.abc import Callable
from copy import deepcopy
from typing import Any

import pytest
import yaml
from structlog.testing import capture_logs

from dra_driver.admin.takeover.nvidia_checkpoint import parse_checkpoint, without
from dra_driver.admin.takeover.take_over import TakeOver
from dra_driver.claims.reconcile.reconciler import ReconcileTiming
from dra_driver.devices.device import Device, name_of
from dra_driver.devices.mig.partitions import partitions
from worlds.node import MakeNode, Node
from worlds.nvidia import NvidiaDriver, checkpoint
from worlds.nvidia_files import FOLDERS, SEED, Left, entry_of, mended, migs_of

Change = Callable[[Left], bytes]


def both(left: Left) -> bytes:
    return left.checkpoint


def v1_alone(left: Left) -> bytes:
    """As its first releases wrote it: without part v2, which has a checksum of its own."""
    members = json.loads(left.checkpoint)
    return json.dumps(
        {name: members[name] for name in ("checksum", "v1")}, separators=(",", ":")
    ).encode()


def v2_alone(left: Left) -> bytes:
    """Part v2 is to the letter; the checksum beside it is that of a file without v1."""
    part = left.checkpoint[left.checkpoint.index(b'"v2":') :]
    return b'{"checksum":4166374854,' + part


def device_names(specs: list[dict[str, Any]]) -> list[str]:
    """The full names of the devices in CDI specs."""
    return sorted(f"{spec['kind']}={one['name']}" for spec in specs for one in spec["devices"])


FORMS = pytest.mark.parametrize("form", [both, v1_alone, v2_alone, mended])
pytestmark = pytest.mark.usefixtures("real_userspace")


@pytest.fixture
def node(make_node: MakeNode) -> Node:
    return make_node("h100x8", userspace="real", seed=SEED)


def take_over(node: Node, **facts: Any) -> TakeOver:
    """Start this driver where the other one was."""
    node.restart()
    node.look()
    found = node.take_over(**facts)
    found.run()
    assert node.driver.reconciler(ReconcileTiming()).mend() == set()
    return found


@pytest.mark.parametrize("name", FOLDERS)
def test_our_writer_in_tests_writes_what_that_driver_writes(name: str) -> None:
    left = Left(name)
    assert checkpoint(left.prepared, boot_id=left.boot_id) == left.checkpoint


@pytest.mark.parametrize("name", FOLDERS)
def test_devices_have_the_names_under_which_that_driver_published_them(
    node: Node, name: str
) -> None:
    left = Left(name)
    left.restore(node)
    node.look()
    theirs = {device["name"] for one in left.slices for device in one["spec"].get("devices", ())}
    minors = {gpu.minor: gpu for gpu in node.inventory.gpus}
    ours = {f"gpu-{minor}" for minor in minors}
    ours |= {name_of(gpu, Device(base=one)) for gpu in minors.values() for one in partitions(gpu)}
    assert theirs <= ours
    if name == "dynamic-mig":
        of_one = {our for our in ours if our.split("-")[1] == "1"}
        assert theirs == of_one


@pytest.mark.parametrize("name", FOLDERS)
@FORMS
def test_claims_are_answered_as_before_and_after_them_all_is_as_it_was(
    node: Node, name: str, form: Change
) -> None:
    left = Left(name)
    left.restore(node, checkpoint=form(left))
    shapes, modes, slices = node.mig_shapes(), node.mig_modes(), node.time_slices()
    theirs = [yaml.safe_load(path.read_bytes()) for path in (left.folder / "cdi").iterdir()]
    with capture_logs() as said:
        assert take_over(node).left == {}
    assert not [line for line in said if line["log_level"] in ("error", "warning")]
    assert not (node.driver.plugin / "checkpoint.json").exists()

    for ref in left.refs.values():
        told = entry_of(left.prepared[ref.uid])
        device = (told["gpu"] or told["mig"])["device"]
        (answer,) = node.driver.prepare(ref)
        assert answer.name == device["DeviceName"]
        assert list(answer.cdi_device_ids) == device["CDIDeviceIDs"]
    assert (node.mig_shapes(), node.mig_modes(), node.time_slices()) == (shapes, modes, slices)
    # Containers restart from specs of this driver, with devices of the same names.
    ours = [node.driver.spec(ref) for ref in left.refs.values()]
    assert device_names(ours) == device_names(theirs)
    assert len(list((node.root / "state" / "cdi").iterdir())) == len(ours)

    for ref in left.refs.values():
        node.driver.unprepare(ref)
    static = name == "static-mig"
    assert node.mig_shapes() == ({7: ["1g.10gb@0", "3g.40gb@4"]} if static else {})
    assert node.mig_modes() == ({7: 1} if static else {})
    assert node.time_slices() == {}
    assert node.driver.left() == []


def test_made_devices_go_whatever_this_driver_makes_itself(node: Node) -> None:
    left = Left("dynamic-mig")
    left.restore(node)
    take_over(node, makes_mig=False)
    for ref in left.refs.values():
        node.driver.unprepare(ref)
    assert node.left() == []


@pytest.mark.parametrize("pod", ["mig1", "mig3"])
def test_one_device_in_the_released_form_shows_the_nodes_form(node: Node, pod: str) -> None:
    """As after an update of that driver: the other device is in the mended form."""
    left = Left("dynamic-mig")
    claims = left.prepared
    made = entry_of(claims[left.refs[pod].uid])["mig"]["concrete"]
    (made["migUUID"],) = (u for u, _, instance in migs_of(left) if instance == made["giId"])
    left.restore(node, checkpoint=checkpoint(claims, boot_id=left.boot_id))
    take_over(node, makes_mig=False)
    for ref in left.refs.values():
        node.driver.unprepare(ref)
    assert node.left() == []


def test_the_mended_form_leaves_devices_where_this_driver_makes_none(node: Node) -> None:
    left = Left("dynamic-mig")
    left.restore(node, checkpoint=mended(left))
    take_over(node, makes_mig=False)
    for ref in left.refs.values():
        node.driver.unprepare(ref)
    assert node.mig_shapes() == {1: ["1g.10gb@0", "3g.40gb@4"]}


def everything() -> tuple[Left, dict[str, Any]]:
    """The claims of `dynamic-mig`, with those of `shares` on a GPU that is free there."""
    left, shares = Left("dynamic-mig"), Left("shares")
    text = json.dumps([shares.prepared, shares.claims])
    for gpu in ("gpu-0", "GPU-d7431763-6c98-41ab-b6f0-5556fa0cf18f"):
        assert gpu in text
    text = text.replace("gpu-0", "gpu-3")
    text = text.replace(
        "GPU-d7431763-6c98-41ab-b6f0-5556fa0cf18f", "GPU-fa8674c5-1b4e-486c-938e-ee3ef0563801"
    )
    prepared, claims = json.loads(text)
    left.claims += claims
    return left, left.prepared | prepared


def test_whole_sliced_mig_and_shared_claims_of_one_file_are_taken_over(node: Node) -> None:
    left, claims = everything()
    left.restore(node, checkpoint=checkpoint(claims, boot_id=left.boot_id))
    assert take_over(node).left == {}
    assert len(list(node.driver.claims.ledger.readable())) == 7
    for ref in left.refs.values():
        node.driver.prepare(ref)
        node.driver.unprepare(ref)
    assert node.mig_modes() == {}
    assert node.time_slices() == {}
    assert node.driver.claims.ledger.uids() == set()


@pytest.mark.parametrize("first", ["mig1", "other"])
def test_a_made_device_that_several_share_goes_with_the_last_of_them(
    node: Node, first: str
) -> None:
    """As with gate ConsumableShares beside DynamicMIG: the second claim is like the first."""
    left = Left("dynamic-mig")
    refs = {"mig1": left.refs["mig1"], "other": node.claim("gpu-1-mig-1g10gb-19-0", name="other")}
    told = left.prepared[refs["mig1"].uid]
    claims = {}
    for name, ref in refs.items():
        text = json.dumps(told).replace(refs["mig1"].uid, ref.uid)
        claim = json.loads(text)
        (result,) = claim["status"]["allocation"]["devices"]["results"]
        result |= {"shareID": f"share-{name}", "consumedCapacity": {"memory": "0", "shares": "1"}}
        claims[ref.uid] = claim
    left.restore(node, checkpoint=checkpoint(claims, boot_id=left.boot_id))
    for ref in refs.values():
        status = claims[ref.uid]["status"]
        node.driver.api.claims[ref.namespace, ref.name]["status"] = status
    node.machine.destroy_mig(next(mig.uuid for mig in node.migs(1) if mig.start == 4))
    assert take_over(node).left == {}
    last = next(name for name in refs if name != first)
    node.driver.prepare(refs[last])
    node.driver.unprepare(refs[first])
    assert node.driver.reconciler(ReconcileTiming()).mend() == set()
    assert node.mig_shapes() == {1: ["1g.10gb@0"]}
    node.driver.unprepare(refs[last])
    assert (node.mig_shapes(), node.mig_modes()) == ({}, {})
    assert node.ledger.made() == {}


# One claim that is not understood


def other_state(claim: dict[str, Any]) -> None:
    claim["checkpointState"] = "PrepareFailed"


def of_a_machine(claim: dict[str, Any]) -> None:
    entry = entry_of(claim)
    entry["vfio"], entry["gpu"] = entry["gpu"], None
    entry["vfio"]["device"]["DeviceName"] = "gpu-vfio-0"
    claim["status"]["allocation"]["devices"]["results"][0]["device"] = "gpu-vfio-0"


def of_two_kinds(claim: dict[str, Any]) -> None:
    entry = entry_of(claim)
    entry["vfio"] = entry["gpu"]


def another_uuid(claim: dict[str, Any]) -> None:
    entry_of(claim)["mig"]["concrete"]["migUUID"] = "GPU-1-2-3"


def gone(claim: dict[str, Any]) -> None:
    entry_of(claim)["mig"]["concrete"]["giId"] = 7


def of_another_place(claim: dict[str, Any]) -> None:
    entry_of(claim)["mig"]["device"]["DeviceName"] = "gpu-1-mig-1g10gb-19-3"
    claim["status"]["allocation"]["devices"]["results"][0]["device"] = "gpu-1-mig-1g10gb-19-3"


def no_devices(claim: dict[str, Any]) -> None:
    claim["preparedDevices"] = 7


def unallocated(claim: dict[str, Any]) -> None:
    claim["status"]["allocation"]["devices"]["results"] = []


@pytest.mark.parametrize(
    ("pod", "bend", "reason"),
    [
        ("whole", unallocated, "for a request to which it was not allocated"),
        ("mig1", other_state, "it is in state 'PrepareFailed', which is not known"),
        (
            "whole",
            of_a_machine,
            "passed through to a virtual machine, which this driver takes over ",
        ),
        ("whole", of_two_kinds, "it has a device of an unknown kind"),
        ("mig1", another_uuid, "'GPU-1-2-3' is not a valid value there"),
        ("mig1", gone, "GPU instance 7 and compute instance 0 of GPU-0d73d2d1-6e60-4b69-ab11-"),
        ("mig1", of_another_place, "no longer exists"),
        ("sliced", no_devices, "its content is not that of a claim"),
    ],
)
def test_an_unknown_claim_is_logged_and_left_and_blocks_no_other(
    node: Node, pod: str, bend: Callable[[dict[str, Any]], None], reason: str
) -> None:
    left = Left("dynamic-mig")
    claims, odd = deepcopy(left.prepared), left.refs[pod]
    bend(claims[odd.uid])
    left.restore(node, checkpoint=checkpoint(claims, boot_id=left.boot_id))
    spec = node.root / "state" / "cdi" / f"k8s.gpu.nvidia.com-claim_{odd.uid}.yaml"
    with capture_logs() as said:
        found = take_over(node)
        found.run()
    (line,) = [one for one in said if one["log_level"] == "error"]
    assert line["event"] == "claim not taken over from nvidia's driver"
    assert (line["claim_uid"], line["pods"]) == (odd.uid, [pod])
    assert reason in line["reason"]
    assert "dra-driver cleanup" in line["advice"]
    others = {name: ref for name, ref in left.refs.items() if name != pod}
    assert node.driver.claims.ledger.uids() == {ref.uid for ref in others.values()}
    # What is left is what that driver would read, and it has no other claim.
    kept = (node.driver.plugin / "checkpoint.json").read_bytes()
    assert kept == checkpoint({odd.uid: claims[odd.uid]}, boot_id=left.boot_id)

    for ref in others.values():
        node.driver.prepare(ref)
        node.driver.unprepare(ref)
    assert node.take_over().run(), "nothing that has ended comes back"
    assert node.driver.claims.ledger.uids() == set()
    assert spec.exists()
    slices = {2: 3} if pod == "sliced" else {}
    assert (node.mig_shapes(), node.time_slices()) == (
        {1: ["1g.10gb@0"]} if pod == "mig1" else {},
        slices,
    )


@FORMS
def test_a_file_without_taken_claims_suits_that_driver(form: Change) -> None:
    left = Left("dynamic-mig")
    data = form(left)
    uids = sorted(left.prepared)
    rest = without(data, uids[:2])
    found = parse_checkpoint(rest)
    assert [claim.uid for claim in found.claims] == uids[2:]
    assert found.claims == parse_checkpoint(data).claims[2:]
    if form is both:
        claims = {uid: left.prepared[uid] for uid in uids[2:]}
        assert rest == checkpoint(claims, boot_id=left.boot_id)
        assert without(data, uids) == checkpoint({}, boot_id=left.boot_id)


def test_a_claim_that_somebody_is_busy_with_keeps_no_other_from_being_taken_over(
    node: Node,
) -> None:
    theirs = NvidiaDriver(node)
    busy, other = node.claim("gpu-0", name="a"), node.claim("gpu-1", name="b")
    for ref in (busy, other):
        theirs.prepare(ref)
    node.restart()
    node.look()
    take_over = node.take_over()
    with node.driver.locks.claim(busy.uid, time.monotonic()):
        assert not take_over.run()
    assert node.driver.claims.ledger.uids() == {other.uid}
    assert take_over.run()
    assert node.driver.claims.ledger.uids() == {busy.uid, other.uid}
    assert not theirs.file.exists()


@pytest.mark.parametrize("is_whole", [True, False])
def test_a_takeover_survives_a_power_cut(
    node: Node, monkeypatch: pytest.MonkeyPatch, is_whole: bool
) -> None:
    theirs = NvidiaDriver(node)
    ref, left = node.claim("gpu-0", name="a"), node.claim("gpu-1", name="left")
    theirs.prepare(ref)
    if not is_whole:
        theirs.prepare(left)
        theirs.claims[left.uid]["checkpointState"] = "PrepareFailed"
        theirs.write()
    steps: list[str] = []
    node.restart(step=steps.append)
    node.look()
    sync, inode = os.fsync, theirs.file.stat().st_ino

    def noted(descriptor: int) -> None:
        sync(descriptor)
        changed = not theirs.file.exists() or theirs.file.stat().st_ino != inode
        if changed and os.fstat(descriptor).st_ino == theirs.folder.stat().st_ino:
            steps.append("synced")

    monkeypatch.setattr(os, "fsync", noted)
    node.take_over().run()
    assert steps[-2:] == ["synced", "put aside" if is_whole else "struck"]
