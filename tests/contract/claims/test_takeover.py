"""A node that NVIDIA's own DRA driver had prepared is taken over under running pods."""

import fcntl
from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec.structs import replace
from structlog.testing import capture_logs

from dra_driver.claims.model.claim import ClaimRef, ClaimUid, PodName
from dra_driver.claims.reconcile.reconciler import ReconcileTiming
from dra_driver.errors import AccessError, TransientError, UnavailableError
from worlds.configs import LONG
from worlds.node import MakeNode, Node
from worlds.nvidia import NvidiaDriver, taken_over

VERSIONS = pytest.mark.parametrize("newest", ["v1", "v2"])


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def files_of(theirs: NvidiaDriver) -> dict[str, bytes]:
    """Everything in the driver's directory and the CDI folder, but for our locks."""
    files = [*theirs.folder.rglob("*"), *theirs.cdi.rglob("*")]
    return {
        str(file): file.read_bytes() for file in files if file.is_file() and file.name != "locks"
    }


def ours_of(theirs: NvidiaDriver, ref: ClaimRef) -> Path:
    return theirs.spec(ref).with_suffix(".json")


@VERSIONS
def test_a_claim_is_answered_as_before_and_its_spec_is_ours_under_the_same_ids(
    node: Node, newest: str
) -> None:
    theirs = NvidiaDriver(node, newest)
    ref = node.claim("gpu-0", "gpu-3")
    theirs.prepare(ref)
    taken_over(node)
    for _ in range(2):
        answer = node.driver.prepare(ref)
        assert [one.cdi_device_ids for one in answer] == [
            ("k8s.gpu.nvidia.com/claim=uid-claim-gpu-0",),
            ("k8s.gpu.nvidia.com/claim=uid-claim-gpu-3",),
        ]
        assert [(one.pool, one.name) for one in answer] == [
            ("node-1", "gpu-0"),
            ("node-1", "gpu-3"),
        ]
    reconciler = node.driver.reconciler(ReconcileTiming())
    assert reconciler.mend_unfinished() == set()
    assert list(theirs.cdi.iterdir()) == [ours_of(theirs, ref)], "two files for one device hide it"
    names = [device["name"] for device in node.driver.spec(ref)["devices"]]
    assert names == ["uid-claim-gpu-0", "uid-claim-gpu-3"]
    node.driver.unprepare(ref)
    assert node.left() == []


def test_its_devices_are_kept_from_other_claims(node: Node) -> None:
    theirs = NvidiaDriver(node)
    ref = node.claim("gpu-0")
    theirs.prepare(ref)
    taken_over(node)
    other = node.claim("gpu-0", name="other")
    with pytest.raises(Exception, match="already allocated"):
        node.driver.prepare(other, seconds=0.3)
    node.driver.unprepare(ref)
    node.driver.prepare(other)


@VERSIONS
def test_mig_devices_made_for_claims_are_kept_owned_and_destroyed_with_them(
    node: Node, newest: str
) -> None:
    theirs = NvidiaDriver(node, newest)
    names = [node.name("1g.10gb", 0), node.name("2g.20gb", 2)]
    one, two = node.claim(names[0], name="one"), node.claim(names[1], name="two")
    theirs.prepare(one)
    theirs.prepare(two)
    before = [(live.uuid, live.start) for live in node.migs()]
    taken_over(node)
    assert [(live.uuid, live.start) for live in node.migs()] == before
    assert node.driver.prepare(one)[0].cdi_device_ids == (
        f"k8s.gpu.nvidia.com/claim=uid-one-{names[0]}",
    )
    assert [(live.uuid, live.start) for live in node.migs()] == before
    node.driver.unprepare(one)
    assert node.mig_shapes() == {0: ["2g.20gb@2"]}
    node.driver.unprepare(two)
    assert node.left() == [], "MIG mode is off again too"


