"""`dra-driver slices`: the ResourceSlices that nodes with the GPUs of a profile would publish.

In: a profile or a cloud's machine type, and names of nodes. Out: slices on stdout, as
`kubectl create -f -` takes them, or templates of them, as cluster autoscalers do. Needs neither a
cluster nor a GPU: for autoscalers, for made-up nodes and for tests. They are what the driver would
create on such a node, except for the owner, because the Node has no UID yet.
"""

import json
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Literal

import yaml
from msgspec.structs import asdict, replace

from dra_driver import common_settings
from dra_driver.command_line import CommandSettings, bounds, option
from dra_driver.common_settings import NODE_NAME, MigSetting, WholeGpusBesideShares
from dra_driver.devices.model import Inventory
from dra_driver.devices.names import DRIVER_NAME
from dra_driver.fields import Object
from dra_driver.shares.config import read_file
from dra_driver.shares.divide import divide
from dra_driver.simulator import profile as profiles
from dra_driver.simulator.instance_types import profile_of
from dra_driver.simulator.nodes import inventory_of, on_node
from dra_driver.simulator.templates import dynamic_resources, template_of
from dra_driver.slices.consumable import Consumable
from dra_driver.slices.offer.mig import MigSettings, release_of
from dra_driver.slices.offer.shares import ShareOffer, WholeBesideShares
from dra_driver.slices.pool import build_slices
from dra_driver.slices.project import Offered
from resource_nvidia_com.device_plugin import NodeConfig

_TEMPLATE = "template"
"""Name of the node that a template is for; the autoscaler puts that of each new node there."""

_GENERATION = 1
"""The generation of a pool that is published for the first time."""


class Slices(CommandSettings):
    """Print the ResourceSlices that nodes with the GPUs of a profile would publish."""

    example = "dra-driver slices --profile h100x8 --node-name node-1"

    profile: str = option(
        default="", help="Name of a shipped profile, such as h100x8, or the path of a YAML file."
    )
    instance_type: str = option(
        default="",
        help="A cloud's machine type, such as p5.48xlarge, instead of a profile.",
    )
    driver_version: str = option(
        default="", help="Version of the GPU driver on these nodes; unset: the profile's."
    )
    template: Literal["cluster-autoscaler", "karpenter"] | None = option(
        default=None,
        help="Print a template of a new node for this autoscaler, without attributes that only a "
        "real node has.",
    )
    output: Literal["yaml", "json"] = option(default="yaml", short="o", help="Output format.")
    node_name: str = option(
        default="", check=NODE_NAME, help="Name of the Node that the slices are for."
    )
    count: int = option(
        check=bounds(least=1),
        default=1,
        help="Number of Nodes; the names of several end in -0, -1 and so on.",
    )
    mig: MigSetting = common_settings.MIG
    mig_profiles: str = common_settings.MIG_PROFILES
    kubernetes: str = common_settings.KUBERNETES
    whole_gpus_beside_shares: WholeGpusBesideShares = common_settings.WHOLE_GPUS_BESIDE_SHARES
    memory_counters: bool = common_settings.MEMORY_COUNTERS
    share_config: Path | None = option(
        default=None,
        help="File that says how devices are divided into shares, as for the driver.",
    )
    consumable_shares: str = common_settings.CONSUMABLE_SHARES

    def check(self) -> None:
        """Check that they say enough."""
        if bool(self.profile) == bool(self.instance_type):
            raise ValueError(
                "which GPUs have the nodes? give either --profile, or a cloud's --instance-type"
            )
        if self.template is None and not self.node_name:
            self.refuse("node_name", "is missing")
        if self.template is not None and self.count > 1:
            raise ValueError("a template is of one node: leave out --count, or --template")

    def cli_cmd(self) -> None:
        """Print the slices.

        Raises DriverError if there is no such profile, or its machine cannot be simulated.
        """
        made = profiles.load(self.profile) if self.profile else profile_of(self.instance_type)
        if self.driver_version:
            made = profiles.changed(made, {"driver_version": self.driver_version})
        inventory = inventory_of(made)
        kubernetes = release_of(self.kubernetes)
        offer = MigSettings.of(self.mig, self.mig_profiles).offer_of_any_node(kubernetes)
        beside_shares = WholeBesideShares(self.whole_gpus_beside_shares)
        alone = beside_shares.why_alone(lambda: kubernetes)
        config = NodeConfig() if self.share_config is None else read_file(self.share_config)
        consumable = Consumable.of(self.consumable_shares)
        slices: list[Object] = []
        for node in node_names(self.node_name or self._template_name(), self.count):
            there = on_node(inventory, node)
            share = replace(shares_of(config, there), consumable=consumable, alone=alone)
            offered = Offered(mig=offer, share=share, memory_counters=self.memory_counters)
            slices += slices_of(there, node, offered)
        sys.stdout.write(self._text(slices))

    def _template_name(self) -> str:
        """Return the name of node and pool: for Karpenter, that of the machines.

        It mistakes devices of different machine types for the same if pools and devices have equal
        names, and remembers whether they match a selector (1.15.0, allocator.go: matchKey).
        """
        if self.template != "karpenter":
            return _TEMPLATE
        machines = self.instance_type or Path(self.profile).stem
        return machines.lower().replace("_", "-")

    def _text(self, slices: list[Object]) -> str:
        keep = frozenset({"driverVersion"} if self.driver_version else ())
        if self.template == "karpenter":
            resources = dynamic_resources(slices, keep)
            return as_json(resources) if self.output == "json" else as_yaml([resources])
        if self.template is not None:
            slices = list(template_of(slices, keep))
        if self.output == "json":
            return as_json({"apiVersion": "v1", "kind": "List", "items": slices})
        return as_yaml(slices)


def node_names(name: str, count: int) -> list[str]:
    """Return the names of `count` nodes; a single one has the name as it is."""
    return [name] if count == 1 else [f"{name}-{number}" for number in range(count)]


def slices_of(
    inventory: Inventory,
    node: str,
    offered: Offered,
) -> Iterator[dict[str, object]]:
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


def shares_of(config: NodeConfig, inventory: Inventory) -> ShareOffer:
    """Return what a share config makes of a node that nobody uses."""
    return ShareOffer(**asdict(divide(config, inventory)))


def as_yaml(documents: Iterable[Object]) -> str:
    """Write documents as YAML, each by itself."""
    return str(yaml.dump_all(documents, Dumper=_Plain, sort_keys=False, explicit_start=True))


def as_json(document: Object) -> str:
    """Write a document as JSON."""
    return f"{json.dumps(document, indent=2)}\n"


class _Plain(yaml.SafeDumper):
    """Writes repeated values again, where YAML would refer to the first."""

    def ignore_aliases(self, _data: object) -> bool:
        return True
