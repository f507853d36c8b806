"""What published slices mean."""

import pytest

import make
from doctored import severities
from dra_driver.admin.doctor.checks import slice_checks
from dra_driver.admin.doctor.checks.finding import Severity
from dra_driver.slices.consumable import Consumable
from dra_driver.slices.offer.shares import ShareOffer
from dra_driver.slices.project import projection
from published import Object, device, slices

GPUS = [device("gpu-0"), device("gpu-1")]


def test_a_cluster_without_slices_is_an_error() -> None:
    assert severities(slice_checks.published([], "")) == [Severity.ERROR]
    (seen,) = slice_checks.published([], "node-7")
    assert "for node node-7" in seen.text


def test_a_node_that_offers_nothing_is_a_warning() -> None:
    seen = list(slice_checks.published([*slices(GPUS, node="a"), *slices([], node="b")], ""))
    assert severities(seen) == [Severity.OK, Severity.WARNING]
    assert "b: nothing is offered" in seen[1].text


def test_a_pool_that_is_not_whole_is_a_warning() -> None:
    (half,) = slices(GPUS)
    half["spec"]["pool"]["resourceSliceCount"] = 2
    (seen,) = slice_checks.published([half], "")
    assert seen.severity is Severity.WARNING
    assert "pool node-1" in seen.text


def test_slices_that_are_not_named_as_ours_are_anothers() -> None:
    ours = slices(GPUS, node="a")
    assert severities(slice_checks.of_others(ours)) == [Severity.OK]
    (theirs,) = slices(GPUS, node="b")
    theirs["metadata"]["name"] = "b-gpu.nvidia.com-x7k2p"
    (seen,) = slice_checks.of_others([*ours, theirs])
    assert seen.severity is Severity.ERROR
    assert "for b: b-gpu.nvidia.com-x7k2p" in seen.text


def node_called(name: str) -> Object:
    return {"metadata": {"name": name}}


def squatting(here: str, *, name: str = "", pool: str = "") -> Object:
    (one,) = slices(GPUS, node=here)
    one["metadata"]["name"] = name or one["metadata"]["name"]
    one["spec"]["pool"]["name"] = pool or here
    return one


NODES = [node_called(name) for name in ("a", "a-b", "evil")]


def test_slices_named_after_their_node_are_fine() -> None:
    names = ("00000-gpu.nvidia.com-a", "00000-12ab34cd-gpu.nvidia.com-a", "a-gpu.nvidia.com-x7k2p")
    names += ("00001-gpu.nvidia.com-a-x7k2p",)  # the API server's end of a name, and of no node
    one = [squatting("a", name=name) for name in names]
    assert list(slice_checks.in_others_names(one, NODES, "")) == []
    assert severities(slice_checks.of_others(one[:2])) == [Severity.OK]


def test_a_slice_in_another_nodes_pool_is_named_with_what_to_do() -> None:
    one = squatting("evil", pool="a")
    (seen,) = slice_checks.in_others_names([*slices(GPUS, node="a"), one], NODES, "")
    assert seen.severity is Severity.ERROR
    assert "ResourceSlice 00000-gpu.nvidia.com-evil of evil uses the pool of a:" in seen.text
    assert seen.advice is not None
    assert seen.advice.startswith("kubectl delete resourceslice 00000-gpu.nvidia.com-evil")
    assert "credentials of evil" in seen.advice


def test_a_foreign_slice_name_is_reported_to_both_nodes() -> None:
    one = squatting("evil", name="00000-gpu.nvidia.com-a-b")
    for asked in ("", "a-b", "evil"):
        (seen,) = slice_checks.in_others_names([one], NODES, asked)
        assert "of evil has the name of a slice of a-b" in seen.text
    assert list(slice_checks.in_others_names([one], NODES, "a")) == []


def test_the_cost_of_counters_is_reported_before_1_37() -> None:
    plain = slices(GPUS, node="a")
    counting = slices(GPUS, node="b")
    counting[0]["spec"]["sharedCounters"] = [{"name": "gpu-0-counter-set", "counters": {}}]
    both = [*plain, *counting]
    (seen,) = slice_checks.counters_cost(both, "v1.36.2")
    assert seen.severity is Severity.WARNING
    assert "1 node with counters: b" in seen.text
    assert "1.1 pods a second instead of 44" in seen.text
    assert severities(slice_checks.counters_cost(both, "v1.37.0")) == [Severity.OK]
    assert severities(slice_checks.counters_cost(plain, "v1.36.2")) == [Severity.OK]


@pytest.mark.parametrize(
    ("version", "is_hit"),
    [("v1.35.4", True), ("v1.36.1+k3s1", True), ("v1.36.2", False), ("v1.37.0", False)],
)
def test_a_scheduler_that_forgets_parts_is_warned_of_where_they_take_counters(
    version: str, is_hit: bool
) -> None:
    parts = Consumable.of("memory")
    gpus = make.inventory(make.gpu(0, mig=make.mig()))
    found = projection(gpus, share=ShareOffer(consumable=parts), memory_counters=True)
    both = slices(found.devices, found.counter_sets)
    said = [seen.text for seen in slice_checks.counters_cost(both, version)]
    assert any("can give out a GPU of node-1 twice" in text for text in said) == is_hit
    alone = slices(
        projection(make.inventory(make.gpu(0)), share=ShareOffer(consumable=parts)).devices
    )
    assert not any("twice" in seen.text for seen in slice_checks.counters_cost(alone, version))


def rule(selector: Object, effect: str = "NoSchedule") -> Object:
    taint = {"key": "maintenance", "value": "firmware", "effect": effect}
    spec = {"deviceSelector": selector, "taint": taint}
    return {"metadata": {"name": "firmware-work"}, "spec": spec}


@pytest.mark.parametrize(
    ("selector", "whose"),
    [({}, "of every driver"), ({"driver": "gpu.nvidia.com"}, "of gpu.nvidia.com")],
)
def test_a_rule_that_taints_all_gpus_is_a_warning(selector: Object, whose: str) -> None:
    (seen,) = slice_checks.taint_rules([rule(selector)])
    assert seen.severity is Severity.WARNING
    assert seen.text.startswith(f"DeviceTaintRule firmware-work taints every device {whose} (main")
    (seen,) = slice_checks.taint_rules([rule(selector, "NoExecute")])
    assert "pods that have one are evicted" in seen.text


@pytest.mark.parametrize(
    "harmless",
    [
        rule({"driver": "gpu.nvidia.com", "pool": "node-1"}),
        rule({"driver": "net.example.com"}),
        rule({}, "None"),
        {"metadata": {"name": "nothing"}, "spec": {"taint": {"effect": "NoSchedule"}}},
    ],
)
def test_a_narrow_or_ineffective_rule_is_fine(harmless: Object) -> None:
    assert severities(slice_checks.taint_rules([harmless])) == [Severity.OK]
