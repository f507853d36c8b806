"""What is published of devices that are divided into shares."""

from collections.abc import Mapping
from typing import Any

from msgspec.structs import replace

import make
from dra_driver.devices.model import Gpu, GpuUuid, MigDevice, MigMode
from dra_driver.devices.shares import Division, ShareStrategy
from dra_driver.slices.offer.mig import MigOffer, MigSource
from dra_driver.slices.offer.shares import ShareOffer
from dra_driver.slices.pool import build_slices
from dra_driver.slices.project import Projection, projection
from resource_nvidia_com.quantity import quantity_bytes

TEN = Division(count=10, strategy=ShareStrategy.MPS, served_as="nvidia.com/gpu", combines=False)
T4 = make.gpu(0, product_name="Tesla T4", cuda_compute_capability=(7, 5), memory_bytes=15 * 1024**3)
H100 = make.gpu(0, mig=make.mig())


def offer(*gpus: Gpu, division: Division = TEN, **changes: Any) -> ShareOffer:
    return ShareOffer(divisions={make.place(gpu): division for gpu in gpus}, **changes)


def project(*gpus: Gpu, division: Division = TEN, **changes: Any) -> Projection:
    share = changes.pop("share", offer(*gpus, division=division))
    return projection(make.inventory(*gpus), share=share, **changes)


def names(found: Projection) -> list[str]:
    return [str(one["name"]) for one in found.devices]


def device(found: Projection, name: str) -> Mapping[str, Any]:
    (one,) = (one for one in found.devices if one["name"] == name)
    return one


def consumed(found: Projection, name: str) -> dict[str, int]:
    """What a device consumes; memory in MiB."""
    (entry,) = device(found, name)["consumesCounters"]
    return amounts(entry["counters"])


def counters(found: Projection) -> dict[str, int]:
    (one,) = found.counter_sets
    return amounts(one["counters"])


