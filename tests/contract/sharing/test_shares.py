"""Claims of shares: by NVIDIA's real control daemon, kept by a supervisor, and by time-slicing."""

import os
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from dra_driver.claims.model.claim import ClaimRef
from dra_driver.claims.reconcile.reconciler import ReconcileTiming
from dra_driver.devices.device import Whole
from dra_driver.devices.mig.partitions import found_by_others
from dra_driver.devices.model import MigDevice
from dra_driver.devices.shares import ShareStrategy
from dra_driver.errors import ConfigError, ConflictError, DeviceError, TransientError
from dra_driver.mps.domain import DeviceKind, DomainId, shared_domain
from dra_driver.shares.config import read_node_config
from dra_driver.shares.divide import divide
from worlds.node import MakeNode, Node

EXCLUSIVE_PROCESS = 3
PERCENTAGE = "get_default_active_thread_percentage"
MEMORY = "get_default_device_pinned_mem_limit 0"
LIMIT = "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"
THREADS = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"


@pytest.fixture
def node(make_node: MakeNode) -> Node:
    return make_node()


def share(index: int, minor: int = 0, count: int = 10, kind: str = "single-share") -> str:
    return f"gpu-{minor}-{kind}-{index}-of-{count}"


def claim(node: Node, *devices: str, name: str = "claim", **facts: Any) -> ClaimRef:
    return node.driver.api.add(*devices, uid=f"uid-{name}", name=name, **facts)


def domain(node: Node, minor: int = 0) -> DomainId:
    return shared_domain(node.uuid(minor))


def mib(node: Node, minor: int = 0) -> int:
    """What tenants of a GPU can have together."""
    gpu = node.gpu(minor)
    assert gpu.memory_bytes is not None
    assert gpu.memory_reserved_bytes > 0
    return (gpu.memory_bytes - gpu.memory_reserved_bytes) // 1024**2


