"""A server with a node, and publishers for it."""

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from testbed.apiserver.server import ApiServer

from dra_driver.devices.model import Inventory
from dra_driver.kube.client import KubeClient
from dra_driver.kube.kubeconfig import from_kubeconfig
from dra_driver.kube.resource import RESOURCE_SLICES
from dra_driver.ops.metrics import SliceWrite
from dra_driver.slices.project import projection
from dra_driver.slices.publish.publication import Project, Publication
from dra_driver.slices.publish.publisher import PublisherTiming, SlicePublisher

QUICK = PublisherTiming(settle=0.02, retry=0.01, retry_most=0.05)


@dataclass
class Count:
    """An observer that remembers."""

    publications: list[tuple[int, int]] = field(default_factory=list)
    writes: list[SliceWrite] = field(default_factory=list)
    failures: int = 0
    dropped: int = 0

    def published(self, *, slices: int, devices: int) -> None:
        self.publications.append((slices, devices))

    def slice_written(self, write: SliceWrite) -> None:
        self.writes.append(write)

    def publish_failed(self) -> None:
        self.failures += 1

    def fields_dropped(self, count: int) -> None:
        self.dropped += count


class TellingPublication(Publication):
    """A publication that tells when an inventory was published."""

    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        self.done = threading.Event()

    def publish(self, inventory: Inventory) -> int:
        writes = super().publish(inventory)
        self.done.set()
        return writes


@dataclass
class Bench:
    """A server, and publishers for node n1 that talk to it."""

    server: ApiServer
    client: KubeClient
    count: Count = field(default_factory=Count)
    publishers: dict[SlicePublisher, TellingPublication] = field(default_factory=dict)

    def start(
        self,
        inventory: Inventory | None = None,
        *,
        timing: PublisherTiming = QUICK,
        project: Project = projection,
        clock: Callable[[], float] = time.monotonic,
    ) -> SlicePublisher:
        """Start a publisher, and wait until it has published the inventory if one is given."""
        publication = self.publication(project=project)
        publisher = SlicePublisher(publication, clock=clock, random=lambda: 0.5, timing=timing)
        self.publishers[publisher] = publication
        publisher.start()
        if inventory is not None:
            publisher.update(inventory)
            assert self.wait_until_published(publisher)
        return publisher

    def publication(
        self, *, project: Project = projection, client: KubeClient | None = None
    ) -> TellingPublication:
        """Return what publishes by steps, as another process of the driver would."""
        return TellingPublication(
            client or self.client,
            driver="gpu.nvidia.com",
            node_name="n1",
            observer=self.count,
            project=project,
        )

    def wait_until_published(self, publisher: SlicePublisher) -> bool:
        """Wait until some inventory was published; return whether one was."""
        return self.publishers[publisher].done.wait(10)

    def slices(self) -> list[dict[str, Any]]:
        return self.server.objects("resourceslices")

    def devices(self) -> list[str]:
        return [
            device["name"] for entry in self.slices() for device in entry["spec"].get("devices", [])
        ]

    def writes(self) -> int:
        """Return how many writes to slices the server saw."""
        return sum(
            len(self.server.seen(verb, "resourceslices")) for verb in ("create", "update", "delete")
        )

    def wait(self, condition: Callable[[], bool]) -> None:
        assert self.server.wait_for(condition)

    def look_again(self, publisher: SlicePublisher, inventory: Inventory) -> None:
        """Have the publisher look twice more at what is served."""
        for _ in range(2):
            looks = len(self.count.publications)
            publisher.update(inventory)
            self.wait(lambda looks=looks: len(self.count.publications) > looks)

    def edit(self, entry: dict[str, Any]) -> None:
        """Write a slice as somebody else would."""
        name = entry["metadata"]["name"]
        self.client.update(RESOURCE_SLICES, name, entry, timeout=10)


def node(uid: str = "node-uid") -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1", "uid": uid}}


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    with ApiServer() as server:
        server.put(node())
        client = from_kubeconfig(server.write_kubeconfig(tmp_path / "kubeconfig"))
        made = Bench(server, client)
        yield made
        ended = [publisher.stop(5) for publisher in made.publishers]
        assert all(ended)
        client.close()