@pytest.mark.parametrize("why", ["not made here", "one is nobody's"])
def test_mig_devices_that_were_there_before_stay(node: Node, why: str) -> None:
    theirs = NvidiaDriver(node)
    node.machine.set_mig_mode(node.uuid(0), enabled=True)
    node.machine.create_mig(node.uuid(0), "1g.10gb", 0)
    if why == "one is nobody's":
        node.machine.create_mig(node.uuid(0), "1g.10gb", 1)
    node.look()
    ref = node.claim(node.name("1g.10gb", 0))
    theirs.prepare(ref, static=True)
    there = node.mig_shapes()
    taken_over(node, makes_mig=why != "not made here")
    node.driver.prepare(ref)
    node.driver.unprepare(ref)
    assert node.mig_shapes() == there
    assert node.mig_modes() == {0: 1}


def test_a_mig_device_that_was_replaced_meanwhile_stays(node: Node) -> None:
    theirs = NvidiaDriver(node)
    ref = node.claim(node.name("1g.10gb", 0))
    theirs.prepare(ref)
    node.machine.destroy_mig(node.migs()[0].uuid)
    node.machine.create_mig(node.uuid(0), "2g.20gb", 0)
    taken_over(node)
    node.driver.unprepare(ref)
    assert node.mig_shapes() == {0: ["2g.20gb@0"]}


def test_a_claim_that_was_about_to_be_prepared_is_taken_back(node: Node) -> None:
    theirs = NvidiaDriver(node)
    ref = node.claim(node.name("1g.10gb", 0))
    node.machine.set_mig_mode(node.uuid(0), enabled=True)
    node.machine.create_mig(node.uuid(0), "1g.10gb", 0)
    node.look()
    theirs.begin(ref)
    taken_over(node)
    assert node.left() == []
    node.driver.prepare(ref)
    assert node.mig_shapes() == {0: ["1g.10gb@0"]}


def test_a_begun_claim_that_cannot_be_read_stays_alone_in_the_file(node: Node) -> None:
    theirs = NvidiaDriver(node)
    ref, odd = node.claim("gpu-0"), node.claim("gpu-1", name="odd")
    theirs.begin(odd)
    theirs.claims[odd.uid]["status"] = {"allocation": None}
    theirs.prepare(ref)
    taken_over(node)
    assert (node.driver.claims.ledger.uids(), theirs.file.exists()) == ({ref.uid}, True)


def test_tenants_of_one_gpu_are_taken_over_side_by_side(node: Node) -> None:
    theirs = NvidiaDriver(node)
    refs = []
    for name in ("one", "two"):
        ref = node.claim("gpu-0", name=name)
        node.driver.api.results(ref)[0] |= {
            "shareID": f"share-{name}",
            "consumedCapacity": {"memory": "10Gi"},
        }
        theirs.prepare(ref)
        refs.append(ref)
    taken_over(node)
    for ref in refs:
        (answer,) = node.driver.prepare(ref)
        assert answer.cdi_device_ids == (f"k8s.gpu.nvidia.com/claim={ref.uid}-gpu-0",)
        assert answer.share_id == f"share-{ref.name}"
    for ref in refs:
        node.driver.unprepare(ref)
    assert node.left() == []


@pytest.mark.usefixtures("real_userspace")
@VERSIONS
def test_time_slices_and_compute_modes_are_taken_back(make_node: MakeNode, newest: str) -> None:
    node = make_node("a100x8", userspace="real")
    theirs = NvidiaDriver(node, newest)
    sliced = node.claim_gpus({"a": LONG}, name="sliced")
    theirs.prepare(sliced, config={"timeSliceApplied": True} if newest == "v2" else None)
    node.set_time_slice(0, 3)
    mps = node.claim_gpus({"b": {"strategy": "MPS"}}, first=1, name="mps")
    daemon = theirs.mps(mps, 1)
    theirs.prepare(mps, config={"mpsControlDaemonID": daemon})
    with capture_logs() as said:
        taken_over(node)
    (line,) = [one for one in said if one.get("mps_deployments")]
    assert line["mps_deployments"] == [f"mps-control-daemon-{daemon}"]
    node.driver.prepare(sliced)
    node.driver.prepare(mps)
    assert (node.time_slices(), node.compute_modes()) == ({0: 3}, {1: 3})
    with capture_logs() as said:
        node.driver.unprepare(sliced)
        node.driver.unprepare(mps)
    assert f"mps-control-daemon-{daemon}" in {one.get("deployment") for one in said}
    assert node.left() == []


