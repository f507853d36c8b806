"""Answers the checks' questions from the facts of the node and the cluster that are available.

In: `Places`, `Cluster`, or one of them. Out: what the checks in every_check.py saw. Some combine
the two: the DaemonSet names the driver's ServiceAccount, and the Node has a node's labels.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

from dra_driver.admin.api.nodes import Node
from dra_driver.admin.api.objects import DAEMON_SETS, DEPLOYMENTS, DEVICE_CLASSES
from dra_driver.admin.doctor.checks import (
    autoscalers,
    cluster_checks,
    node_checks,
    pod_checks,
    runtime_checks,
    schedulers,
    share_configs,
)
from dra_driver.admin.doctor.checks.finding import Seen, Severity, of_error, ok, unknown
from dra_driver.admin.doctor.facts import node_facts, shipped
from dra_driver.admin.doctor.facts.cluster_facts import Cluster, PermissionFacts
from dra_driver.admin.doctor.facts.gone_claims import gone_claims
from dra_driver.admin.doctor.facts.installed import DaemonSets, Installed, sorted_out
from dra_driver.admin.doctor.facts.once import Once
from dra_driver.admin.doctor.facts.places import Places
from dra_driver.admin.doctor.facts.pod_facts import DaemonPod, pods_of
from dra_driver.admin.doctor.facts.runtime_config import RuntimeConfig
from dra_driver.admin.stored import read_notes, stored_records
from dra_driver.devices.model import Inventory
from dra_driver.devices.names import DRIVER_NAME
from dra_driver.errors import DeviceError, DriverError, SetupError
from dra_driver.kube.fields import text
from dra_driver.kube.resource import NODES
from dra_driver.kube.server_version import version_numbers

_MOST_NODES = 50
"""How many nodes with GPUs have their pods checked, by one request per node."""


class Sources:
    """The sources of facts; for any thread. `places` or `cluster` is None if not available.

    `own_node` is the name of this node's Node, if known; `vfio` is whether its driver offers GPUs
    to virtual machines, and `excluded` names the GPUs that it leaves out (devices/gpu_words.py).
    """

    def __init__(
        self,
        *,
        places: Places | None,
        cluster: Cluster | None,
        in_a_pod: bool = False,
        own_node: str = "",
        vfio: bool = False,
        excluded: Collection[str] = (),
    ) -> None:
        self._places = places
        self._cluster = cluster
        self._in_a_pod = in_a_pod
        self._own_node = own_node
        self._vfio = vfio
        self._gpus = Once(lambda: node_facts.gpus(self.places, excluded))

    def close(self) -> None:
        """Close the connections to the API server."""
        if self._cluster is not None:
            self._cluster.close()

    @property
    def has_node(self) -> bool:
        """Whether this is a node whose files are visible."""
        return self._places is not None

    @property
    def places(self) -> Places:
        """The node's places. Raises SetupError where there are none."""
        if self._places is None:
            raise SetupError("this is not a node")
        return self._places

    @property
    def cluster(self) -> Cluster:
        """The cluster. Raises SetupError where none is known."""
        if self._cluster is None:
            raise SetupError("no cluster is known")
        return self._cluster

    def gpus(self) -> Inventory:
        """Return the GPUs that NVML reports; it is asked once. Raises DeviceError."""
        return self._gpus.get()

    def of_driver(self, judge: Callable[[], Iterable[Seen]]) -> Iterable[Seen]:
        """Check the GPU driver, unless VFIO drivers have all GPUs, so that none is needed."""
        facts = node_facts.driver_facts(self.places)
        if facts.needs_none:
            return [ok(f"all {facts.gpus_on_vfio} GPUs have a VFIO driver; no GPU driver runs")]
        return judge()

    def nvml(self) -> Iterator[Seen]:
        """Check the GPUs that NVML reports."""
        try:
            node_facts.library(self.places)
        except DeviceError:
            yield unknown("NVML was not found (see driver-library)")
            return
        yield from node_checks.gpus(self.gpus())

    def of_gpus(self, judge: Callable[[Inventory], Iterable[Seen]]) -> Iterable[Seen]:
        """Check the GPUs; if NVML does not answer, the check `gpus` reports why."""
        try:
            inventory = self.gpus()
        except DeviceError:
            return [unknown("NVML does not answer (see gpus)")]
        return judge(inventory)

    def mig_modes(self, inventory: Inventory) -> Iterable[Seen]:
        """Check the GPUs' MIG modes, for the cluster's version of Kubernetes if it is known."""
        try:
            kubernetes = version_numbers(self._cluster.server().version) if self._cluster else None
        except DriverError:
            kubernetes = None  # the check of the API server reports why
        return node_checks.mig_modes(inventory, kubernetes)

    def holders(self, inventory: Inventory) -> Iterable[Seen]:
        """Report which processes have the GPUs open."""
        facts = node_facts.holder_facts(self.places, inventory, in_a_pod=self._in_a_pod)
        return node_checks.holders(facts)

    def gone_claims(self) -> Iterable[Seen]:
        """Check for prepared claims that have no right to their devices any more."""
        why_gone = self._cluster.why_gone if self._cluster else None
        return self.of_gpus(
            lambda inventory: node_checks.gone(gone_claims(self.places, inventory, why_gone))
        )

    def damaged_records(self) -> Iterable[Seen]:
        """Check for records that cannot be read."""
        stored = stored_records(self.places.plugins / DRIVER_NAME)
        return self.of_gpus(lambda inventory: node_checks.damaged(stored, inventory))

    def passthrough(self) -> Iterable[Seen]:
        """Check whether virtual machines can use the GPUs, if the driver offers them."""
        if self._vfio or self._installed_with_vfio():
            return self.of_gpus(lambda inventory: node_checks.for_machines(inventory.passthrough))
        return [ok("GPUs are not offered to virtual machines (--vfio)")]

    def _installed_with_vfio(self) -> bool:
        try:
            installed = self.daemon_sets().ours if self._cluster else ()
        except DriverError:
            return False  # an admin may list DaemonSets, but the driver may not
        return any(ds.offers_passthrough for ds in installed)

    def daemon_sets(self) -> DaemonSets:
        """Return the DaemonSets that give out GPUs. Raises DriverError."""
        return sorted_out(self.cluster.every(DAEMON_SETS))

    def driver_pods(self) -> Iterator[Seen]:
        """Check the pods of the driver's DaemonSets, node by node."""
        cluster, installed = self.cluster, self.daemon_sets()
        nodes = [(Node.of(node), cluster_checks.labels_of(node)) for node in cluster.nodes()]
        labelled = {node.name: ", ".join(map(str, node.taints)) for node, labels in nodes if labels}
        down = [node.name for node, _ in nodes if not node.ready]
        for ds in (*installed.ours, *installed.supervisors):
            yield from pod_checks.pods(
                ds, self._pods_of(ds), down=down, labelled=labelled, now=cluster.now()
            )
        if not (installed.ours or installed.supervisors):
            yield unknown("no DaemonSet of this driver was found (see daemonset)")

    def _pods_of(self, ds: Installed) -> list[DaemonPod]:
        pods = self.cluster.pods(ds.pod_labels)
        own = [pod for pod in pods if text(pod, "metadata", "namespace") == ds.namespace]
        return pods_of(ds.short_name, own)

    def past_scheduler(self) -> Iterator[Seen]:
        """Check for pods without devices because they bypassed the scheduler."""
        cluster = self.cluster
        nodes = {node.name: node for node in map(Node.of, cluster.nodes())}
        with_gpus = sorted({text(each, "spec", "nodeName") for each in cluster.slices()} - {""})
        looked_at = with_gpus[:_MOST_NODES]
        pods = (pod for node in looked_at for pod in cluster.pods_on(node))
        classes = cluster.every(DEVICE_CLASSES)
        unseen = len(with_gpus) - len(looked_at)
        yield from pod_checks.past_scheduler(pods, nodes, classes, unseen=unseen)

    def share_config(self) -> Iterator[Seen]:
        """Check the share configs: the one that this node's driver uses, and the ConfigMaps'."""
        if self.has_node:
            notes = read_notes(self.places.plugins / DRIVER_NAME)
            yield from share_configs.of_node(notes)
        if self._cluster is not None:
            try:
                yield from self._share_configs(self._cluster)
            except DriverError as error:
                yield of_error(Severity.UNKNOWN, error)

    def _share_configs(self, cluster: Cluster) -> Iterator[Seen]:
        installed = self.daemon_sets().ours
        labels = {node.name: node.labels for node in map(Node.of, cluster.nodes())}
        for ds in installed:
            source = share_configs.source_of(ds.pod)
            name = source.config_map if source else ""
            config_map = cluster.config_map(ds.namespace, name) if name else None
            nodes = {pod.node for pod in self._pods_of(ds)} & labels.keys()
            yield from share_configs.of_cluster(
                source, config_map, ds.namespace, {node: labels[node] for node in nodes}
            )
        if not installed:
            yield unknown("no DaemonSet of this driver was found (see daemonset)")

    def schedulers(self) -> Iterator[Seen]:
        """Check the other schedulers and quota systems that handle pods with claims."""
        cluster = self.cluster
        kai = cluster.serves(schedulers.KAI_GROUP)
        try:
            version = schedulers.kai_version(cluster.every(DEPLOYMENTS)) if kai else ""
        except DriverError:
            version = ""  # an admin may list Deployments, but the driver may not
        yield from schedulers.judged(
            kai=schedulers.Kai(version=version) if kai else None,
            kueue=cluster.serves(schedulers.KUEUE_GROUP),
            slices=cluster.slices(),
        )

    def autoscalers(self) -> Iterator[Seen]:
        """Check whether Cluster Autoscaler would remove nodes because it misjudges their GPUs."""
        cluster = self.cluster
        try:
            runs = cluster.config_map(*autoscalers.STATUS) is not None
        except DriverError:
            runs = None  # an admin may read it, but the driver may not
        yield from autoscalers.judged(cluster.nodes(), cluster.slices(), runs=runs)

    def accounts(self) -> list[str]:
        """Return the users of the driver's ServiceAccounts; none if DaemonSets are not visible."""
        try:
            return [our.user for our in self.daemon_sets().ours]
        except DriverError:
            return []

    def permissions(self) -> Iterator[Seen]:
        """Check the driver's permissions: in its pod its own, else those of its DaemonSets."""
        if self.cluster.is_driver:
            yield from cluster_checks.permissions(self._permissions_of(None))
            return
        installed = self.daemon_sets().ours
        for ds in installed:
            yield from cluster_checks.permissions(self._permissions_of(ds.subject))
        if not installed:
            yield unknown(
                "no DaemonSet of this driver was found, so its ServiceAccount is not known",
                "run doctor in the driver's pod, once it is installed",
            )

    def _permissions_of(self, subject: tuple[str, str] | None) -> PermissionFacts:
        return self.cluster.permissions(shipped.PERMISSIONS, subject)

    def runtimes(self) -> Mapping[str, list[str]]:
        """Return the nodes by the container runtime that each reports; none without a cluster."""
        by_version: dict[str, list[str]] = {}
        try:
            nodes = self._cluster.nodes() if self._cluster else []
        except DriverError:
            nodes = []  # the check of kubelets reports why
        for node in nodes:
            version = text(node, "status", "nodeInfo", "containerRuntimeVersion")
            if version:
                by_version.setdefault(version, []).append(text(node, "metadata", "name"))
        return by_version

    def runtime_cdi(self) -> Iterator[Seen]:
        """Check whether containers get devices through CDI, by facts of node and cluster."""
        versions = self.runtimes()
        configs = self._runtime_configs(versions) if self.has_node else None
        yield from runtime_checks.runtime_cdi(configs, versions, self._own_node)

    def default_runtime(self) -> Iterator[Seen]:
        """Check the runtime of pods that name none."""
        yield from runtime_checks.default_runtime(self._runtime_configs(self.runtimes()))

    def _runtime_configs(self, versions: Mapping[str, list[str]]) -> list[RuntimeConfig] | None:
        own = runtime_checks.containerd_version(versions, self._own_node)
        return node_facts.runtime_configs(self.places, own)

    def gpu_labels(self) -> Iterator[Seen]:
        """Check the labels of nodes, and whether this node is missing one."""
        nodes = self.cluster.every(NODES)
        yield from cluster_checks.gpu_labels(nodes)
        own = [node for node in nodes if text(node, "metadata", "name") == self._own_node]
        if self.has_node and own:
            facts = node_facts.driver_facts(self.places)
            labels = cluster_checks.labels_of(own[0])
            yield from node_checks.labelled(facts, labels, self._own_node)
