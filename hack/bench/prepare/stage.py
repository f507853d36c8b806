"""What the benchmark runs on: an API server, simulated GPUs, and the claims to prepare.

Claims that are measured hold a GPU each. Claims that only add to the number of prepared ones ask
for admin access: any number of those may hold the same GPUs, so that 1000 prepared claims fit on
eight of them. Their records and CDI specs are like any other claim's.
"""

import itertools
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from testbed.api import Api, Object, thing
from testbed.claims import allocation, claim
from testbed.cluster import Cluster
from testbed.driver import Place
from testbed.fake_api import fake_api
from testbed.kubelet import ClaimName
from testbed.machine import SimulatedMachine
from testbed.node import GpuNode

NAMESPACE = "bench"
NODE = "bench-node"
PROFILE = "h100x8"
OWN_NODE = "dra-driver-own-node"
"""Lets the driver's account write only its own node's slices."""
QUIET = ("kubelet", "kube-scheduler", "kube-controller-manager")
"""Components that are stopped, so that nothing else acts on claims or takes CPU time."""


@dataclass(kw_only=True)
class Stage:
    """The environment in which claims are made and the driver is started."""

    api: Api
    place: Place
    _numbers: "itertools.count[int]" = field(default_factory=itertools.count)

    def delete_claims(self, word: str) -> None:
        """Delete the claims on devices with a word in their names; they are unprepared."""
        for stored in self.api.all("ResourceClaim", NAMESPACE):
            results = stored["status"]["allocation"]["devices"]["results"]
            if any(word in result["device"] for result in results):
                self.api.delete("ResourceClaim", stored["metadata"]["name"], NAMESPACE)

    def clear(self) -> None:
        """Delete what a stopped driver has left: records, CDI specs, slices, claims.

        So the next one, perhaps of another version, starts as on a new node.
        """
        for folder in (self.place.plugins, self.place.registry, self.place.cdi_root):
            for path in folder.iterdir():
                shutil.rmtree(path) if path.is_dir() else path.unlink()
        self.api.delete_all("ResourceClaim", NAMESPACE)
        self.api.delete_all("ResourceSlice")

    def claim(
        self, device: str, config: Object | None = None, *, admin_access: bool = False
    ) -> ClaimName:
        """Make a claim with a device, to be shared as `config` says, or with admin access to it."""
        name = f"claim-{next(self._numbers)}"
        request: Object = {"adminAccess": True} if admin_access else {}
        uid = self.api.create(claim(name, **request), NAMESPACE)["metadata"]["uid"]
        node = self.place.node
        status = allocation(node, device, admin_access=admin_access, config=config)
        status["reservedFor"] = [{"resource": "pods", "name": name, "uid": uid}]
        self.api.patch("ResourceClaim", name, {"status": status}, NAMESPACE, part="/status")
        return ClaimName(uid=uid, namespace=NAMESPACE, name=name)


@contextmanager
def fake_stage(folder: Path) -> Iterator[Stage]:
    """A stage with the contract tests' API server; needs no root."""
    machine = SimulatedMachine(folder / "gpus", PROFILE)
    machine.up()
    try:
        with (
            fake_api(folder, [thing("Node", NODE)], "1.37") as (api, kubeconfig),
            _place(folder, NODE, kubeconfig, machine.root) as place,
        ):
            yield Stage(api=api, place=place)
    finally:
        machine.down()


@contextmanager
def real_stage(folder: Path, *, for_any_driver: bool = False) -> Iterator[Stage]:
    """A stage on a real cluster of which only API server and etcd keep running.

    The driver has folders of its own, not the kubelet's, and its identity in a pod.
    """
    node = GpuNode(Cluster("bench"), folder / "node", profile=PROFILE, token_life=6 * 3600)
    node.clear()
    try:
        node.up_to_driver(lambda _: None)
        for component in QUIET:
            node.cluster.stop(component)
        if for_any_driver:  # whose slices have other names than this driver's
            node.cluster.kubectl("delete", "validatingadmissionpolicybinding", OWN_NODE)
        labels = {"resource.kubernetes.io/admin-access": "true"}
        metadata = {"name": NAMESPACE, "labels": labels}
        node.cluster.api.create(thing("Namespace", NAMESPACE) | {"metadata": metadata})
        credentials = node.credentials
        with _place(folder, node.cluster.node, credentials.kubeconfig, node.machine.root) as place:
            in_a_pod = replace(place, service_account=credentials.service_account)
            yield Stage(api=node.cluster.api, place=in_a_pod)
    finally:
        node.down()


@contextmanager
def _place(folder: Path, node: str, kubeconfig: Path, driver_root: Path) -> Iterator[Place]:
    # CDI specs of claims are in /var/run/cdi, which is in memory; records are on a disk.
    shm = "/dev/shm"  # noqa: S108  # memory on every Linux
    memory = shm if os.access(shm, os.W_OK) else folder
    with tempfile.TemporaryDirectory(prefix="dra-bench-cdi-", dir=memory) as cdi_root:
        below = Place.below(folder, kubeconfig, driver_root, node=node)
        place = replace(below, cdi_root=Path(cdi_root))
        place.plugins.mkdir()
        place.registry.mkdir()
        yield place
