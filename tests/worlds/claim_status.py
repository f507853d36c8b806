"""A driver with an API server, and what writes its claims' status, look by look."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from testbed.apiserver.kinds import kind_of
from testbed.apiserver.server import ApiServer

import make
from clock import Clock
from dra_driver.claims.model.claim import ClaimRef, ClaimUid
from dra_driver.claims.model.record import ClaimRecord, DeviceRecord
from dra_driver.claims.report.claim_status import Condition
from dra_driver.claims.report.status_writer import StatusWriter
from dra_driver.kube.client import KubeClient
from dra_driver.kube.kubeconfig import from_kubeconfig
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
        self.busy: Callable[[], float] = lambda: 0.0
        self.conditions: list[Condition] = [Condition(type="Ready", status=True, reason="Fine")]
        self.writer = self.make_writer()

    def make_writer(self) -> StatusWriter:
        """One more, as after a restart."""
        return StatusWriter(
            api=self.client,
            claims=self.driver.claims,
            inventory=self.driver.gpus,
            clock=self.clock,
            jitter=lambda: 0.0,
            conditions=self._conditions,
            busy=lambda: self.busy(),  # noqa: PLW0108 (tests replace it)
        )

    def _conditions(self, _record: ClaimRecord, _device: DeviceRecord) -> list[Condition]:
        return self.conditions

    def say_of_nic(self) -> None:
        """As another driver says something of its own device."""
        claim = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim"}
        body = {**claim, "metadata": {"name": "claim"}, "status": {"devices": [FOREIGN]}}
        send = self.client.apply_status
        if self.server.objects("resourceclaims")[0]["status"]["allocation"]["devices"]["config"]:
            send = self.client.merge_status
        send(RESOURCE_CLAIMS, "claim", body, namespace="default", manager="nic", timeout=5)

    def put(
        self, *devices: str, results: list[dict[str, Any]] | None = None, **facts: Any
    ) -> ClaimRef:
        made = make.claim_object(*devices, **facts)
        if results:
            made["status"]["allocation"]["devices"]["results"] += results
        self.server.put(made)
        return REF

    def look(self, later: float = 0.0) -> None:
        self.clock.now += later
        self.writer.look()

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