@pytest.mark.usefixtures("real_userspace")
def test_containers_that_restart_still_find_their_mps_daemon(make_node: MakeNode) -> None:
    node = make_node("a100x8", userspace="real")
    theirs = NvidiaDriver(node)
    ref = node.claim_gpus({"a": {"strategy": "MPS"}})
    daemon = theirs.mps(ref, 0)
    theirs.prepare(ref, config={"mpsControlDaemonID": daemon, "mpsApplied": True})
    taken_over(node)
    assert not theirs.spec(ref).exists()
    folder = theirs.folder / "mps" / daemon
    assert node.driver.env(ref, "gpu-0") == {"CUDA_MPS_PIPE_DIRECTORY": "/tmp/nvidia-mps"}
    assert node.driver.mounts(ref, "gpu-0") == {
        "/dev/shm": f"{folder}/shm",
        "/tmp/nvidia-mps": f"{folder}/pipe",
    }


# Whose claims they are


def test_names_come_from_the_kubelet_and_gone_claims_are_released(node: Node) -> None:
    """One is deleted after the take-over; the other was before, and no pod has it."""
    theirs, clock = NvidiaDriver(node), Clock()
    kept, deleted, nameless = (
        node.claim(f"gpu-{number}", name=f"claim-{number}") for number in range(3)
    )
    for ref in (kept, deleted, nameless):
        theirs.prepare(ref)
    del node.driver.api.claims["default", nameless.name]
    taken_over(node)
    del node.driver.api.claims["default", deleted.name]
    node.driver.pods_running[nameless.uid] = [PodName(namespace="default", name="pod")]
    reconciler = node.driver.reconciler(ReconcileTiming(), clock)
    assert reconciler.compare() == {deleted.uid, nameless.uid}
    assert {one.ref for one in node.driver.claims.ledger.readable()} >= {kept, deleted}
    clock.now += 100
    assert reconciler.compare() == {nameless.uid}, "a pod has it after all"
    node.driver.pods_running.clear()
    assert reconciler.compare() == set()
    assert [one.ref for one in node.driver.claims.ledger.readable()] == [kept]
    assert list(theirs.cdi.iterdir()) == [ours_of(theirs, kept)]


def test_without_the_kubelet_claims_are_taken_over_without_names(node: Node) -> None:
    ref = node.claim("gpu-0")
    NvidiaDriver(node).prepare(ref)

    def names(_: object) -> dict[ClaimUid, ClaimRef]:
        raise TransientError("the kubelet does not say")

    taken_over(node, names=names)
    assert node.driver.prepare(ref)
    node.driver.unprepare(ref)
    assert node.left() == []


@pytest.mark.parametrize("error", [UnavailableError("away"), AccessError("no", status=403)])
def test_claims_are_released_only_if_the_api_server_confirms(node: Node, error: Exception) -> None:
    theirs, clock = NvidiaDriver(node), Clock()
    ref = node.claim("gpu-0")
    theirs.prepare(ref)
    taken_over(node)
    node.driver.api.claims.clear()

    def trouble(_: str) -> None:
        raise error

    node.driver.api.trouble = trouble
    reconciler = node.driver.reconciler(ReconcileTiming(), clock)
    for _ in range(3):
        reconciler.compare()
        clock.now += 1000
    assert ours_of(theirs, ref).exists()
    assert node.driver.claims.ledger.read(ref.uid)


# What stands in the way


def test_after_a_reboot_its_checkpoint_is_void(node: Node) -> None:
    theirs = NvidiaDriver(node)
    ref = node.claim(node.name("1g.10gb", 0))
    theirs.prepare(ref)
    theirs.spec(ref).unlink()
    node.machine.reboot()
    taken_over(node)
    assert node.left() == []
    assert (theirs.folder / "checkpoint.json.taken-over").exists()
    node.driver.prepare(ref)


