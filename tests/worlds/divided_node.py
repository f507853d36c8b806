"""A node whose share config changes: claims, slices and when they are published again, by steps.

Its GPUs, its API server and its scheduler are played; records and CDI specs are files. The
scheduler allocates what is published, by the counters of what is published.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec.structs import replace

import make
from dra_driver.claims.model.claim import ClaimRef
from dra_driver.claims.state.divisions import Divisions
from dra_driver.devices.device import Base
from dra_driver.devices.mig.making import MigInstances
from dra_driver.devices.model import Gpu, MigDevice, MigMode, MigSlot
from dra_driver.devices.shares import Division, ShareStrategy
from dra_driver.node.shares import NodeShares
from dra_driver.shares.source import ShareConfigState
from dra_driver.sharing.limiters import Limited, Limiter
from dra_driver.slices.consumable import NO_CONSUMABLES, Consumable
from dra_driver.slices.offer.mig import MigOffer, MigSource
from dra_driver.slices.project import Projection, projection
from resource_nvidia_com.device_plugin import NodeConfig, SharedBy, SharedResource
from resource_nvidia_com.quantity import quantity_bytes
from worlds.api import ClaimApi
from worlds.driver import Driver
from worlds.played import PlayedGpus, no_mig

GPU, SMALL = "nvidia.com/gpu", "nvidia.com/mig-1g.10gb"

EXISTING = MigOffer(source=MigSource.EXISTING)

MIG_DEVICE = make.mig_device(2, "1g.10gb", 0)
MIG_GPU = make.gpu(2, mig_mode=MigMode.ENABLED, mig=make.mig(MIG_DEVICE))
GPUS = (make.gpu(0), make.gpu(1), MIG_GPU)


def config(
    replicas: int,
    shared_by: SharedBy = SharedBy.TIME_SLICING,
    *,
    name: str = GPU,
    combines: bool = False,
) -> NodeConfig:
    """A share config that divides each device of a name; 0 replicas are none."""
    resource = SharedResource(name=name, served_as=name, devices="all", replicas=replicas)
    return NodeConfig(
        shared_by=shared_by,
        fail_requests_greater_than_one=not combines,
        resources=(resource,) if replicas else (),
    )


class PlayedMig(MigInstances):
    """The MIG device that is there."""

    def __init__(self) -> None:
        super().__init__(no_mig)

    def find(self, slot: MigSlot) -> MigDevice | None:
        there = MIG_DEVICE.placement.start
        return MIG_DEVICE if (slot.gpu, slot.start) == (MIG_GPU.uuid, there) else None


class DividedNode:
    """Methods of the driver's thread run in the caller's."""

    def __init__(
        self,
        root: Path,
        wanted: NodeConfig,
        *,
        gpus: Sequence[Gpu] = GPUS,
        consumable: Consumable = NO_CONSUMABLES,
        with_counters: bool = True,
    ) -> None:
        self.root, self.gpus = root, gpus
        self.api = ClaimApi()
        self.consumable, self.with_counters = consumable, with_counters
        self.state = ShareConfigState(config=wanted, origin="file", problem=None, is_known=True)
        self.published_now: Projection = projection(make.inventory())
        self.boot = 1
        self.driver: Driver | None = None
        self.start()

    def start(self) -> None:
        """Begin a driver's life, after the one before."""
        if self.driver is not None:
            self.driver.close()
        self.shares = NodeShares(
            self,
            PlayedGpus(*self.gpus),
            memory=self,
            directory=self.root / "plugin",
            consumable=self.consumable,
        )
        self.driver = Driver(
            self.root,
            *self.gpus,
            boot_id=f"boot-{self.boot}",
            api=self.api,
            shares_wanted=self.shares,
            mig=PlayedMig(),
        )
        self.publish_again()

    def reboot(self) -> None:
        self.boot += 1
        self.start()

    def set(self, wanted: NodeConfig) -> None:
        """Change the share config, as its thread does."""
        self.state = replace(self.state, config=wanted)
        self.publish_again()

    def look(self) -> None:
        """Look at the divisions, as the driver does after claims were prepared or have ended."""
        if self.divisions.is_outdated():
            self.publish_again()

    @property
    def _driver(self) -> Driver:
        assert self.driver is not None
        return self.driver

    @property
    def divisions(self) -> Divisions:
        return self._driver.node_divisions

    def offered(self) -> Mapping[Base, Division]:
        """The divisions of the shares that are published."""
        found = (source.device for source in self.published_now.sources)
        return {one.place: one.division for one in found if one.division is not None}

    def waiting(self) -> frozenset[Base]:
        """The devices that claims keep from being divided as the config asks for."""
        return self.divisions.waiting(gpu.uuid for gpu in self.gpus)

    # The share config, and what limits memory: what NodeShares asks for

    def current(self) -> ShareConfigState:
        return self.state

    def limited(
        self, gpu: Gpu, base: Base, strategy: ShareStrategy, *, has_size: bool = False
    ) -> Limited:
        del gpu, base, strategy
        return Limited(by=Limiter.NOTHING)

    def publish_again(self) -> None:
        inventory = make.inventory(*self.gpus)
        offer = self.shares.offer(inventory, self.divisions, with_counters=self.with_counters)
        self.published_now = projection(
            inventory, mig=EXISTING, share=offer, with_counters=self.with_counters
        )

    def published(self) -> tuple[str, ...]:
        return tuple(str(device["name"]) for device in self.published_now.devices)

    # The scheduler

    def allocate(self, device: str, name: str) -> ClaimRef | None:
        """Allocate a device that is published; None if the scheduler would not."""
        found = {str(one["name"]): one for one in self.published_now.devices}
        if not self._is_free(found, device):
            return None
        ref = self._driver.api.add(device, uid=f"uid-{name}", name=name)
        if found[device].get("allowMultipleAllocations"):
            self.api.results(ref)[0]["shareID"] = f"share-{name}"
        return ref

    def delete(self, ref: ClaimRef) -> None:
        self.api.claims.pop((ref.namespace, ref.name), None)

    def _is_free(self, found: Mapping[str, Mapping[str, Any]], device: str) -> bool:
        """Whether the scheduler's allocator would take it: it knows counters of dedicated ones."""
        results = [
            one
            for claim in self.api.claims.values()
            for one in claim["status"]["allocation"]["devices"]["results"]
        ]
        dedicated = {str(result["device"]) for result in results if "shareID" not in result}
        if device in dedicated:
            return False
        sets: Any = self.published_now.counter_sets
        left: Counter[tuple[str, str]] = Counter(
            {
                (each["name"], name): quantity_bytes(value["value"])
                for each in sets
                for name, value in each["counters"].items()
            }
        )
        for name in [device, *(one for one in dedicated if one in found)]:
            for each in found[name].get("consumesCounters", ()):
                for counter, value in each["counters"].items():
                    left[each["counterSet"], counter] -= quantity_bytes(value["value"])
        return all(much >= 0 for much in left.values())
