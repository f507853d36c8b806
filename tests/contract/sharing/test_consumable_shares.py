"""Claims with parts of one device by consumable capacity: several share ids on one GPU."""

import pytest

import make
from dra_driver.cdi.model import claim_device_name
from dra_driver.claims.reconcile.reconciler import ReconcileTiming
from dra_driver.devices.shares import ShareStrategy
from dra_driver.errors import ConflictError
from dra_driver.mps.domain import DomainId, shared_domain
from worlds.node import MakeNode, Node

EXCLUSIVE_PROCESS = 3
LIMIT = "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"
THREADS = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"
SLICED = make.config(sharing={"strategy": "TimeSlicing"})


@pytest.fixture
def node(make_node: MakeNode) -> Node:
    return make_node()


def domain(node: Node, minor: int = 0) -> DomainId:
    return shared_domain(node.uuid(minor))


def test_each_claim_is_limited_to_what_it_consumed_and_all_use_one_daemon(node: Node) -> None:
    with node.mps.supervised():
        first = node.claim_parts("one", memory="10Gi", cores=20)
        second = node.claim_parts("two", memory="40Gi")
        third = node.claim_parts("three", memory="0", cores=5)
        for ref in (first, second, third):
            node.driver.prepare(ref)
        assert node.mps.requests.list() == {domain(node)}
        assert node.compute_modes() == {0: EXCLUSIVE_PROCESS}
        found = node.part_env(first, "one")
        assert (found[THREADS], found[LIMIT]) == ("20", f"{node.uuid(0)}=10240M")
        found = node.part_env(second, "two")
        assert found[LIMIT] == f"{node.uuid(0)}=40960M"
        assert THREADS not in found
        found = node.part_env(third, "three")
        assert found[THREADS] == "5"
        assert LIMIT not in found
        for ref in (first, second):
            node.driver.unprepare(ref)
        assert node.compute_modes() == {0: EXCLUSIVE_PROCESS}
        node.driver.unprepare(third)
        assert node.left() == []


def test_the_share_id_is_in_the_answer_the_record_and_the_name_of_the_cdi_device(
    node: Node,
) -> None:
    ref = node.claim_parts("one", configs=())
    (device,) = node.driver.prepare(ref)
    assert (device.name, device.share_id) == ("gpu-0", "one")
    (name,) = [each["name"] for each in node.driver.spec(ref)["devices"]]
    assert device.cdi_device_ids == (f"k8s.gpu.nvidia.com/claim={name}",)
    assert name == claim_device_name(ref.uid, "gpu-0", "one")
    record = node.driver.claims.ledger.read(ref.uid)
    assert record is not None
    (entry,) = record.devices
    assert entry.share_id == "one"
    assert entry.device.share.memory_mib == 10240  # type: ignore[union-attr]
    assert node.driver.prepare(ref) == (device,)
    node.driver.unprepare(ref)
    assert node.left() == []


def test_without_a_config_claims_are_time_sliced_and_nothing_is_set(node: Node) -> None:
    refs = [node.claim_parts(name, configs=()) for name in ("one", "two", "three")]
    for ref in refs:
        node.driver.prepare(ref)
        assert node.part_env(ref, ref.name) == {}
    assert (node.compute_modes(), node.time_slices()) == ({}, {})
    for ref in refs:
        node.driver.unprepare(ref)
    assert node.left() == []


def test_the_first_claim_decides_how_a_gpu_is_used(node: Node) -> None:
    with node.mps.supervised():
        first, second = node.claim_parts("one"), node.claim_parts("two", configs=(SLICED,))
        node.driver.prepare(first)
        with pytest.raises(
            ConflictError, match=r"used by MPS by claim default/one .*the first one chose"
        ):
            node.driver.prepare(second)
        node.driver.unprepare(first)
        node.driver.prepare(second)
        with pytest.raises(ConflictError, match="used by TimeSlicing by claim default/two"):
            node.driver.prepare(first)
        node.driver.unprepare(second)
        assert node.left() == []


