"""MPS on MIG devices, made for a claim, with NVIDIA's real control daemon kept by a supervisor."""

import pytest

import make
from dra_driver.claims.reconcile.reconciler import ReconcileTiming
from dra_driver.errors import ConfigError
from dra_driver.mps.domain import DomainId
from worlds.configs import HALF
from worlds.node import Node


def test_each_mig_device_of_a_claim_has_a_daemon_that_goes_before_it(node: Node) -> None:
    with node.mps.supervised():
        ref = node.claim_migs(0, 1)
        node.driver.prepare(ref)
        assert len(node.migs()) == 2
        domains = [f"{ref.uid}_mig_{number}" for number in range(2)]
        assert sorted(node.mps.requests.list()) == domains
        for domain in map(DomainId, domains):
            assert node.mps.ask(domain, "get_default_active_thread_percentage") == ["50.0"]
            # A 1g.10gb has less than the 10Gi that are asked for.
            assert node.mps.ask(domain, "get_default_device_pinned_mem_limit 0") == ["9G"]
        assert node.compute_modes() == {}
        node.driver.unprepare(ref)
        assert len(node.migs()) == 0
        assert node.left() == []


def test_without_a_supervisor_the_pod_ends_and_the_mig_device_goes_later(node: Node) -> None:
    with node.mps.supervised():
        ref = node.claim_migs(3)
        node.driver.prepare(ref)
    node.driver.unprepare(ref, 1.0)
    assert len(node.migs()) == 1
    assert [strategy for strategy, _ in node.driver.cleanups(ref)] == ["MIG", "MIG", "MPS"]
    with node.mps.supervised():
        assert node.driver.reconciler(ReconcileTiming()).mend() == set()
        assert len(node.migs()) == 0
        assert node.left() == []


@pytest.mark.parametrize("named", [("gpu",), ()])
def test_limits_for_whole_gpus_are_refused_for_a_mig_device(
    node: Node, named: tuple[str, ...]
) -> None:
    """The scheduler of Kubernetes 1.37 names no request where a config names all of them."""
    ref = node.claim(node.name("1g.10gb", 0))
    object_ = node.driver.api.claims[ref.namespace, ref.name]
    make.schedule_configs(object_, make.config(*named, sharing=HALF))
    assert "requests" not in object_["status"]["allocation"]["devices"]["config"][0]
    with pytest.raises(ConfigError, match=r"GpuConfig .*write a MigDeviceConfig"):
        node.driver.prepare(ref)
    assert node.left() == []
