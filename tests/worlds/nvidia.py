"""NVIDIA's own DRA driver as a node knows it: its checkpoint, CDI specs, MIG devices and settings.

Its files are written as that driver writes them: JSON without blanks, every claim in `v1` and `v2`,
a checksum over the bytes of each; the names of prepared claims are not in there.
"""

import json
from collections.abc import Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any
from uuid import NAMESPACE_DNS, uuid5

from dra_driver.admin.takeover.nvidia_checkpoint import checksum
from dra_driver.claims.model.claim import ClaimRef
from dra_driver.claims.reconcile.reconciler import ReconcileTiming
from worlds.node import Node

VENDOR = "k8s.gpu.nvidia.com"


def compact(value: object) -> str:
    return json.dumps(value, separators=(",", ":"))


def checkpoint(
    claims: Mapping[str, Mapping[str, Any]], *, boot_id: str | None = None, newest: str = "v2"
) -> bytes:
    """The file with these claims, which are as `v2` has them."""
    old = {
        uid: {name: claim[name] for name in ("status", "preparedDevices")}
        for uid, claim in claims.items()
        if claim["checkpointState"] == "PrepareCompleted"
    }
    first = compact({"preparedClaims": old} if old else {})
    parts = {"checksum": str(checksum(f'{{"checksum":0,"v1":{first}}}')), "v1": first}
    if newest == "v2":
        content: dict[str, Any] = {"checksum": 0}
        if claims:
            content["preparedClaims"] = claims
        if boot_id is not None:
            content["nodeBootID"] = boot_id
        content["checksum"] = checksum(compact(content))
        parts["v2"] = compact(content)
    members = ",".join(f'"{name}":{text}' for name, text in parts.items())
    return f"{{{members}}}".encode()


def device(ref: ClaimRef, result: Mapping[str, Any]) -> dict[str, Any]:
    """What the kubelet was told of a device."""
    return {
        "Requests": [result["request"]],
        "PoolName": result["pool"],
        "DeviceName": result["device"],
        "CDIDeviceIDs": [f"{VENDOR}/claim={ref.uid}-{result['device']}"],
    }


def prepared_gpu(ref: ClaimRef, result: Mapping[str, Any], uuid: str) -> dict[str, Any]:
    return {"gpu": {"info": {"uuid": uuid}, "device": device(ref, result)}, "mig": None}


class NvidiaDriver:
    """That driver on a node. `newest` is the newest part of its checkpoint."""

    def __init__(self, node: Node, newest: str = "v2") -> None:
        self.node = node
        self.newest = newest
        self.folder = node.driver.plugin
        self.cdi = node.root / "state" / "cdi"
        self.claims: dict[str, dict[str, Any]] = {}

    @property
    def file(self) -> Path:
        return self.folder / "checkpoint.json"

    def spec(self, ref: ClaimRef) -> Path:
        return self.cdi / f"{VENDOR}-claim_{ref.uid}.yaml"

    def prepare(
        self, ref: ClaimRef, *, config: Mapping[str, Any] | None = None, static: bool = False
    ) -> None:
        """Prepare a claim, whose MIG devices it makes, or finds made with `static`."""
        made = [
            self._made(ref, result, static=static) for result in self.node.driver.api.results(ref)
        ]
        group = {"devices": made, "configState": {"mpsControlDaemonID": "", **(config or {})}}
        self.claims[ref.uid] = {
            "checkpointState": "PrepareCompleted",
            "status": self._status(ref),
            "preparedDevices": [group],
        }
        self._write_spec(ref, made)
        self.write()

    def begin(self, ref: ClaimRef) -> None:
        """Begin to prepare a claim: what is made by then is the test's matter."""
        self.claims[ref.uid] = {
            "checkpointState": "PrepareStarted",
            "status": self._status(ref),
            "name": ref.name,
            "namespace": ref.namespace,
        }
        self.write()

    def mps(self, ref: ClaimRef, *minors: int) -> str:
        """Start a daemon for GPUs of a claim; its id."""
        uuids = sorted(self.node.uuid(minor) for minor in minors)
        daemon = f"{ref.uid}-{sha256(','.join(uuids).encode()).hexdigest()[:5]}"
        for name in ("shm", "pipe", "log"):
            (self.folder / "mps" / daemon / name).mkdir(parents=True)
        for minor in minors:
            self.node.set_compute_mode(minor, 3)
        return daemon

    def write(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        for lock in ("cp.lock", "pu.lock"):
            (self.folder / lock).touch()
        boot_id = self.node.machine.boot_id
        self.file.write_bytes(checkpoint(self.claims, boot_id=boot_id, newest=self.newest))

    def _status(self, ref: ClaimRef) -> Any:
        return self.node.driver.api.claims[ref.namespace, ref.name]["status"]

    def _made(self, ref: ClaimRef, result: Mapping[str, Any], *, static: bool) -> dict[str, Any]:
        name = result["device"]
        if name.startswith("gpu-vfio-"):
            return {"gpu": None, "mig": None, "vfio": self._passed_through(ref, result)}
        minor = int(name.split("-")[1])
        uuid = self.node.uuid(minor)
        if "-mig-" not in name:
            return prepared_gpu(ref, result, uuid)
        profile, start = (int(word) for word in name.split("-")[-2:])
        if not static:
            if not self.node.mig_modes().get(minor):
                self.node.machine.set_mig_mode(uuid, enabled=True)
            self.node.machine.create_mig(uuid, profile, start)
        self.node.look()
        (live,) = (mig for mig in self.node.migs(minor) if mig.start == start)
        concrete = {
            "parentMinor": minor,
            "giId": live.gpu_instance,
            "ciId": live.compute_instance,
            "migUUID": live.uuid,
            "parentUUID": uuid,
        }
        return {"gpu": None, "mig": {"concrete": concrete, "device": device(ref, result)}}

    def _passed_through(self, ref: ClaimRef, result: Mapping[str, Any]) -> dict[str, Any]:
        """Note a GPU that is bound to vfio-pci; that driver makes its UUID from its address."""
        number = int(result["device"].rpartition("-")[2])
        address = self.node.inventory.passthrough[number].gpu.pci_address
        info = {"uuid": str(uuid5(NAMESPACE_DNS, address)), "pciBusID": address}
        return {"info": info, "device": device(ref, result)}

    def _write_spec(self, ref: ClaimRef, made: Sequence[Mapping[str, Any]]) -> None:
        names = [one[kind]["device"]["DeviceName"] for one in made for kind in one if one[kind]]
        lines = ["cdiVersion: 0.5.0", f"kind: {VENDOR}/claim", "devices:"]
        for name in dict.fromkeys(names):
            lines += [f"- name: {ref.uid}-{name}", "  containerEdits: {env: [FROM=nvidia]}"]
        self.cdi.mkdir(parents=True, exist_ok=True)
        self.spec(ref).write_text("\n".join(lines) + "\n")


def taken_over(node: Node, **facts: Any) -> None:
    """Start this driver where the other one was."""
    node.restart()
    node.look()
    assert node.take_over(**facts).run()
    assert node.driver.reconciler(ReconcileTiming()).mend() == set()
