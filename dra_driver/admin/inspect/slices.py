"""ResourceSlices as the driver would create them on a node that has none. Pure.

In: the inventory of a node, and what is offered of it. Out: slices that `kubectl create -f -`
accepts: for autoscalers, for simulated nodes and for tests. They have no owner, because a simulated
Node has no UID yet.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from msgspec import Struct, field

from dra_driver.admin.output import Output, for_programs
from dra_driver.devices.model import GpuUuid, Inventory, Refusal
from dra_driver.devices.names import DRIVER_NAME
from dra_driver.slices.offer.mig import ALL, MigOffer
from dra_driver.slices.offer.shares import NO_SHARES, ShareOffer
from dra_driver.slices.pool import build_slices
from dra_driver.slices.project import NONE_REFUSED, Projection, projection

Object = Mapping[str, Any]

_GENERATION = 1
"""The generation of a pool that is published for the first time."""


class Offered(Struct, frozen=True, kw_only=True):
    """What a node offers: all arguments of `projection` but the GPUs themselves."""

    mig: MigOffer = ALL
    refused: Mapping[GpuUuid, Refusal] = field(default_factory=lambda: NONE_REFUSED)
    share: ShareOffer = NO_SHARES
    memory_counters: bool = False

    def projection(self, inventory: Inventory) -> Projection:
        """Return what is published for these GPUs."""
        return projection(
            inventory,
            mig=self.mig,
            refused=self.refused,
            share=self.share,
            memory_counters=self.memory_counters,
        )


OF_DEFAULTS = Offered()
"""What a node without shares offers if nothing is set."""


def node_names(name: str, count: int) -> list[str]:
    """Return the names of `count` nodes; a single one has the name without a number."""
    return [name] if count == 1 else [f"{name}-{number}" for number in range(count)]


def slices_of(inventory: Inventory, node: str, offered: Offered) -> Iterator[dict[str, object]]:
    """Yield the slices that the driver would create on a node that has none."""
    published = offered.projection(inventory)
    pool = build_slices(
        published.devices,
        driver=DRIVER_NAME,
        node_name=node,
        counter_sets=published.counter_sets,
    )
    for index in range(len(pool.contents)):
        yield {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceSlice",
            "metadata": {"name": pool.slice_name(index)},
            "spec": pool.spec(index, generation=_GENERATION),
        }


def as_list(slices: Iterable[Object]) -> Object:
    """Return slices as one document."""
    return {"apiVersion": "v1", "kind": "List", "items": list(slices)}


def printed(document: Object, output: Output) -> str:
    """Return a document as JSON, or as YAML with each item of a List by itself."""
    if output == "json":
        return for_programs(f"{json.dumps(document, indent=2)}\n", output)
    documents = document["items"] if document.get("kind") == "List" else [document]
    return "".join(f"---\n{for_programs(json.dumps(each), 'yaml')}" for each in documents)
