"""What drivers publish and claims have, as the API server sends it, for tests of who reads it."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import make
from dra_driver.admin.api.allocations import Allocation, allocations_in
from dra_driver.admin.api.slices import readable_slices
from dra_driver.admin.explain.pools import Pool, Pools
from dra_driver.devices.names import DRIVER_NAME
from dra_driver.slices.pool import build_slices

Object = dict[str, Any]

SET = "gpu-0-counter-set"
SHARED = "nvidia.com/gpu.shared"


def device(
    name: str,
    takes: Mapping[str, object] | None = None,
    *,
    taints: Sequence[str] = (),
    **facts: Any,
) -> Object:
    """A device that takes from the counters of SET; `facts` are its attributes (`type`: gpu)."""
    values = {"type": "gpu", **facts}
    made: Object = {
        "name": name,
        "attributes": {
            key: {"int": value} if isinstance(value, int) else {"string": value}
            for key, value in values.items()
        },
    }
    if takes:
        counters = {counter: {"value": str(amount)} for counter, amount in takes.items()}
        made["consumesCounters"] = [{"counterSet": SET, "counters": counters}]
    if taints:
        made["taints"] = [{"key": "gpu.nvidia.com/xid", "effect": effect} for effect in taints]
    return made


def part_of(device: str, share_id: str, consumed: Mapping[str, object], **claim: Any) -> Object:
    """A claim that was allocated a part of a device; `claim` is what make.claim_object takes."""
    made = make.claim_object(device, **({"name": share_id, "uid": share_id} | claim))
    (result,) = made["status"]["allocation"]["devices"]["results"]
    result["shareID"] = share_id
    result["consumedCapacity"] = {name: str(amount) for name, amount in consumed.items()}
    return made


def counter_set(name: str = SET, **amounts: object) -> Object:
    """A counter set."""
    return {"name": name, "counters": {key: {"value": str(n)} for key, n in amounts.items()}}


def shares(count: int, resource: str = SHARED) -> list[Object]:
    """A GPU that is divided into equal shares, as devices: the whole GPU first."""
    whole = device("gpu-0", {"shares": count}, uuid="GPU-0", sharedAs=resource)
    facts: dict[str, Any] = {"uuid": "GPU-0", "resourceName": resource, "replicas": count}
    return [
        whole,
        *(device(f"gpu-0-share-{number}", {"shares": 1}, **facts) for number in range(count)),
    ]


def slices(
    devices: Sequence[Mapping[str, object]],
    counter_sets: Sequence[Mapping[str, object]] = (),
    *,
    node: str = "node-1",
    generation: int = 1,
) -> list[Object]:
    """The ResourceSlices of a node with these devices, as its driver writes them."""
    pool = build_slices(devices, driver=DRIVER_NAME, node_name=node, counter_sets=counter_sets)
    return [
        {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceSlice",
            "metadata": {"name": pool.slice_name(index)},
            "spec": pool.spec(index, generation=generation),
        }
        for index in range(len(pool.contents))
    ]


def read_pools(things: Iterable[Object]) -> list[tuple[str, Pool]]:
    """The pools of these slices, each with its node."""
    return Pools(readable_slices(things)).by_node()


def used_by(*claims: Object) -> list[Allocation]:
    """What claims have of this driver's devices."""
    return [one for claim in claims for one in allocations_in(claim, DRIVER_NAME)]
