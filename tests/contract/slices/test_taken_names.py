"""Names of slices that others took first: the node's GPUs are published all the same."""

import re
from typing import Any

import pytest
from structlog.testing import capture_logs
from testbed.apiserver.store import Refusal

import make

PLAIN = "00000-gpu.nvidia.com-n1"
OTHER = re.compile(r"00000-[0-9a-f]{8}-gpu\.nvidia\.com-n1")


def squatter(*, driver: str = "gpu.nvidia.com", node: str = "evil") -> dict[str, Any]:
    """A slice of another node or driver under the name of this node's first."""
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"name": PLAIN},
        "spec": {
            "driver": driver,
            "nodeName": node,
            "pool": {"name": "n1", "generation": 99, "resourceSliceCount": 1},
        },
    }


def ours(bench: Any) -> list[str]:
    """The names of this node's slices."""
    return [
        entry["metadata"]["name"]
        for entry in bench.slices()
        if (entry["spec"]["driver"], entry["spec"]["nodeName"]) == ("gpu.nvidia.com", "n1")
    ]


@pytest.mark.parametrize(
    ("driver", "node"), [("gpu.nvidia.com", "evil"), ("nic.example.com", "n1")]
)
def test_a_taken_name_is_logged_and_replaced(bench: Any, driver: str, node: str) -> None:
    bench.server.put(squatter(driver=driver, node=node))
    with capture_logs() as logs:
        publisher = bench.start(make.inventory())
    (name,) = ours(bench)
    assert OTHER.fullmatch(name)
    assert bench.devices() == ["gpu-0", "gpu-1"]
    (told,) = (line for line in logs if line["event"] == "slice name taken by others")
    assert told["slice"] == PLAIN
    assert told["published_as"] == name
    assert told["holder"] == f"driver {driver}, node {node}"
    assert f"kubectl delete resourceslice {PLAIN}" in told["advice"]

    # The name stays, for this driver and the next; the others' slice is left alone.
    writes = bench.writes()
    bench.look_again(publisher, make.inventory())
    assert publisher.stop(5)
    bench.start(make.inventory())
    assert ours(bench) == [name]
    assert bench.writes() == writes
    assert bench.count.failures == 0
    assert {entry["metadata"]["name"] for entry in bench.slices()} == {PLAIN, name}


def test_slices_that_are_wiped_come_back_under_another_name_too(bench: Any) -> None:
    bench.start(make.inventory())
    bench.server.delete_all("resourceslices")
    bench.server.put(squatter())
    bench.wait(lambda: len(ours(bench)) == 1)
    assert OTHER.fullmatch(ours(bench)[0])


def test_a_faster_second_driver_is_not_a_squatter(bench: Any) -> None:
    def quicker(_new: Any, _old: Any) -> None:
        bench.server.store.rules.remove(quicker)
        bench.server.put(squatter(node="n1"))
        raise Refusal(409, "AlreadyExists", f'resourceslices "{PLAIN}" already exists')

    bench.server.store.rules.insert(0, quicker)
    with capture_logs() as logs:
        bench.start(make.inventory())
    assert ours(bench) == [PLAIN]
    assert not [line for line in logs if line["event"] == "slice name taken by others"]