def test_a_pod_by_its_resource_name_uses_a_gpu_as_its_class_says_and_in_turns_else(
    node: Node,
) -> None:
    """The scheduler makes its claim: that has no config of its own, and consumes the defaults."""
    by_class = make.config(source="FromClass", sharing={"strategy": "MPS"})
    tenant = node.claim_parts("tenant")
    plain, limited = (
        node.claim_parts(name, memory="0", configs=configs)
        for name, configs in (("plain", ()), ("limited", (by_class,)))
    )
    with node.mps.supervised():
        node.driver.prepare(tenant)
        with pytest.raises(ConflictError, match="used by MPS by claim default/tenant"):
            node.driver.prepare(plain)
        node.driver.prepare(limited)
        found = node.part_env(limited, "limited")
        assert "CUDA_MPS_PIPE_DIRECTORY" in found
        assert not {LIMIT, THREADS} & found.keys()
        for ref in (tenant, limited):
            node.driver.unprepare(ref)
        node.driver.prepare(plain)
        assert node.part_env(plain, "plain") == {}
        node.driver.unprepare(plain)
        assert node.left() == []


def test_whole_gpus_partitions_and_replicas_are_refused_beside_a_consumable_share(
    node: Node,
) -> None:
    node.driver.prepare(node.claim_parts("one", configs=()))
    others = [node.claim("gpu-0", name="whole"), node.claim(node.name("1g.10gb", 0), name="mig")]
    node.divide(0, strategy=ShareStrategy.TIME_SLICING)
    others.append(node.claim("gpu-0-single-share-0-of-10", name="replica"))
    for ref in others:
        with pytest.raises(ConflictError, match="already allocated to different claim default/one"):
            node.driver.prepare(ref)


def test_a_consumable_share_is_refused_beside_a_whole_gpu_and_beside_replicas(node: Node) -> None:
    whole = node.claim("gpu-0", name="whole")
    node.driver.prepare(whole)
    ref = node.claim_parts("one", configs=())
    with pytest.raises(ConflictError, match="already allocated to different claim default/whole"):
        node.driver.prepare(ref)
    node.driver.unprepare(whole)
    node.divide(0, strategy=ShareStrategy.TIME_SLICING)
    node.driver.prepare(node.claim("gpu-0-single-share-0-of-10", name="replica"))
    with pytest.raises(ConflictError, match="already allocated to different claim default/replica"):
        node.driver.prepare(ref)


def test_a_gpu_with_a_consumable_share_is_not_divided_until_it_is_given_back(node: Node) -> None:
    ref = node.claim_parts("one", configs=())
    node.driver.prepare(ref)
    uuid = node.gpu(0).uuid
    node.divide(0, strategy=ShareStrategy.TIME_SLICING)
    divisions = node.driver.node_divisions
    assert divisions.on([uuid], with_counters=False) == {}
    node.driver.unprepare(ref)
    assert len(divisions.on([uuid], with_counters=False)) == 1


def test_admin_access_sees_the_whole_device_and_blocks_nobody(node: Node) -> None:
    tenant, admin = node.claim_parts("one", configs=()), node.claim_parts("two", configs=())
    node.driver.api.results(admin)[0]["adminAccess"] = True
    node.driver.prepare(tenant)
    (device,) = node.driver.prepare(admin)
    assert device.share_id == "two"
    whole = node.claim("gpu-0", name="whole")
    node.driver.unprepare(tenant)
    node.driver.prepare(whole)


def test_a_claim_keeps_its_part_when_the_driver_comes_back(node: Node) -> None:
    with node.mps.supervised():
        ref = node.claim_parts("one", "two", cores=10)
        answer = node.driver.prepare(ref)
        spec = node.driver.spec(ref)
        node.restart()
        node.driver.specs.delete(ref.uid)
        assert node.driver.reconciler(ReconcileTiming()).mend() == set()
        assert node.driver.spec(ref) == spec
        assert node.driver.prepare(ref) == answer
        node.driver.unprepare(ref)
        assert node.left() == []
