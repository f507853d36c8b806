"""The fleet benchmark: what is published, what is asked for, and what is made of the numbers."""

from collections.abc import Iterator
from typing import Any

import pytest
from bench.fleet import allocator
from bench.fleet.loads import LOADS, workload
from bench.fleet.placing import Taken, bound, placed
from bench.fleet.report import ratios, table
from bench.fleet.variants import (
    BASELINE,
    VARIANTS,
    Variant,
    auto_mig,
    devices,
    is_whole,
    nvidia_dynamic,
    offers,
    on_demand,
    serves,
    shares,
    whole_last,
    whole_only,
)
from testbed.apiserver.rules import check_slice

import make
from dra_driver.devices.model import Inventory
from dra_driver.slices.pool import DesiredPool

NODE = "node-1"


def hoppers(count: int = 2) -> Inventory:
    return make.inventory(*(make.gpu(minor, mig=make.mig()) for minor in range(count)))


def names(pool: DesiredPool) -> list[str]:
    return [str(device["name"]) for device in devices(pool)]


class TestVariants:
    @pytest.mark.parametrize("variant", VARIANTS.values(), ids=VARIANTS)
    def test_every_variant_publishes_slices_that_an_api_server_takes(
        self, variant: Variant
    ) -> None:
        pool = variant(hoppers(8), NODE)
        for index in range(len(pool.contents)):
            spec = pool.spec(index, generation=1)
            check_slice({"kind": "ResourceSlice", "metadata": {"name": "one"}, "spec": spec}, None)

    def test_those_with_partitions_publish_the_same_devices(self) -> None:
        published = [
            sorted(names(variant(hoppers(), NODE)))
            for variant in (on_demand, whole_last, nvidia_dynamic)
        ]
        assert published[0] == published[1] == published[2]
        assert len(published[0]) == 52

    def test_the_default_offers_the_partitions_of_gpus_in_mig_mode_and_others_whole(self) -> None:
        pool = auto_mig(hoppers(4), NODE)
        whole = [device for device in devices(pool) if is_whole(device)]
        assert sorted(str(device["name"]) for device in whole) == ["gpu-2", "gpu-3"]
        assert not any("consumesCounters" in device for device in whole)
        assert offers(pool, "1g.10gb")
        assert len(devices(pool)) == 2 + 2 * 25

    def test_a_load_is_for_those_that_offer_what_it_asks_for(self) -> None:
        assert serves(on_demand(hoppers(), NODE), "1g", "1g.10gb")
        assert not serves(whole_only(hoppers(), NODE), "1g", "1g.10gb")
        assert not serves(on_demand(make.inventory(), NODE), "1g", None)
        assert serves(whole_only(hoppers(), NODE), "whole", None)
        assert serves(shares(hoppers(), NODE), "whole-extended", None)


class TestAllocator:
    def test_the_last_whole_gpu_is_asked_for_while_those_before_it_are_in_use(self) -> None:
        found = allocator.cases(on_demand(hoppers(3), NODE), "1g.10gb")
        assert found["whole GPU, all free"]["inUse"] == []
        assert found["whole GPU, one free"]["inUse"] == ["gpu-2", "gpu-1"]
        assert "type.orValue('') == 'gpu'" in found["whole GPU, one free"]["class"]
        assert found["1g.10gb, all free"]["selector"].endswith("profile == '1g.10gb'")


class TestLoads:
    def test_each_pod_has_a_claim_of_its_own(self) -> None:
        work = workload("whole", 3, None)
        claimed = [pod["spec"]["resourceClaims"][0]["resourceClaimName"] for pod in work.pods]
        assert claimed == [claim["metadata"]["name"] for claim in work.claims]

    @pytest.mark.parametrize("load", LOADS)
    def test_names_of_pods_and_claims_are_unique(self, load: str) -> None:
        work = workload(load, 20, "1g.10gb")
        for things in (work.pods, work.claims):
            assert len({thing["metadata"]["name"] for thing in things}) == len(things)