def test_a_running_nvidia_driver_is_left_alone(node: Node) -> None:
    theirs = NvidiaDriver(node)
    theirs.prepare(node.claim("gpu-0"))
    node.restart()
    before = files_of(theirs)
    with (theirs.folder / "pu.lock").open("rb+") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        take_over = node.take_over()
        with capture_logs() as said:
            assert not take_over.run()
            assert not take_over.run()
    assert [line["reason"] for line in said] == ["NVIDIA's DRA driver is at work on this node"]
    assert files_of(theirs) == before
    assert take_over.run()


def flipped(data: bytes) -> bytes:
    return data.replace(b"gpu-0", b"gpu-1")


def newer(data: bytes) -> bytes:
    return data.replace(b'{"checksum"', b'{"version":"v3","checksum"', 1)


def cut(data: bytes) -> bytes:
    return data[:-20]


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (flipped, "the checksum of its part v1 does not match its content"),
        (newer, "it is of version 'v3', and this driver reads v1 and v2"),
        (cut, "its content is not that of a checkpoint"),
    ],
)
def test_an_unreadable_checkpoint_is_reported_and_kept(
    node: Node, spoil: Callable[[bytes], bytes], reason: str
) -> None:
    theirs = NvidiaDriver(node)
    theirs.prepare(node.claim("gpu-5", name="another"))
    ref = node.claim("gpu-0")
    theirs.prepare(ref)
    theirs.file.write_bytes(spoil(theirs.file.read_bytes()))
    node.restart()
    before = files_of(theirs)
    take_over = node.take_over()
    with capture_logs() as said:
        for _ in range(2):
            assert take_over.run(), "it is not waited for"
    (line,) = said
    assert reason in line["reason"]
    assert line["log_level"] == "error"
    assert "drain the node, uninstall this driver, and run dra-driver cleanup" in line["advice"]
    assert files_of(theirs) == before
    other = node.claim("gpu-7", name="other")
    node.driver.prepare(other)
    node.driver.unprepare(other)
    assert files_of(theirs) == before


def test_a_claim_whose_gpu_has_gone_to_another_stays_in_the_file(node: Node) -> None:
    theirs = NvidiaDriver(node)
    late, other = node.claim("gpu-0"), node.claim("gpu-0", name="other")
    theirs.prepare(late)
    node.restart()
    node.driver.prepare(other)
    with capture_logs() as said:
        assert node.take_over().run()
    assert said[-1]["reason"] == "another claim has its GPU already"
    assert node.driver.claims.ledger.uids() == {other.uid}
    assert theirs.file.exists()


def test_while_the_gpu_driver_does_not_answer_claims_are_waited_for(node: Node) -> None:
    theirs = NvidiaDriver(node)
    ref = node.claim("gpu-0")
    theirs.prepare(ref)
    node.restart()
    node.driver.gpus.inventory = replace(
        node.inventory, gpus=(), problem="the GPU driver is not loaded"
    )
    take_over = node.take_over()
    assert not take_over.run()
    assert theirs.file.exists()
    node.look()
    assert take_over.run()
    assert node.driver.claims.ledger.uids() == {ref.uid}


def test_a_pipe_is_not_waited_for(node: Node) -> None:
    theirs = NvidiaDriver(node)
    theirs.folder.mkdir(parents=True, exist_ok=True)
    theirs.file.mkdir()
    with capture_logs() as said:
        assert node.take_over().run()
    assert "it is not a plain file" in said[0]["reason"] or "cannot be read" in said[0]["reason"]


def test_a_claim_that_has_a_record_already_keeps_it(node: Node) -> None:
    theirs = NvidiaDriver(node)
    ref = node.claim("gpu-0")
    node.driver.prepare(ref)
    record = node.driver.claims.ledger.read(ref.uid)
    theirs.prepare(ref)
    taken_over(node)
    assert node.driver.claims.ledger.read(ref.uid) == record
