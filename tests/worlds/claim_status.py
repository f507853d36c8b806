"""A driver with an API server, and what writes its claims' status, look by look."""

from functools import partial
from pathlib import Path
from typing import Any

from testbed.apiserver.kinds import kind_of
from testbed.apiserver.server import ApiServer

import make
from clock import Clock
from dra_driver.claims.model.claim import ClaimRef, ClaimUid
from dra_driver.claims.model.record import ClaimRecord
from dra_driver.claims.report.device_health import WELL, DeviceHealth
from dra_driver.claims.report.status_writer import StatusWriter
from dra_driver.devices.device import Device
from dra_driver.kube.client import KubeClient
from dra_driver.kube.kubeconfig import from_kubeconfig
from dra_driver.kube.outbox import Outbox
from dra_driver.kube.resource import RESOURCE_CLAIMS
from worlds.driver import Driver

UID = "11111111-0000-4000-8000-000000000000"
REF = ClaimRef(uid=ClaimUid(UID), namespace="default", name="claim")
FOREIGN = {"driver": "nic.example.com", "pool": "p", "device": "nic-0"}


class Place:
    """A driver with an API server, and what writes its claims' status."""

    def __init__(self, root: Path, server: ApiServer, **facts: Any) -> None:
        self.server = server
        self.client: KubeClient = from_kubeconfig(server.write_kubeconfig(root / "kubeconfig"))
        self.driver = Driver(root, reader=self.client, **facts)
        self.clock = Clock()
        self.health = WELL
        self.restart()

    def restart(self, *, knows_devices: bool = True) -> None:
        """Forget all that is in memory."""
        self.outbox = Outbox(clock=self.clock, jitter=lambda: 0.0)
        self.writer = StatusWriter(
            self.client,
            self.outbox,
            self.driver.claims,
            self.driver.gpus,
            health=self._health,
        )
        if knows_devices:
            self.writer.devices_changed()
            self.outbox.deliver()

    def _health(self, _record: ClaimRecord, _device: Device) -> DeviceHealth:
        return self.health

    def say_of_nic(self) -> None:
        """As another driver says something of its own device."""
        claim = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim"}
        body = {**claim, "metadata": {"name": "claim"}, "status": {"devices": [FOREIGN]}}
        send = self.client.apply_status
        if self.server.objects("resourceclaims")[0]["status"]["allocation"]["devices"]["config"]:
            send = partial(self.client.merge, subresource="status")
        send(RESOURCE_CLAIMS, "claim", body, namespace="default", manager="nic", timeout=5)

    def put(
        self, *devices: str, results: list[dict[str, Any]] | None = None, **facts: Any
    ) -> ClaimRef:
        made = make.claim_object(*devices, **facts)
        if results:
            made["status"]["allocation"]["devices"]["results"] += results
        self.server.put(made)
        return REF

    def prepare(self, *minors: int) -> list[ClaimRef]:
        """Have claims prepared, each with one GPU: `c-2` has `gpu-2`."""
        refs = [
            ClaimRef(uid=ClaimUid(f"uid-{n}"), namespace="default", name=f"c-{n}") for n in minors
        ]
        for ref in refs:
            self.server.put(make.claim_object(f"gpu-{ref.name[2:]}", uid=ref.uid, name=ref.name))
            self.driver.prepare(ref)
        return refs

    def have_status(self) -> list[str]:
        """The names of the claims whose status says something of devices."""
        claims = self.server.objects("resourceclaims")
        return [one["metadata"]["name"] for one in claims if one["status"].get("devices")]

    def look(self, later: float = 0.0) -> None:
        """Look at all claims after a while, and send what is due."""
        self.clock.now += later
        self.outbox.put(("check claim status",), self.writer.check)
        self.outbox.deliver()

    def status(self) -> list[dict[str, Any]]:
        (claim,) = self.server.objects("resourceclaims")
        found: list[dict[str, Any]] = claim["status"].get("devices", [])
        return found

    def deallocate(self) -> None:
        """As the controller does when no pod has the claim any more."""
        (claim,) = self.server.objects("resourceclaims")
        kind = kind_of(claim["apiVersion"], claim["kind"])
        claim["status"] = {"devices": claim["status"].get("devices", [])}
        self.server.store.update(kind, "default", "claim", claim, status_only=True)

    def writes(self) -> int:
        return len(self.server.seen("patch", "resourceclaims"))

    def close(self) -> None:
        self.driver.close()
        self.client.close()
