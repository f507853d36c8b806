"""A roll-out: publishing on all nodes at once, and what is stored then.

Each node has a client and connections of its own, and sends the writes of a driver that finds no
slices. The time that a driver needs to compute them is not included.
"""

import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from itertools import islice
from statistics import median

from msgspec.structs import replace
from testbed.api import Object

from bench.fleet.stage import Stage
from bench.fleet.variants import Variant
from bench.timings import cpu_seconds
from dra_driver.devices.model import Inventory
from dra_driver.kube.kubeconfig import from_kubeconfig
from dra_driver.kube.resource import RESOURCE_SLICES
from dra_driver.simulator.nodes import on_node
from dra_driver.slices.pool import DesiredPool
from dra_driver.slices.publish.writes import Create, owner_reference, writes_for

WAVE = 100
"""How many nodes publish at the same time; each wave waits for the previous one."""

_TIMEOUT_S = 120.0
_SLICES = "/apis/resource.k8s.io/v1/resourceslices"

_Writes = tuple[Create, ...]
"""The writes of one node."""


def roll_out(stage: Stage, variant: Variant, inventory: Inventory) -> Object:
    """Publish the slices of all nodes; return how long that took, and one node's median."""
    api_server = stage.cluster.pid("kube-apiserver")
    seconds, cpu, each = 0.0, 0.0, []
    waiting = iter(stage.nodes.items())
    while wave := [_writes(variant, inventory, *node) for node in islice(waiting, WAVE)]:
        cpu_before = cpu_seconds(api_server)
        took, nodes = _publish(stage, wave)
        cpu += cpu_seconds(api_server) - cpu_before
        seconds += took
        each += nodes
    return {
        "seconds": round(seconds, 2),
        "one_node_p50_seconds": round(median(each), 3),
        "api_server_cpu_seconds": round(cpu, 2),
    }


def _writes(variant: Variant, inventory: Inventory, name: str, uid: str) -> _Writes:
    pool = variant(on_node(inventory, name), name)
    writes = writes_for(pool, (), owner=owner_reference(name=name, uid=uid))
    return tuple(write for write in writes if isinstance(write, Create))


def _publish(stage: Stage, wave: Sequence[_Writes]) -> tuple[float, list[float]]:
    """Publish at once; return the seconds of all of them together, and of each."""
    start = threading.Barrier(len(wave) + 1, timeout=_TIMEOUT_S)

    def publish(writes: _Writes) -> float:
        with closing(from_kubeconfig(stage.kubeconfig)) as client:
            start.wait()
            began = time.perf_counter()
            for write in writes:
                client.create(RESOURCE_SLICES, write.body, timeout=_TIMEOUT_S)
            return time.perf_counter() - began

    with ThreadPoolExecutor(len(wave), thread_name_prefix="node") as pool:
        tasks = [pool.submit(publish, writes) for writes in wave]
        start.wait()
        began = time.perf_counter()
        each = [task.result() for task in tasks]
        return time.perf_counter() - began, each


def looked_again(stage: Stage, variant: Variant, inventory: Inventory) -> int:
    """Return how many writes all drivers would send after reading what is stored: there is nothing
    to write as long as nothing changes, unless the API server keeps something else than was sent.
    """

    def count(name: str, uid: str) -> int:
        pool = variant(on_node(inventory, name), name)
        existing = stage.api.all("ResourceSlice", fieldSelector=f"spec.nodeName={name}")
        return len(writes_for(pool, existing, owner=owner_reference(name=name, uid=uid)))

    return sum(map(count, stage.nodes.keys(), stage.nodes.values()))


def withdraw(stage: Stage, pool: DesiredPool) -> None:
    """Delete the slices of all nodes, each of which has as many as `pool`."""
    names = (
        replace(pool, node_name=node).slice_name(index)
        for node in stage.nodes
        for index in range(len(pool.contents))
    )
    stage.delete("ResourceSlice", names)


def stored(stage: Stage) -> Object:
    """Return how large all slices are: as JSON, and as protobuf, as in etcd."""
    forms = {"json": "application/json", "protobuf": "application/vnd.kubernetes.protobuf"}
    return {
        f"{name}_bytes": len(stage.api.request("GET", _SLICES, accept=form))
        for name, form in forms.items()
    }
