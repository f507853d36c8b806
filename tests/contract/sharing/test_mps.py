"""MPS claims with NVIDIA's real control daemon, kept by a supervisor."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from dra_driver.claims.model.claim import ClaimRef
from dra_driver.claims.prepare.preparer import PrepareTiming
from dra_driver.claims.reconcile.reconciler import ReconcileTiming
from dra_driver.errors import DeviceError, TransientError
from dra_driver.mps import processes
from dra_driver.mps.domain import DomainId, State
from worlds.api import ClaimApi
from worlds.configs import HALF, LONG, PATIENCE
from worlds.node import MakeNode, Node

EXCLUSIVE_PROCESS = 3
PERCENTAGE = "get_default_active_thread_percentage"
MEMORY = "get_default_device_pinned_mem_limit"


def mps(**config: Any) -> dict[str, Any]:
    return {"strategy": "MPS", "mpsConfig": config}


def test_a_claim_is_served_by_a_daemon_with_its_limits_until_it_goes(node: Node) -> None:
    with node.mps.supervised():
        ref = node.claim_gpus({"a": HALF})
        node.driver.prepare(ref)
        assert node.ask(ref, PERCENTAGE) == ["50.0"]
        assert node.ask(ref, f"{MEMORY} 0") == ["10G"]
        assert node.compute_modes() == {0: EXCLUSIVE_PROCESS}
        assert node.driver.env(ref, "gpu-0") == {"CUDA_MPS_PIPE_DIRECTORY": "/tmp/nvidia-mps"}
        paths = node.mps.files.paths(DomainId(ref.uid))
        assert node.driver.mounts(ref, "gpu-0") == {
            "/dev/shm": str(paths.shm),
            "/tmp/nvidia-mps": str(paths.pipe),
        }
        node.driver.unprepare(ref)
        assert node.left() == []
        assert processes.marked(paths.folder) == []


def test_an_mps_config_without_settings_has_no_limits(node: Node) -> None:
    with node.mps.supervised():
        ref = node.claim_gpus({"a": {"strategy": "MPS"}})
        node.driver.prepare(ref)
        assert node.ask(ref, PERCENTAGE) == ["100.0"]
        node.driver.unprepare(ref)
        assert node.left() == []


def test_a_claim_may_limit_memory_alone_and_leave_compute_free(node: Node) -> None:
    with node.mps.supervised():
        ref = node.claim_gpus({"a": mps(defaultPinnedDeviceMemoryLimit="10Gi")})
        node.driver.prepare(ref)
        assert node.ask(ref, PERCENTAGE) == ["100.0"]
        assert node.ask(ref, f"{MEMORY} 0") == ["10G"]
        assert node.driver.env(ref, "gpu-0") == {"CUDA_MPS_PIPE_DIRECTORY": "/tmp/nvidia-mps"}
        node.driver.unprepare(ref)


def test_a_limit_need_not_be_a_whole_number_of_gibibytes(node: Node) -> None:
    with node.mps.supervised():
        ref = node.claim_gpus({"a": mps(defaultPinnedDeviceMemoryLimit="1500Mi")})
        node.driver.prepare(ref)
        assert node.ask(ref, f"{MEMORY} 0") == ["1G"]
        node.driver.unprepare(ref)
        assert node.left() == []


def test_requests_with_different_limits_share_one_daemon(node: Node) -> None:
    with node.mps.supervised():
        small = mps(defaultActiveThreadPercentage=20, defaultPinnedDeviceMemoryLimit="1Gi")
        large = mps(defaultActiveThreadPercentage=60, defaultPinnedDeviceMemoryLimit="3Gi")
        ref = node.claim_gpus({"small": small, "large": large})
        node.driver.prepare(ref)
        assert node.mps.requests.list() == {ref.uid}
        assert node.ask(ref, PERCENTAGE) == ["60.0"]
        ordinals = sorted([node.uuid(0), node.uuid(1)])
        limits = {uuid: node.ask(ref, f"{MEMORY} {number}") for number, uuid in enumerate(ordinals)}
        assert limits == {node.uuid(0): ["1G"], node.uuid(1): ["3G"]}
        assert node.driver.env(ref, "gpu-0")["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] == "20"
        assert "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE" not in node.driver.env(ref, "gpu-1")
        # A container that uses both requests is a client of that one daemon.
        assert node.driver.mounts(ref, "gpu-0") == node.driver.mounts(ref, "gpu-1")
        node.driver.unprepare(ref)
        assert node.left() == []


def test_a_time_sliced_and_an_mps_request_stand_in_one_claim(node: Node) -> None:
    with node.mps.supervised():
        ref = node.claim_gpus({"ts": LONG, "mps": HALF})
        node.driver.prepare(ref)
        assert node.time_slices() == {0: 3}
        assert node.compute_modes() == {1: EXCLUSIVE_PROCESS}
        assert node.driver.env(ref, "gpu-0") == {}
        assert "CUDA_MPS_PIPE_DIRECTORY" in node.driver.env(ref, "gpu-1")
        node.driver.unprepare(ref)
        assert node.left() == []


def test_a_repeated_prepare_waits_for_nothing_and_changes_nothing(node: Node) -> None:
    with node.mps.supervised():
        ref = node.claim_gpus({"a": HALF})
        node.driver.prepare(ref)
        before = node.mps.requests.status(DomainId(ref.uid))
        node.driver.prepare(ref)
        assert not node.driver.reconciler(ReconcileTiming()).mend()
        assert node.mps.requests.status(DomainId(ref.uid)) == before


def test_a_repeated_prepare_waits_until_a_dead_daemon_is_replaced(node: Node) -> None:
    with node.mps.supervised():
        ref = node.claim_gpus({"a": HALF})
        node.driver.prepare(ref)
        domain = node.mps.requests.desired(DomainId(ref.uid))
        assert domain is not None
        processes.kill(processes.marked(node.mps.files.paths(domain.id).folder), PATIENCE)
        node.mps.until(domain, lambda status: status.restarts == 1)
        node.driver.prepare(ref)
        status = node.mps.requests.status(domain.id)
        assert status is not None
        assert (status.state, status.restarts) == (State.READY, 1)


def test_a_daemon_that_cannot_start_says_why_and_leaves_nothing(node: Node) -> None:
    node.mps.wrap_control("echo no more GPUs for you; exit 1")
    with node.mps.supervised():
        with pytest.raises(DeviceError, match=r"MPS does not start: .*no more GPUs for you"):
            node.driver.prepare(node.claim_gpus({"a": HALF}))
        assert node.left() == []


def test_without_a_supervisor_a_claim_fails_soon_with_the_reason(make_node: MakeNode) -> None:
    node = make_node()
    node.sharing.domains._requests = node.mps.impatient  # type: ignore[attr-defined]
    with pytest.raises(DeviceError, match="the MPS supervisor is not running on this node"):
        node.driver.prepare(node.claim_gpus({"a": HALF}))
    assert node.left() == []


def test_a_gpu_is_not_given_on_before_its_daemon_has_ended(node: Node) -> None:
    ref = node.claim_gpus({"a": HALF, "b": None})
    with node.mps.supervised():
        node.driver.prepare(ref)
    node.sharing.domains._requests = node.mps.impatient  # type: ignore[attr-defined]
    node.driver.unprepare(ref)
    ((strategy, reason),) = node.driver.cleanups(ref)
    assert strategy == "MPS"
    assert "the MPS supervisor is not running" in reason
    free = node.claim_gpus({"a": None}, first=1, name="free")
    node.driver.prepare(free)
    other = node.claim_gpus({"a": None}, name="other")
    node.driver.preparer._timing = PrepareTiming(longest=0.2, margin=0.0)
    with pytest.raises(TransientError, match=r"GPU-.* cannot be used yet: MPS of an earlier claim"):
        node.driver.prepare(other)
    node.driver.preparer._timing = PrepareTiming(margin=0.0)
    node.sharing.domains._requests = node.mps.requests  # type: ignore[attr-defined]
    with node.mps.supervised():
        node.driver.prepare(other)
        assert node.compute_modes() == {}
        assert node.driver.cleanups(ref) == []
        node.driver.unprepare(other)
        node.driver.unprepare(free)
        assert node.left() == []


def test_a_slow_daemon_does_not_delay_a_claim_on_another_gpu(node: Node) -> None:
    gate, slow = node.root / "gate", node.uuid(0)
    node.mps.wrap_control(
        f'case "$*,$CUDA_VISIBLE_DEVICES" in -d,{slow}) until [ -e {gate} ]; do sleep 0.01; done;;'
        ' esac\nexec "$REAL" "$@"'
    )
    with node.mps.supervised(), ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(node.driver.prepare, node.claim_gpus({"a": HALF}, name="slow"))
        quick = node.claim_gpus({"a": HALF, "b": LONG}, first=1, name="quick")
        node.driver.prepare(quick)
        assert not waiting.done()
        node.driver.unprepare(quick)
        assert not waiting.done()
        gate.touch()
        waiting.result(PATIENCE)


def test_an_unrecorded_domain_ends_when_its_gpu_is_given_out(node: Node) -> None:
    with node.mps.supervised():
        ref = node.claim_gpus({"a": HALF})
        node.driver.prepare(ref)
        node.driver.claims.ledger.delete(ref.uid)
        assert node.driver.reconciler(ReconcileTiming()).mend() == {ref.uid}
        assert node.compute_modes() == {0: 3}, "it may be in use"
        node.driver.prepare(node.claim_gpus({"a": None}, name="other"))
        assert node.compute_modes() == {}
        assert node.mps.requests.list() == frozenset()


def test_a_claim_whose_record_is_lost_has_no_daemon_left_when_its_end_is_answered(
    node: Node,
) -> None:
    with node.mps.supervised():
        ref = node.claim_gpus({"a": HALF})
        node.driver.prepare(ref)
        node.driver.claims.ledger.delete(ref.uid)
        node.driver.unprepare(ref)
        assert node.left() == []


def test_a_daemon_that_outlives_the_answer_keeps_its_gpu_from_others(node: Node) -> None:
    ref = node.claim_gpus({"a": HALF})
    with node.mps.supervised():
        node.driver.prepare(ref)
    node.driver.claims.ledger.delete(ref.uid)
    node.driver.unprepare(ref, seconds=0.5)
    other = node.claim_gpus({"a": None}, name="other")
    with pytest.raises(TransientError, match="whose record is lost, has not ended"):
        node.driver.prepare(other, seconds=0.5)
    with node.mps.supervised():
        node.driver.prepare(other)
        assert node.compute_modes() == {}
        node.driver.unprepare(other)
        assert node.left() == []


def prepared_before_a_reboot(node: Node) -> ClaimRef:
    ref = node.claim_gpus({"a": HALF})
    with node.mps.supervised():
        node.driver.prepare(ref)
    node.mps.clean()
    node.machine.reboot("boot-2")
    return ref


def test_after_a_reboot_the_domain_of_a_claim_that_is_gone_is_taken_back(node: Node) -> None:
    ref = prepared_before_a_reboot(node)
    node.restart(api=ClaimApi())
    with node.mps.supervised():
        domain = node.mps.requests.desired(DomainId(ref.uid))
        assert domain is not None
        # The supervisor is up first and finds the request of the former boot.
        node.mps.until(domain, lambda status: status.state is State.READY)
        other = node.claim_gpus({"a": None}, name="other")
        node.driver.prepare(other)
        assert node.compute_modes() == {}
        node.driver.unprepare(other)
        node.driver.unprepare(ref)
        assert node.left() == []


def test_after_a_reboot_the_start_takes_back_what_waits_for_its_pod(node: Node) -> None:
    ref = prepared_before_a_reboot(node)
    node.restart()
    with node.mps.supervised():
        assert node.driver.reconciler(ReconcileTiming()).mend() == set()
        assert node.mps.requests.list() == frozenset()
        node.driver.prepare(ref)
        assert node.ask(ref, PERCENTAGE) == ["50.0"]
        node.driver.unprepare(ref)
        assert node.left() == []
