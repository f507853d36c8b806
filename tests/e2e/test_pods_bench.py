"""The benchmark of pods, for one round: every variant runs, and what was seen of it adds up."""

import pytest
from bench.pods.command import measure
from bench.pods.report import END, START
from bench.pods.rounds import NAMESPACE, Plan
from bench.pods.variants import BASELINE, MPS, VARIANTS
from testbed.commands import TestbedError
from testbed.node import GpuNode
from testbed.pods import wait_gone

from dra_driver.admin.doctor.facts.cluster_facts import Feature
from e2e.kubernetes import needs
from e2e.scene import Scene

pytestmark = [pytest.mark.e2e, pytest.mark.long("tests/unit/hack/test_pods_bench.py")]

AT_ONCE = 2


@pytest.mark.driver(MIG="on-demand", LOG_LEVEL="debug")  # each call of the kubelet
@needs(Feature.COUNTERS, Feature.EXTENDED_RESOURCE)
def test_pods_of_every_variant_run_and_the_driver_has_its_share(scene: Scene) -> None:
    node = scene.node
    variants = tuple(variant for variant in VARIANTS if variant != MPS or node.can_run_mps)
    plan = Plan(variants=variants, at_once=(AT_ONCE,), rounds=1, warm_up=0, rest=0)
    result = measure(node, plan)
    (case,) = result["cases"]
    assert tuple(case["variants"]) == variants
    assert len(result["pods"]) == AT_ONCE * len(variants)
    for pod in result["pods"]:
        took = pod["durations_ms"]
        assert took[END] > 0
        assert ("prepare" in took, "unprepare" in took) == (pod["variant"] != BASELINE,) * 2
        assert took[START] > took.get("prepare", 0)
    assert {variant["refused"] for variant in case["variants"].values()} == {0}
    assert case["ratios"].keys() == set(variants) - {BASELINE}


def test_a_pod_that_does_not_run_in_time_is_named_with_the_reason(node: GpuNode) -> None:
    plan = Plan(variants=(BASELINE,), at_once=(1,), rounds=1, warm_up=0, patience=0)
    with pytest.raises(TestbedError, match=r"vain for none-1-1-0 to run\npod none-1-1-0:"):
        measure(node, plan)
    wait_gone(node.cluster.api, NAMESPACE)
    assert node.cluster.api.all("ResourceClaim", NAMESPACE) == []
