"""The fleet benchmark: what is published, what is asked for, and what is made of the numbers."""

from collections.abc import Iterator
from typing import Any

import pytest
from bench.fleet import allocator
from bench.fleet.placing import Taken, bound, placed
from bench.fleet.variants import (
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