def test_claims_with_a_share_each_are_clients_of_one_daemon_that_limits_them(node: Node) -> None:
    node.divide(0)
    with node.mps.supervised():
        first, second = (claim(node, share(n), name=f"c{n}") for n in (0, 7))
        node.driver.prepare(first)
        node.driver.prepare(second)
        assert node.mps.requests.list() == {domain(node)}
        assert node.mps.ask(domain(node), PERCENTAGE) == ["10.0"]
        assert node.mps.ask(domain(node), MEMORY) == [f"{mib(node) // 10 // 1024}G"]
        desired = node.mps.requests.desired(domain(node))
        assert desired is not None
        assert [device.pinned_memory_mib for device in desired.devices] == [mib(node) // 10]
        assert node.compute_modes() == {0: EXCLUSIVE_PROCESS}
        # The daemon's limits are the tenants': their environment says nothing that they could undo.
        env = {"CUDA_MPS_PIPE_DIRECTORY": "/tmp/nvidia-mps"}
        assert node.driver.env(first, share(0)) == node.driver.env(second, share(7)) == env
        assert node.driver.mounts(first, share(0)) == node.driver.mounts(second, share(7))
        node.driver.unprepare(first)
        assert node.compute_modes() == {0: EXCLUSIVE_PROCESS}
        node.driver.unprepare(second)
        assert node.left() == []


def test_shares_of_two_gpus_in_one_request_are_refused_and_of_two_containers_are_not(
    node: Node,
) -> None:
    node.divide(0, 1, count=4, combines=True)
    devices = tuple(f"gpu-{minor}-mps-share-0-of-4" for minor in (0, 1))
    with node.mps.supervised():
        with pytest.raises(ConfigError, match=r"got shares of two devices .*matchAttribute"):
            node.driver.prepare(claim(node, *devices))
        assert node.left() == []
        names = ("container-0-request-0", "container-1-request-0")
        ref = claim(node, *devices, name="limits", requests=names)
        node.driver.prepare(ref)
        assert node.mps.requests.list() == {domain(node, minor) for minor in (0, 1)}
        for minor, device in enumerate(devices):
            assert node.driver.env(ref, device)[LIMIT] == f"{node.uuid(minor)}={mib(node) // 4}M"
        node.driver.unprepare(ref)
        assert node.left() == []


def test_shares_of_a_mig_device_of_an_admin_are_limited_by_its_own_daemon(node: Node) -> None:
    node.machine.set_mig_mode(node.uuid(0), enabled=True)
    uuid = node.machine.create_mig(node.uuid(0), "3g.40gb", 4)
    node.look()
    text = (
        "version: v1\nsharing:\n  mps:\n    resources:\n"
        "    - {name: nvidia.com/mig-3g.40gb, replicas: 2}\n"
    )
    node.driver.divisions |= divide(read_node_config(text.encode(), "f"), node.inventory).divisions
    names = [f"{node.name('3g.40gb', 4)}-single-share-{index}-of-2" for index in range(2)]
    with node.mps.supervised():
        refs = [claim(node, name, name=f"c{number}") for number, name in enumerate(names)]
        for ref, name in zip(refs, names, strict=True):
            node.driver.prepare(ref)
            env = {"CUDA_MPS_PIPE_DIRECTORY": "/tmp/nvidia-mps"}
            assert node.driver.env(ref, name) == env
        serving = shared_domain(uuid)
        assert node.mps.requests.list() == {serving}
        desired = node.mps.requests.desired(serving)
        assert desired is not None
        (device,) = desired.devices
        (found,) = found_by_others(node.gpu(0))
        assert isinstance(found, MigDevice)
        half = found.profile.memory_bytes // 1024**2 // 2
        assert (device.uuid, device.kind) == (uuid, DeviceKind.MIG)
        assert device.pinned_memory_mib == half
        assert node.mps.ask(serving, PERCENTAGE) == ["50.0"]
        assert node.mps.ask(serving, MEMORY) == [f"{half // 1024}G"]
        for ref in refs:
            node.driver.unprepare(ref)
        assert node.left() == ["3g.40gb@4 on gpu-0", "MIG mode of gpu-0"]


def test_a_whole_gpu_waits_until_its_shares_are_given_back(node: Node) -> None:
    node.divide(0)
    with node.mps.supervised():
        tenant = claim(node, share(0), name="tenant")
        whole = claim(node, "gpu-0", name="whole")
        node.driver.prepare(tenant)
        with pytest.raises(ConflictError, match=r"gpu-0.* already allocated to different claim"):
            node.driver.prepare(whole)
        node.driver.unprepare(tenant)
        node.driver.prepare(whole)
        assert node.compute_modes() == {}
        with pytest.raises(ConflictError, match=r"share-0-of-10.* already allocated"):
            node.driver.prepare(tenant)
        node.driver.unprepare(whole)
        assert node.left() == []


def test_two_claims_cannot_have_the_same_share(node: Node) -> None:
    node.divide(0, strategy=ShareStrategy.TIME_SLICING)
    node.driver.prepare(claim(node, share(0), name="first"))
    with pytest.raises(ConflictError, match="already allocated to different claim"):
        node.driver.prepare(claim(node, share(0), name="second"))


def test_time_sliced_shares_need_no_supervisor_and_change_nothing(node: Node) -> None:
    node.divide(0, strategy=ShareStrategy.TIME_SLICING)
    refs = [claim(node, share(n), name=f"c{n}") for n in range(10)]
    for ref in refs:
        node.driver.prepare(ref)
        assert node.driver.env(ref, share(refs.index(ref))) == {}
    assert (node.compute_modes(), node.time_slices()) == ({}, {})
    for ref in refs:
        node.driver.unprepare(ref)
    assert node.left() == []


def test_a_request_for_a_newer_config_fails_and_says_it_waits(node: Node) -> None:
    node.divide(0)
    with node.mps.supervised():
        tenant = claim(node, share(2), name="tenant")
        node.driver.prepare(tenant)
        node.divide(0, combines=True)
        large = claim(node, share(0), share(1), name="large")
        with pytest.raises(ConfigError) as refused:
            node.driver.prepare(large)
        assert str(refused.value).endswith(
            "failRequestsGreaterThanOne; ask for 1; a newer share config takes effect on gpu-0 "
            "once no claim uses it"
        )
        node.driver.unprepare(tenant)
        with pytest.raises(DeviceError, match="config changed after the claim was allocated"):
            node.driver.prepare(large)
    assert node.left() == []


def test_a_share_under_another_division_than_now_is_refused(node: Node) -> None:
    node.divide(0, count=4, strategy=ShareStrategy.TIME_SLICING)
    with pytest.raises(DeviceError, match="divided into 4 shares"):
        node.driver.prepare(claim(node, share(1)))
    node.driver.divisions.clear()
    with pytest.raises(DeviceError, match="not divided"):
        node.driver.prepare(claim(node, share(1)))


def test_a_device_stays_divided_as_it_is_until_nobody_has_a_share(node: Node) -> None:
    node.divide(0, strategy=ShareStrategy.TIME_SLICING)
    first, second = claim(node, share(0), name="first"), claim(node, share(1), name="second")
    node.driver.prepare(first)
    part = Whole(gpu=node.gpu(0).uuid)
    before = node.driver.divisions[part]
    node.divide(0, count=4, strategy=ShareStrategy.MPS)
    divisions = node.driver.node_divisions
    assert divisions.of(part) == before
    assert set(divisions.waiting([part.gpu])) == {part}
    node.driver.prepare(second)
    node.driver.unprepare(first)
    assert divisions.of(part) == before
    node.driver.unprepare(second)
    assert divisions.of(part) == node.driver.divisions[part]
    assert not divisions.waiting([part.gpu])


def test_a_claim_keeps_its_share_when_the_driver_comes_back(node: Node) -> None:
    node.divide(0, combines=True)
    with node.mps.supervised():
        ref = claim(node, *(share(index, kind="mps-share") for index in (0, 1)))
        answer = node.driver.prepare(ref)
        spec = node.driver.spec(ref)
        node.restart()
        node.driver.specs.delete(ref.uid)
        node.driver.divisions.clear()
        node.mps.requests.leave(domain(node), ref.uid)
        assert node.driver.reconciler(ReconcileTiming()).mend() == set()
        assert node.mps.requests.members(domain(node)) == {ref.uid}
        assert node.driver.spec(ref) == spec
        assert node.driver.prepare(ref) == answer
        node.driver.unprepare(ref)
        assert node.left() == []


def test_a_claim_without_a_record_is_swept_out_of_its_domain(node: Node) -> None:
    node.divide(0)
    with node.mps.supervised():
        ref, other = claim(node, share(0), name="lost"), claim(node, share(1), name="other")
        node.driver.prepare(ref)
        node.driver.prepare(other)
        node.driver.claims.ledger.delete(ref.uid)
        node.driver.unprepare(ref)
        assert node.mps.requests.members(domain(node)) == {other.uid}
        node.driver.unprepare(other)
        assert node.left() == []


def test_without_a_supervisor_a_share_can_be_given_back_and_taken_again(node: Node) -> None:
    node.divide(0)
    ref = claim(node, share(0))
    with node.mps.supervised():
        node.driver.prepare(ref)
    node.driver.unprepare(ref, seconds=0.5)
    assert node.driver.cleanups(ref)
    whole = claim(node, "gpu-0", name="whole")
    with pytest.raises(TransientError, match="cannot be used yet"):
        node.driver.prepare(whole, seconds=0.5)
    with node.mps.supervised():
        node.driver.prepare(whole)
        assert node.compute_modes() == {}
        node.driver.unprepare(whole)
        assert node.driver.reconciler(ReconcileTiming()).mend() == set()
        assert node.left() == []


def test_tenants_come_and_go_at_the_same_time(node: Node) -> None:
    node.divide(0)

    def live(number: int) -> None:
        for _ in range(3):
            ref = claim(node, share(number), name=f"c{number}")
            node.driver.prepare(ref)
            assert "CUDA_MPS_PIPE_DIRECTORY" in node.driver.env(ref, share(number))
            node.driver.unprepare(ref)

    with node.mps.supervised(), ThreadPoolExecutor(6) as pool:
        list(pool.map(live, range(6)))
    assert node.left() == []


def test_a_domain_that_ends_meanwhile_is_waited_for(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.divide(0)
    first, second = (claim(node, share(number), name=f"c{number}") for number in range(2))
    claims = node.driver.claims
    settle = claims.release.settle

    def leave_meanwhile(*words: Any, **named: Any) -> Any:
        monkeypatch.undo()
        other = node.driver.claims.ledger.read(second.uid)
        claims.steps.end(other.steps, float("-inf"))
        return settle(*words, **named)

    with node.mps.supervised():
        for ref in (first, second):
            node.driver.prepare(ref)
        monkeypatch.setattr(claims.release, "settle", leave_meanwhile)
        node.driver.unprepare(first)
        assert node.driver.cleanups(first) == []
        node.driver.unprepare(second)
    assert node.left() == []


def test_shares_and_whole_gpus_stand_in_one_claim(node: Node) -> None:
    node.divide(0)
    with node.mps.supervised():
        ref = claim(node, share(0), "gpu-1", requests=("share", "whole"))
        node.driver.prepare(ref)
        assert "CUDA_MPS_PIPE_DIRECTORY" in node.driver.env(ref, share(0))
        assert node.driver.env(ref, "gpu-1") == {}
        node.driver.unprepare(ref)
        assert node.left() == []


def test_after_a_reboot_a_share_is_prepared_again(node: Node) -> None:
    node.divide(0)
    ref = claim(node, share(0))
    with node.mps.supervised():
        node.driver.prepare(ref)
    node.mps.clean()
    node.machine.reboot()
    node.restart()
    with node.mps.supervised():
        assert node.driver.reconciler(ReconcileTiming()).mend() == set()
        node.driver.prepare(ref)
        assert node.mps.requests.members(domain(node)) == {ref.uid}
        node.driver.unprepare(ref)
        assert node.left() == []


def test_where_compute_is_free_each_tenant_has_its_memory_and_all_sms(node: Node) -> None:
    node.divide(0, free_compute=True)
    with node.mps.supervised():
        ref = claim(node, share(0))
        node.driver.prepare(ref)
        assert node.mps.ask(domain(node), PERCENTAGE) == ["100.0"]
        assert node.mps.ask(domain(node), MEMORY) == [f"{mib(node) // 10 // 1024}G"]
        assert THREADS not in node.driver.env(ref, share(0))
        node.driver.unprepare(ref)


def test_a_share_waits_for_the_disk_as_often_as_a_whole_gpu_does(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.divide(0)
    waits: list[int] = []
    sync = os.fsync

    def counted(descriptor: int) -> None:
        waits.append(descriptor)
        sync(descriptor)

    def prepare(ref: ClaimRef) -> int:
        waits.clear()
        node.driver.prepare(ref)
        return len(waits)

    with node.mps.supervised():
        node.driver.prepare(claim(node, share(0), name="first"))
        monkeypatch.setattr(os, "fsync", counted)
        whole = prepare(claim(node, "gpu-1", name="whole"))
        assert prepare(claim(node, share(1), name="second")) == whole == 0


def test_a_device_stays_divided_over_a_reboot_for_pods_that_it_has_not_ended(node: Node) -> None:
    node.divide(0, strategy=ShareStrategy.TIME_SLICING)
    ref, gone = claim(node, share(0)), claim(node, share(1), name="gone")
    node.driver.prepare(ref)
    node.driver.prepare(gone)
    node.divide(0, count=4, strategy=ShareStrategy.TIME_SLICING)
    node.machine.reboot()
    node.restart()
    node.driver.reconciler(ReconcileTiming()).mend()
    part = Whole(gpu=node.gpu(0).uuid)
    assert set(node.driver.node_divisions.waiting([part.gpu])) == {part}
    node.driver.prepare(ref)
    node.driver.unprepare(gone)
    node.driver.unprepare(ref)
    assert node.driver.node_divisions.of(part) == node.driver.divisions[part]
    assert node.left() == []
