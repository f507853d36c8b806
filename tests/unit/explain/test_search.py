"""The search for devices where the scheduler itself cannot be asked: how long it goes on."""

import time

import explained
from dra_driver.admin.api.nodes import Node
from dra_driver.admin.api.slices import read_slice
from dra_driver.admin.explain.allocated import AllocatedState
from dra_driver.admin.explain.answers import Cluster, answer_on
from dra_driver.admin.explain.demand import selectors_by_class
from dra_driver.admin.explain.pools import Pools
from dra_driver.admin.explain.requests import read_claim
from dra_driver.admin.explain.search import SelectorCache
from published import device, slices

NODE = Node(name="node-1")


def cluster(count: int) -> Cluster:
    made = [device(f"gpu-{n}", **{"example.com/rack": n}) for n in range(count)]
    return Cluster(
        nodes=[NODE],
        pools=Pools(map(read_slice, slices(made))),
        classes=selectors_by_class(explained.classes()),
        allocated=AllocatedState(),
    )


def test_an_endless_search_is_given_up() -> None:
    """Sixteen devices that differ in pairs, of which a constraint lets no two be together."""
    requests = [explained.request(f"r{n}", count=4) for n in range(3)]
    constraint = {"matchAttribute": "example.com/rack", "requests": ["r2"]}
    claim = read_claim(explained.claim(*requests, constraints=[constraint]))
    began = time.monotonic()
    found = answer_on(cluster(30), NODE, [claim], (), SelectorCache())
    assert "there are too many ways" in found.unknown
    assert (found.picks, found.fits) == (None, False)
    assert time.monotonic() - began < 60
