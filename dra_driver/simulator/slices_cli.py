"""`dra-driver slices`: the ResourceSlices that nodes with the GPUs of a profile would publish.

In: a profile and names of nodes. Out: slices as YAML on stdout, as `kubectl create -f -` takes
them. Needs neither a cluster nor a GPU: for the node templates of cluster autoscalers, for made-up
nodes and for tests. They are what the driver would create on such a node, but for the owner: a
slice belongs to its Node by the Node's UID, and there is none yet.
"""

import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import yaml
from pydantic import Field
from pydantic_settings import SettingsConfigDict

from dra_driver.devices.model import Inventory
from dra_driver.devices.names import DRIVER_NAME
from dra_driver.settings import (
    CommandSettings,
    ConsumableShares,
    KubernetesRelease,
    MemoryCounters,
    MigProfiles,
    MigSetting,
    WholeGpusBesideShares,
)
from dra_driver.shares.config import read_file
from dra_driver.shares.divide import divide
from dra_driver.simulator.nodes import inventory_of, on_node
from dra_driver.slices.consumable import Consumable
from dra_driver.slices.memory_counters import with_memory_counters
from dra_driver.slices.mig_offer import ALL, MigOffer, MigSettings, release_of
from dra_driver.slices.pool import build_slices
from dra_driver.slices.project import projection
from dra_driver.slices.share_offer import NO_SHARES, ShareOffer, WholeBesideShares
from resource_nvidia_com.device_plugin import NodeConfig

_GENERATION = 1
"""Of a pool that is published for the first time."""


class Slices(CommandSettings):
    """Print the ResourceSlices that nodes with the GPUs of a profile would publish, as YAML."""

    model_config = SettingsConfigDict(
        env_prefix="slices_",  # the driver's own NODE_NAME does not count here
        cli_prog_name="dra-driver slices",
    )

    profile: str = Field(
        description="Name of a shipped profile, such as h100x8, or the path of a YAML file."
    )
    node_name: str = Field(
        min_length=1, max_length=253, description="Name of the Node that the slices are for."
    )
    count: int = Field(
        1, ge=1, description="Number of Nodes; of several, the names end in -0, -1 and so on."
    )
    mig: MigSetting
    mig_profiles: MigProfiles
    kubernetes: KubernetesRelease
    whole_gpus_beside_shares: WholeGpusBesideShares
    memory_counters: MemoryCounters
    share_config: Path | None = Field(
        None,
        description="File that says how devices are divided into shares, as for the driver.",
    )
    consumable_shares: ConsumableShares

    def cli_cmd(self) -> None:
        """Print the slices.

        Raises:
            DriverError: there is no such profile, or its machine cannot be simulated.
        """
        inventory = inventory_of(self.profile)
        kubernetes = release_of(self.kubernetes)
        offer = MigSettings.of(self.mig, self.mig_profiles).offer_of_any_node(kubernetes)
        beside_shares = WholeBesideShares(self.whole_gpus_beside_shares)
        alone = beside_shares.why_alone(lambda: kubernetes)
        config = NodeConfig() if self.share_config is None else read_file(self.share_config)
        consumable = Consumable.of(self.consumable_shares)
        for node in node_names(self.node_name, self.count):
            there = on_node(inventory, node)
            share = replace(shares_of(config, there), consumable=consumable, alone=alone)
            text = yaml.dump_all(
                slices_of(there, node, offer, share, memory_counters=self.memory_counters),
                Dumper=_Plain,
                sort_keys=False,
                explicit_start=True,
            )
            sys.stdout.write(text)


def node_names(name: str, count: int) -> list[str]:
    """Return the names of so many nodes; one alone has the name as it is."""
    return [name] if count == 1 else [f"{name}-{number}" for number in range(count)]


def slices_of(
    inventory: Inventory,
    node: str,
    offer: MigOffer = ALL,
    share: ShareOffer = NO_SHARES,
    *,
    memory_counters: bool = False,
) -> Iterator[dict[str, object]]:
    """Yield the slices that the driver would create on a node that has none."""
    published = projection(inventory, mig=offer, share=share)
    if memory_counters:
        published = with_memory_counters(published)
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
    divided = divide(config, inventory)
    return ShareOffer(divisions=divided.divisions, refused=divided.refused, serving=divided.serving)


class _Plain(yaml.SafeDumper):
    """Writes what occurs twice twice, where YAML would refer to the first."""

    def ignore_aliases(self, _data: object) -> bool:
        return True
