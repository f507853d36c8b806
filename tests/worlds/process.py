"""A driver as a process on a node of its own: folders, simulated GPUs, a small API server."""

import http.client
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from testbed.apiserver.server import ApiServer
from testbed.claims import allocation, claim
from testbed.commands import wait_until
from testbed.driver import DriverProcess, Place, SupervisorProcess
from testbed.kubelet import ClaimName, KubeletClient

from dra_driver.kube.kubeconfig import from_kubeconfig
from dra_driver.kube.resource import NODES
from dra_driver.simulator.driver_root import Options
from dra_driver.simulator.machine import Machine

NODE = "node-1"
SLICES = "resourceslices"


def eventually(condition: Callable[[], Any], what: str) -> Any:
    return wait_until(condition, what, timeout=60, interval=0.05)


@contextmanager
def serving_a_node() -> Iterator[ApiServer]:
    """An API server that knows the node."""
    with ApiServer() as server:
        metadata = {"name": NODE, "uid": "node-uid"}
        server.put({"apiVersion": "v1", "kind": "Node", "metadata": metadata})
        yield server


def process_node(profile: str = "", *, starts: bool = False, **env: str) -> Any:
    """A fixture for a module: a node for a driver's process, which is killed in the end.

    It has the GPUs of a profile, or none yet, and its driver these settings; with `starts` the
    driver runs and has published its GPUs.
    """

    @pytest.fixture
    def node(tmp_path: Path, api: ApiServer) -> Iterator[ProcessNode]:
        made = ProcessNode(tmp_path, api)
        made.driver.env |= env
        if profile:
            gpus = made.install_gpus(profile).gpus
        if starts:
            made.driver.start()
            made.wait_devices(len(gpus))
        yield made
        for driver in made.drivers:
            driver.kill()

    return node


class ProcessNode:
    """One node: its folders, its machine, its API server, and the driver's process."""

    def __init__(self, root: Path, api: ApiServer) -> None:
        self.root, self.api = root, api
        self.drivers: list[DriverProcess] = []
        kubeconfig = api.write_kubeconfig(root / "kubeconfig")
        self.place = Place.below(root, kubeconfig, root / "machine", node=NODE)
        self.place.driver_root.mkdir()
        self.driver = self.make_driver()
        # Until it has GPUs, a node shows what this machine shows.
        self.driver.env |= {"SYS_ROOT": "/sys", "PROC_ROOT": "/proc"}

    def make_driver(self, **env: str) -> DriverProcess:
        """One more driver for the node, with a log of its own; the first is there already."""
        log = self.root / f"driver{env.get('POD_UID', '')}.log"
        # A kubelet of these tests does not look once a second: it sees a socket go at once.
        settings = {
            "RESCAN_INTERVAL": "0.5",
            "HEALTH_SETTLE": "2",
            "LOG_LEVEL": "debug",
            "SHUTDOWN_DELAY": "0",
        }
        self.drivers.append(DriverProcess(self.place, log, settings | env))
        return self.drivers[-1]

    def install_gpus(self, profile: str, options: Options | None = None) -> Machine:
        machine = Machine.create(self.place.driver_root, profile, options)
        roots = {"SYS_ROOT": str(machine.sys_root), "PROC_ROOT": str(machine.proc_root)}
        self.driver.env |= roots
        return machine

    def label(self, labels: Mapping[str, str]) -> None:
        """Give the Node these labels, and no others."""
        client = from_kubeconfig(self.place.kubeconfig)
        found = client.get_node(NODE, timeout=5)
        found["metadata"]["labels"] = dict(labels)
        client.update(NODES, NODE, found, timeout=5)
        client.close()

    def devices(self) -> list[str]:
        """The whole GPUs that are published; cards with MIG have partitions beside them."""
        return sorted(
            device["name"]
            for one in self.api.objects(SLICES)
            for device in one["spec"].get("devices", ())
            if "-mig-" not in device["name"]
        )

    def taints(self) -> dict[str, list[str]]:
        """The keys of the taints of each published device that has some."""
        return {
            device["name"]: [taint["key"] for taint in device["taints"]]
            for one in self.api.objects(SLICES)
            for device in one["spec"].get("devices", ())
            if device.get("taints")
        }

    def wait_devices(self, count: int) -> list[str]:
        eventually(lambda: self.api.objects(SLICES) and len(self.devices()) == count, "devices")
        return self.devices()

    def wait_device(self, name: str) -> None:
        eventually(lambda: name in self.devices(), f"device {name}")

    def allocate(
        self, name: str, *devices: str, configs: Sequence[dict[str, Any]] = ()
    ) -> ClaimName:
        """Store an allocated claim, as the scheduler would; return what a kubelet knows of it."""
        known = ClaimName(namespace="default", name=name, uid=f"uid-{name}")
        made = claim(name)
        made["metadata"] |= {"namespace": known.namespace, "uid": known.uid}
        made["status"] = allocation(NODE, *devices)
        made["status"]["allocation"]["devices"]["config"] = list(configs)
        self.api.put(made)
        return known


class TakeOverProcess(DriverProcess):
    """The init container of a driver's pod."""

    command = "take-over"

    def __init__(self, driver: DriverProcess) -> None:
        super().__init__(driver.place, driver.log.with_suffix(".take-over"), driver.env)

    def run(self, *words: str) -> int:
        """Run it to its end; return its exit status."""
        self.start(*words)
        return self.wait()


@contextmanager
def supervised(node: ProcessNode) -> Iterator[None]:
    """Run the MPS supervisor of a node, as a process beside its driver."""
    process = SupervisorProcess(node.place, node.root / "supervisor.log", {"SHM_SIZE": "16Mi"})
    process.start()
    yield
    assert process.stop() == 0


@contextmanager
def being_prepared(node: ProcessNode, claim: ClaimName) -> Iterator[list[str]]:
    """Have a kubelet ask for a claim, and wait in the end for the error that it is answered."""
    answers: list[str] = []
    with KubeletClient(node.place.registry) as kubelet:
        kubelet.register()
        pod = threading.Thread(
            target=lambda: answers.append(kubelet.prepare(claim)[claim.uid].error)
        )
        pod.start()
        yield answers
        pod.join()


def metrics(port: int) -> str:
    """What a driver answers a scraper."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        connection.request("GET", "/metrics")
        return connection.getresponse().read().decode()
    finally:
        connection.close()
