"""The publisher and an API server that refuses, is away, or is overruled by somebody."""

import threading
from itertools import count
from typing import Any

import pytest

import make
from dra_driver.slices.publish.publisher import PublisherTiming

OTHERS = {
    "apiVersion": "resource.k8s.io/v1",
    "kind": "ResourceSlice",
    "metadata": {"name": "others"},
    "spec": {
        "driver": "gpu.nvidia.com",
        "nodeName": "n1",
        "pool": {"name": "n1", "generation": 1, "resourceSliceCount": 1},
    },
}


class Clock:
    """Stands still; `looks` counts those of the publisher's thread."""

    now = 1000.0
    looks = 0

    def __call__(self) -> float:
        self.looks += threading.current_thread().name == "slices"
        return self.now


@pytest.mark.parametrize("status", [409, 410, 429, 500, 503])
@pytest.mark.parametrize("verb", ["list", "create"])
def test_a_failure_that_passes_is_retried(bench: Any, verb: str, status: int) -> None:
    bench.server.fail(verb, "resourceslices", status=status, times=4)
    bench.start(make.inventory())
    assert bench.devices() == ["gpu-0", "gpu-1"]
    assert bench.count.failures >= 1


def test_a_broken_connection_is_retried(bench: Any) -> None:
    bench.server.fail("create", hang_up=True, times=2)
    bench.start(make.inventory())
    assert bench.devices() == ["gpu-0", "gpu-1"]


def test_a_write_whose_answer_was_lost_is_not_done_twice(bench: Any) -> None:
    bench.start(make.inventory())
    bench.server.delete_all("resourceslices")
    bench.server.fail("create", hang_up=True)
    bench.wait(lambda: bench.devices() == ["gpu-0", "gpu-1"])
    assert len(bench.slices()) == 1


def test_a_missing_permission_is_retried_until_it_is_granted(bench: Any) -> None:
    denied = bench.server.fail("create", status=403, times=float("inf"))
    publisher = bench.start()
    publisher.update(make.inventory())
    bench.wait(lambda: bench.count.failures >= 3)
    denied.times = 0
    assert bench.wait_until_published(publisher)


@pytest.mark.parametrize(
    ("answer", "seconds"),
    [({"status": 422}, 300), ({"status": 429, "retry_after": 200}, 200)],
    ids=["it is invalid", "it is to wait"],
)
def test_a_refused_slice_is_retried_late_or_with_a_new_inventory(
    bench: Any, answer: dict[str, Any], seconds: float
) -> None:
    clock = Clock()

    def creates() -> int:
        return len(bench.server.seen("create", "resourceslices"))

    def look() -> None:
        for _ in range(4):  # an attempt would be over by the last
            looks = clock.looks
            publisher.ring()
            bench.wait(lambda looks=looks: clock.looks > looks)

    bench.server.fail("create", "resourceslices", times=2, **answer)
    publisher = bench.start(clock=clock)
    publisher.update(make.inventory())
    bench.wait(lambda: bench.count.failures == 1)
    look()
    looks = clock.looks
    bench.server.put(OTHERS)  # what others do is no reason to send it again
    bench.server.delete_all("resourceslices")
    bench.wait(lambda: clock.looks > looks)
    clock.now += seconds - 1
    look()
    assert creates() == 1
    clock.now += 2
    publisher.ring()
    bench.wait(lambda: bench.count.failures == 2)
    publisher.update(make.inventory(make.gpu(5)))
    bench.wait(lambda: bench.devices() == ["gpu-5"])
    assert creates() == 3


def test_a_node_that_is_not_there_yet_is_waited_for(bench: Any) -> None:
    bench.server.delete_all("nodes")
    publisher = bench.start()
    publisher.update(make.inventory())
    bench.wait(lambda: bench.count.failures >= 2)
    bench.server.put({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1"}})
    assert bench.wait_until_published(publisher)


def test_an_api_server_that_was_down_gets_what_changed_meanwhile(bench: Any) -> None:
    publisher = bench.start(make.inventory())
    bench.server.stop()
    publisher.update(make.inventory(make.gpu(3)))
    bench.wait(lambda: bench.count.failures >= 2)
    bench.server.start()
    bench.wait(lambda: bench.devices() == ["gpu-3"])


def test_slices_wiped_while_the_watch_was_cut_come_back(bench: Any) -> None:
    bench.start(make.inventory())
    for _ in range(3):
        bench.server.cut_watches()
        bench.server.delete_all("resourceslices")
        bench.wait(lambda: bench.devices() == ["gpu-0", "gpu-1"])


def test_repeated_edits_are_reverted_more_and_more_slowly(bench: Any) -> None:
    bench.start(make.inventory(), timing=PublisherTiming(settle=0.01, settle_most=1000.0))
    rounds = count()

    def wipe() -> bool:
        if bench.slices():
            bench.server.delete_all("resourceslices")
            return next(rounds) >= 7
        return False

    bench.wait(wipe)
    looks = bench.server.seen("list", "resourceslices")
    assert len(looks) < 40