def taken(at: float, cpu: float) -> Taken:
    return Taken(at=at, cpu={"kube-scheduler": cpu})


def test_a_load_has_a_rate_and_what_each_pod_took() -> None:
    assert placed(taken(10, 1), taken(12, 2), 4, 4) == {
        "pods": 4,
        "placed": 4,
        "seconds": 2,
        "pods_per_second": 2,
        "cpu_ms_per_pod": {"kube-scheduler": 250},
    }


def test_a_load_that_was_not_placed_as_a_whole_has_no_rate() -> None:
    assert placed(taken(10, 1), taken(300, 1), 2, 3) == {"pods": 3, "placed": 2}


class Watches:
    """A client whose watches end early, each after the pods that it is given."""

    def __init__(self, *watches: list[str]) -> None:
        self.left = list(watches)
        self.asked: list[str] = []
        self.version = 10

    def watch(self, _resource: object, *, query: dict[str, str]) -> Iterator[Any]:
        self.asked.append(query["resourceVersion"])
        for name in self.left.pop(0):
            self.version += 1
            metadata = {"name": name, "resourceVersion": str(self.version)}
            spec = {"nodeName": NODE} if name else {}
            yield {"type": "MODIFIED", "object": {"metadata": metadata, "spec": spec}}


def test_a_watch_that_ends_early_is_taken_up_where_it_ended() -> None:
    client = Watches(["a", ""], [], ["b", "a", "c"])
    seen = bound(client, "10", patience=60)  # type: ignore[arg-type]
    assert [next(seen) for _ in "abc"] == ["a", "b", "c"]
    assert client.asked == ["10", "12", "12"]


def result(*, rate: float, size: int, loads: tuple[str, ...], placed_pods: int = 60) -> Any:
    load = {
        "pods": 60,
        "placed": placed_pods,
        "pods_per_second": rate,
        "cpu_ms_per_pod": {"kube-scheduler": 10.0, "kube-apiserver": 5.0},
    }
    return {
        "devices_of_a_node": 8,
        "slices_of_a_node": 1,
        "allocator_us": {"whole GPU, all free": 40.0},
        "writes_of_a_second_look": 0,
        "roll_out": {"seconds": 1.0, "api_server_cpu_seconds": 0.5},
        "stored": {"json_bytes": 2 * size, "protobuf_bytes": size},
        "memory_mib": {"kube-apiserver": 300.0, "kube-scheduler": 100.0},
        "loads": dict.fromkeys(loads, load),
    }


RUN = {
    "nodes": 10,
    "profile": "h100x8",
    "variants": {
        BASELINE: result(rate=20, size=60_000, loads=("whole",)),
        "on-demand": result(rate=5, size=2_400_000, loads=("whole", "1g"), placed_pods=59),
    },
}


class TestReport:
    def test_ratios_are_to_the_baseline_of_the_same_run(self) -> None:
        found = ratios(RUN)
        assert set(found) == {"on-demand"}
        assert found["on-demand"]["whole: pods per second"] == 0.25
        assert found["on-demand"]["a node's slices in etcd, kB"] == 40

    def test_a_table_has_a_row_for_each_figure_and_says_what_was_not_placed(self) -> None:
        title, header, *rows = table(RUN)
        assert title == "10 nodes of h100x8; in parentheses ÷ whole-only"
        assert header.split() == [BASELINE, "on-demand"]
        cells = {row.split("  ")[0]: row.split() for row in rows}
        assert cells["a node's slices as JSON, kB"][-3:] == ["12", "480", "(40)"]
        assert cells["1g: pods per second"][-2:] == ["-", "5"]
        assert rows[-2:] == [
            "on-demand, whole: only 59 of 60 pods were placed",
            "on-demand, 1g: only 59 of 60 pods were placed",
        ]
