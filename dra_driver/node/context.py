"""What every part of the driver needs: settings, this node, the API server, and the claims."""

import random
import time
from collections.abc import Callable, Mapping
from importlib.metadata import version
from pathlib import Path

from msgspec import Struct, field

from dra_driver.cdi.roots import Roots, roots_of
from dra_driver.claims.report.claim_events import ClaimEvents
from dra_driver.claims.state.ledger import Ledger
from dra_driver.devices.model import Inventory
from dra_driver.devices.names import DRIVER_NAME
from dra_driver.host.process import read_boot_id
from dra_driver.host.worker import Listeners
from dra_driver.kube.client import KubeClient
from dra_driver.kube.outbox import Outbox
from dra_driver.kube.own_node import OwnNode
from dra_driver.kube.server_version import ServerVersion
from dra_driver.kubelet.pod_resources import PodResources
from dra_driver.kubelet.sockets import SocketPaths, socket_paths
from dra_driver.node.settings import Settings
from dra_driver.ops.metrics import Metrics

STOP_SECONDS = 2.0
"""The time for each background thread to end; all are daemons and may be cut off safely."""

FIRST_LOOK_SECONDS = 5.0
"""How long the start waits for the first scan of the GPUs; the kubelet is answered meanwhile."""


class Changes(Struct, frozen=True):
    """The changes that parts report to each other.

    Senders are built before listeners, and neither has to know the other.

    Attributes:
        inventory: the first scan, and each that found something else.
        offer: other devices may have to be published.
        health: a GPU's health has changed.
        released: a claim has given something back.
    """

    inventory: Listeners[[Inventory]] = field(default_factory=Listeners)
    offer: Listeners[[]] = field(default_factory=Listeners)
    health: Listeners[[]] = field(default_factory=Listeners)
    released: Listeners[[]] = field(default_factory=Listeners)


class NodeContext(Struct, frozen=True, kw_only=True):
    """What every part needs. Nothing in it listens, runs or sends requests before it is started."""

    settings: Settings
    paths: SocketPaths
    roots: Roots
    boot_id: str
    kube: KubeClient
    own_node: OwnNode
    server_version: ServerVersion
    metrics: Metrics
    outbox: Outbox
    events: ClaimEvents
    ledger: Ledger
    pod_resources: PodResources
    changes: Changes
    clock: Callable[[], float] = time.monotonic
    random: Callable[[], float] = random.random

    @property
    def directory(self) -> Path:
        """The driver's own directory on the node."""
        return self.paths.data_directory

    @property
    def mps_folder(self) -> Path:
        """The directory that the driver shares with the MPS supervisor."""
        return self.directory / "mps"


def connect_pod(kubeconfig: Path | None, environment: Mapping[str, str]) -> KubeClient:
    """Return a client; SetupError if the pod's ServiceAccount or the kubeconfig is not usable."""
    if kubeconfig is None:
        return KubeClient.in_cluster(environment)
    # Not at the top: a pod does not need it, and it takes memory.
    from dra_driver.kube.kubeconfig import from_kubeconfig  # noqa: PLC0415

    return from_kubeconfig(kubeconfig)


def node_context(settings: Settings, environment: Mapping[str, str]) -> NodeContext:
    """Return what the driver needs. Raises SetupError if settings or node lack something."""
    paths = socket_paths(
        plugins=settings.kubelet_plugins_directory_path,
        registrar=settings.kubelet_registrar_directory_path,
        pod_uid=settings.pod_uid,
    )
    ours = version("dra-driver")
    metrics = Metrics(driver=DRIVER_NAME, node=settings.node_name, version=ours)
    kube = connect_pod(settings.kubeconfig, environment)
    roots = roots_of(settings)
    boot_id = read_boot_id(roots.proc)
    clock = time.monotonic
    outbox = Outbox()
    return NodeContext(
        settings=settings,
        paths=paths,
        roots=roots,
        boot_id=boot_id,
        kube=kube,
        own_node=OwnNode(kube, settings.node_name, clock=clock, random=random.random),
        server_version=ServerVersion(kube, clock=clock),
        metrics=metrics,
        outbox=outbox,
        events=ClaimEvents(kube, outbox, node=settings.node_name),
        ledger=Ledger(paths.data_directory, boot_id=boot_id, version=ours),
        pod_resources=PodResources(
            settings.kubelet_plugins_directory_path, roots.host_roots(), clock=clock
        ),
        changes=Changes(),
    )