def amounts(counters: Any) -> dict[str, int]:
    found = {name: quantity_bytes(amount["value"]) for name, amount in counters.items()}
    return {name: value // 1024**2 if name == "memory" else value for name, value in found.items()}


def test_a_card_without_mig_is_published_whole_and_in_shares() -> None:
    found = project(T4)
    assert names(found) == ["gpu-0", *(f"gpu-0-single-share-{n}-of-10" for n in range(10))]
    assert counters(found) == {"shares": 10, "memory": 15360}
    assert consumed(found, "gpu-0") == {"shares": 10, "memory": 15360}
    assert consumed(found, "gpu-0-single-share-3-of-10") == {"shares": 1, "memory": 1536}


def test_a_share_has_exporters_attributes_and_its_own() -> None:
    found = project(T4)
    attributes = device(found, "gpu-0-single-share-3-of-10")["attributes"]
    assert attributes["type"] == {"string": "gpu"}
    assert attributes["uuid"] == {"string": T4.uuid}
    assert attributes["productName"] == {"string": "Tesla T4"}
    assert attributes["resourceName"] == {"string": "nvidia.com/gpu"}
    assert attributes["replicas"] == {"int": 10}
    capacity = device(found, "gpu-0-single-share-3-of-10")["capacity"]
    assert capacity == {"memory": {"value": "1536Mi"}}
    whole = device(found, "gpu-0")["attributes"]
    assert whole["sharedAs"] == {"string": "nvidia.com/gpu"}
    assert not whole.keys() & {"resourceName", "replicas"}


def test_nothing_changes_for_a_gpu_that_is_not_divided() -> None:
    other = make.gpu(1, mig=make.mig())
    found = project(T4, other, share=offer(T4))
    alone = projection(make.inventory(other))
    assert [one for one in found.devices if str(one["name"]).startswith("gpu-1")] == list(
        alone.devices
    )


def test_shares_partitions_and_the_whole_exclude_each_other_but_not_their_like() -> None:
    found = project(H100)
    there = counters(found)
    share, other = (consumed(found, f"gpu-0-single-share-{n}-of-10") for n in (0, 1))
    whole = consumed(found, "gpu-0")
    partition = consumed(found, "gpu-0-mig-1g10gb-19-0")
    beside = consumed(found, "gpu-0-mig-1g10gb-19-1")
    assert share == other

    def fit(*used: Mapping[str, int]) -> bool:
        return all(sum(one.get(name, 0) for one in used) <= most for name, most in there.items())

    assert fit(*[share] * 10)
    assert not fit(*[share] * 11)
    assert fit(partition, beside)
    assert fit(whole)
    assert not fit(whole, share)
    assert not fit(partition, share)
    assert not fit(partition, whole)
    assert device(found, "gpu-0")["attributes"]["sharedAs"] == {"string": "nvidia.com/gpu"}


def test_without_counters_shares_are_all_that_is_published() -> None:
    found = project(H100, with_counters=False)
    assert names(found) == [f"gpu-0-single-share-{n}-of-10" for n in range(10)]
    assert "DRAPartitionableDevices" in found.notes[0].text


def test_shares_come_after_whole_gpus_and_before_partitions() -> None:
    found = names(project(H100, make.gpu(1, mig=make.mig())))
    kinds = ["share" if "share" in name else "mig" if "mig" in name else "whole" for name in found]
    assert kinds == sorted(kinds, key=["whole", "share", "mig"].index)


def test_shares_are_spread_over_gpus_or_packed_as_the_config_says() -> None:
    two = replace(TEN, count=2)
    gpus = (make.gpu(0), make.gpu(1))

    def order(division: Division, *, packed: bool = False) -> list[str]:
        found = project(*gpus, share=offer(*gpus, division=division, packed=packed))
        shares = (name.replace(division.kind, "") for name in names(found) if "share" in name)
        return [name.removesuffix("-of-2") for name in shares]

    spread = ["gpu-0--0", "gpu-1--0", "gpu-0--1", "gpu-1--1"]
    assert order(two) == spread
    assert order(two, packed=True) == sorted(spread)
    assert order(replace(two, combines=True)) == sorted(spread)
    sliced = replace(two, combines=True, strategy=ShareStrategy.TIME_SLICING)
    assert order(sliced) == spread


def test_shares_of_a_gpu_that_waits_for_a_new_division_come_last() -> None:
    gpus = (make.gpu(0), make.gpu(1))
    old, new = replace(TEN, count=2), replace(TEN, count=2, combines=True)
    places = [make.place(gpu) for gpu in gpus]
    divisions = dict(zip(places, (old, new), strict=True))
    waiting = ShareOffer(divisions=divisions, waiting=frozenset(places[:1]), alone="a setting")
    assert names(project(*gpus, share=waiting)) == [
        *(f"gpu-1-mps-share-{index}-of-2" for index in range(2)),
        *(f"gpu-0-single-share-{index}-of-2" for index in range(2)),
    ]


def test_a_gpu_that_serves_no_resource_name_is_published_as_a_whole_for_claims() -> None:
    found = project(T4, share=ShareOffer(unserved={make.place(T4): "nvidia.com/gpu"}))
    attributes = device(found, "gpu-0")["attributes"]
    assert attributes["sharedAs"] == {"string": "nvidia.com/gpu"}
    assert "replicas" not in attributes


def test_a_device_that_cannot_be_divided_as_asked_is_withheld_with_the_reason() -> None:
    found = project(T4, share=ShareOffer(refused={make.place(T4): "48 at most"}))
    assert found.devices == ()
    assert [(one.index, one.reason) for one in found.withheld] == [(0, "48 at most")]


def mig_gpu(*devices: MigDevice) -> Gpu:
    return make.gpu(0, mig=make.mig(*devices), mig_mode=MigMode.ENABLED)


def test_a_mig_device_that_others_made_is_published_whole_and_in_shares() -> None:
    one, other = make.mig_device(0, "2g.20gb", 0), make.mig_device(0, "2g.20gb", 2)
    half = Division(
        count=2,
        strategy=ShareStrategy.TIME_SLICING,
        served_as="nvidia.com/mig-2g.20gb",
        combines=True,
    )
    share = ShareOffer(divisions={make.place(one): half})
    existing = MigOffer(source=MigSource.EXISTING, why="a setting")
    found = project(mig_gpu(one, other), share=share, mig=existing)
    assert names(found) == [
        "gpu-0-mig-2g20gb-14-0",
        "gpu-0-mig-2g20gb-14-2",
        "gpu-0-mig-2g20gb-14-0-share-0-of-2",
        "gpu-0-mig-2g20gb-14-0-share-1-of-2",
    ]
    assert counters(found) == {"mig-14-0-shares": 2, "memory": 81152}
    whole = consumed(found, "gpu-0-mig-2g20gb-14-0")
    assert whole == {"mig-14-0-shares": 2, "memory": 19968}
    undivided = device(found, "gpu-0-mig-2g20gb-14-0")["attributes"]
    assert undivided["sharedAs"] == {"string": "nvidia.com/mig-2g.20gb"}
    share_of_it = consumed(found, "gpu-0-mig-2g20gb-14-0-share-1-of-2")
    assert share_of_it == {"mig-14-0-shares": 1, "memory": 9984}
    assert consumed(found, "gpu-0-mig-2g20gb-14-2") == {"memory": 19968}
    piece = device(found, "gpu-0-mig-2g20gb-14-0-share-1-of-2")
    assert piece["attributes"]["type"] == {"string": "mig"}
    assert piece["attributes"]["uuid"] == {"string": one.uuid}
    assert piece["attributes"]["resourceName"] == {"string": "nvidia.com/mig-2g.20gb"}
    assert piece["capacity"] == {"memory": {"value": "9984Mi"}}


def test_a_gpu_that_others_put_in_mig_mode_has_no_shares() -> None:
    found = project(mig_gpu(make.mig_device(0, "2g.20gb", 0)))
    assert not any("share" in name for name in names(found))


def test_eight_gpus_with_ten_shares_and_their_partitions_are_a_pool_that_the_api_takes() -> None:
    gpus = [make.gpu(minor, mig=make.mig()) for minor in range(8)]
    found = project(*gpus)
    pool = build_slices(found.devices, driver="d", node_name="n", counter_sets=found.counter_sets)
    assert sum("share" in name for name in names(found)) == 80
    for content in pool.contents:
        devices: Any = content.get("devices", [])
        assert len(devices) <= 64
        for one in devices:
            assert len(one["attributes"]) + len(one["capacity"]) <= 32
            assert all(len(each["counters"]) <= 32 for each in one.get("consumesCounters", []))


def test_reserved_memory_is_not_divided() -> None:
    card = make.gpu(0, memory_bytes=81559 * 1024**2, memory_reserved_bytes=550 * 1024**2)
    tenth = device(project(card), "gpu-0-single-share-0-of-10")["capacity"]["memory"]["value"]
    assert tenth == "8100Mi"  # ten of 8155 MiB would be 541 MiB more than there are


def test_a_card_of_unknown_memory_has_shares_of_0_bytes() -> None:
    found = project(make.gpu(0, memory_bytes=None, uuid=GpuUuid(T4.uuid)))
    assert device(found, "gpu-0-single-share-0-of-10")["capacity"] == {"memory": {"value": "0"}}


def test_a_mig_device_under_the_name_of_gpus_is_marked() -> None:
    one = make.mig_device(0, "2g.20gb", 0)
    share = ShareOffer(serving={make.place(one): "nvidia.com/gpu"})
    existing = MigOffer(source=MigSource.EXISTING, why="a setting")
    found = project(mig_gpu(one), share=share, mig=existing)
    (published,) = found.devices
    assert device(found, str(published["name"]))["attributes"]["resourceName"] == {
        "string": "nvidia.com/gpu"
    }
