"""How long the scheduler's own allocator takes for one claim on one node, by itself.

In: the slices that a variant publishes for a node. Out: microseconds by case, the minimum of many
measurements. The scheduler does this for every pod and for each node that it looks at. A small
program in Go (hack/cluster/go/allocator) calls the same code; its figures depend less on the
machine's other work than figures from a cluster.
"""

import json
from collections.abc import Mapping
from pathlib import Path

import yaml
from testbed.api import Object
from testbed.commands import run
from testbed.manifests import CLASSES

from bench.fleet.variants import devices, is_whole, offers
from dra_driver.slices.pool import DesiredPool
from dra_driver.slices.publish.writes import Create, owner_reference, writes_for

_MEASURE_S = 120.0
_OWNER = owner_reference(name="node", uid="00000000-0000-0000-0000-000000000000")


def cost(program: Path, pool: DesiredPool, profile: str | None) -> dict[str, float]:
    """Return the microseconds that each case takes, by its name."""
    wanted = cases(pool, profile)
    asked = json.dumps({"slices": slices_of(pool), "cases": wanted})
    costs: Mapping[str, float] = json.loads(run((program, "cost"), stdin=asked, timeout=_MEASURE_S))
    return {name: round(costs[name], 1) for name in wanted}


def slices_of(pool: DesiredPool) -> list[Object]:
    """Return the slices of a pool as an API server has them, as far as the allocator needs."""
    creates = writes_for(pool, (), owner=_OWNER)
    return [write.body for write in creates if isinstance(write, Create)]


def cases(pool: DesiredPool, profile: str | None) -> dict[str, Object]:
    """Return the requests to the allocator, by name.

    A whole GPU while all are free, and the last free one, where some are offered whole; what
    `nvidia.com/gpu` gives; and a partition where there are some.
    """
    whole = [str(device["name"]) for device in devices(pool) if is_whole(device)]
    made: dict[str, Object] = {}
    if whole:
        made["whole GPU, all free"] = {"class": _selector("gpu"), "inUse": []}
        made["whole GPU, one free"] = {"class": _selector("gpu"), "inUse": whole[:-1]}
    made["nvidia.com/gpu, all free"] = {"class": _selector("extended-resources"), "inUse": []}
    if offers(pool, profile):
        own = f"device.attributes['gpu.nvidia.com'].profile == '{profile}'"
        made[f"{profile}, all free"] = {"class": _selector("mig"), "selector": own, "inUse": []}
    return made


def _selector(name: str) -> str:
    text = (CLASSES / f"{name}.yaml").read_text()
    first = next(yaml.safe_load_all(text))
    (selector,) = first["spec"]["selectors"]
    return str(selector["cel"]["expression"])
