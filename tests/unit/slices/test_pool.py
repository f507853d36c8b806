"""A node's devices spread over ResourceSlices."""

import re

import pytest

from dra_driver.slices.pool import build_slices, new_tag


def devices(count: int, **more: object) -> list[dict[str, object]]:
    return [{"name": f"gpu-{minor}", **more} for minor in range(count)]


def counters(count: int) -> list[dict[str, object]]:
    return [
        {"name": f"gpu-{minor}-counter-set", "counters": {"memory": {"value": "80Gi"}}}
        for minor in range(count)
    ]


def test_no_devices_make_one_empty_slice() -> None:
    pool = build_slices([], driver="d.example", node_name="n1")
    assert pool.spec(0, generation=3) == {
        "driver": "d.example",
        "nodeName": "n1",
        "pool": {"name": "n1", "generation": 3, "resourceSliceCount": 1},
        "devices": [],
    }
    assert len(pool.contents) == 1


@pytest.mark.parametrize(
    ("count", "sizes"), [(1, [1]), (64, [64]), (65, [64, 1]), (129, [64, 64, 1])]
)
def test_devices_keep_their_order_and_fill_slice_after_slice(count: int, sizes: list[int]) -> None:
    pool = build_slices(devices(count), driver="d.example", node_name="n1")
    parts = [content["devices"] for content in pool.contents]
    assert [len(part) for part in parts] == sizes  # type: ignore[arg-type]
    assert [device["name"] for part in parts for device in part] == [  # type: ignore[attr-defined]
        f"gpu-{minor}" for minor in range(count)
    ]


def test_counters_come_first_in_slices_of_their_own_eight_at_most() -> None:
    consumed = [{"counterSet": "gpu-8-counter-set", "counters": {"memory": {"value": "1Gi"}}}]
    pool = build_slices(
        devices(2, consumesCounters=consumed),
        counter_sets=counters(9),
        driver="d.example",
        node_name="n1",
    )
    assert [list(content) for content in pool.contents] == [
        ["sharedCounters"],
        ["sharedCounters"],
        ["devices"],
    ]
    assert [len(content["sharedCounters"]) for content in pool.contents[:2]] == [8, 1]  # type: ignore[arg-type]


def test_names_sort_in_the_order_of_the_slices() -> None:
    pool = build_slices(devices(64 * 20), driver="d.example", node_name="n1")
    names = [pool.slice_name(index) for index in range(20)]
    assert names[0] == "00000-d.example-n1"
    assert names[17] == "00011-d.example-n1"
    assert names == sorted(names)


def test_names_end_in_the_whole_name_of_their_node() -> None:
    pool = build_slices([], driver="d.example", node_name="n" * 63)
    assert pool.slice_name(0) == f"00000-d.example-{'n' * 63}"
    tagged = pool.slice_name(0, tag=new_tag())
    assert re.fullmatch(rf"00000-[0-9a-f]{{8}}-d\.example-{'n' * 63}", tagged)
    assert tagged != pool.slice_name(0, tag=new_tag())


def test_two_devices_of_one_name_are_refused() -> None:
    with pytest.raises(ValueError, match="two devices are named gpu-0"):
        build_slices([*devices(70), *devices(1)], driver="d.example", node_name="n1")


def test_two_counter_sets_of_one_name_are_refused() -> None:
    with pytest.raises(ValueError, match="two counter sets"):
        build_slices([], counter_sets=counters(1) * 2, driver="d.example", node_name="n1")


@pytest.mark.parametrize(
    "consumed",
    [
        {"counterSet": "unknown", "counters": {"memory": {"value": "1"}}},
        {"counterSet": "gpu-0-counter-set", "counters": {"unknown": {"value": "1"}}},
    ],
)
def test_a_device_that_consumes_what_is_not_published_is_refused(
    consumed: dict[str, object],
) -> None:
    with pytest.raises(ValueError, match="device gpu-0 consumes counters"):
        build_slices(
            devices(1, consumesCounters=[consumed]),
            counter_sets=counters(1),
            driver="d.example",
            node_name="n1",
        )
