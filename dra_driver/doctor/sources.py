"""What the checks ask: the node and the cluster, as far as they are there, each thing once.

In: `Places`, `Cluster`, or one of them. Out: facts for the checks' table. The two meet here: which
ServiceAccount the driver has is said by its DaemonSet, and a node's labels by its Node.
"""

from collections.abc import Iterator, Mapping

from dra_driver.devices.model import Inventory
from dra_driver.doctor import (
    cluster_checks,
    node_checks,
    node_facts,
    runtime_checks,
    schedulers,
    shipped,
)
from dra_driver.doctor.cluster_facts import Cluster, PermissionFacts, text
from dra_driver.doctor.finding import Seen, unknown
from dra_driver.doctor.installed import DaemonSets, sorted_out
from dra_driver.doctor.once import Once
from dra_driver.doctor.places import Places
from dra_driver.doctor.runtime_config import RuntimeConfig
from dra_driver.errors import DeviceError, DriverError, SetupError
from dra_driver.kube.server_version import version_numbers

_NO_NVML = "NVML does not answer (see gpus)"


class Sources:
    """Where facts come from; for any thread.

    Args:
        places: of the node; None where doctor does not run on one.
        cluster: the cluster; None where none is known.
        in_a_pod: whether this process runs in a pod.
        own_node: the name of this node's Node, as far as it is known.
    """

    def __init__(
        self,
        *,
        places: Places | None,
        cluster: Cluster | None,
        in_a_pod: bool = False,
        own_node: str = "",
    ) -> None:
        self._places = places
        self._cluster = cluster
        self._in_a_pod = in_a_pod
        self._own_node = own_node
        self._gpus = Once(lambda: node_facts.gpus(self.places))

    def close(self) -> None:
        """Close the connections to the API server."""
        if self._cluster is not None:
            self._cluster.close()

    @property
    def has_node(self) -> bool:
        """Whether this is a node."""
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
        """Return what NVML says; asked once. Raises DeviceError."""
        return self._gpus.get()

    def nvml(self) -> Iterator[Seen]:
        """Judge the GPUs."""
        try:
            node_facts.library(self.places)
        except DeviceError:
            yield unknown("NVML is not there (see driver-library)")
            return
        yield from node_checks.gpus(self.gpus())

    def excluded(self) -> Iterator[Seen]:
        """Say which GPUs are left out."""
        try:
            inventory = self.gpus()
        except DeviceError:
            yield unknown(_NO_NVML)
            return
        yield from node_checks.excluded(inventory)

    def persistence(self) -> Iterator[Seen]:
        """Judge the GPUs' persistence mode."""
        try:
            facts = self.gpus()
        except DeviceError:
            yield unknown(_NO_NVML)
            return
        yield from node_checks.persistence(facts)

    def mig_modes(self) -> Iterator[Seen]:
        """Judge the GPUs' MIG modes, by the version of Kubernetes where that is known."""
        try:
            facts = self.gpus()
        except DeviceError:
            yield unknown(_NO_NVML)
            return
        try:
            kubernetes = version_numbers(self._cluster.server().version) if self._cluster else None
        except DriverError:
            kubernetes = None  # the check of the API server says why
        yield from node_checks.mig_modes(facts, kubernetes)

    def holders(self) -> Iterator[Seen]:
        """Say who has the GPUs open."""
        try:
            inventory = self.gpus()
        except DeviceError:
            yield unknown(_NO_NVML)
            return
        facts = node_facts.holder_facts(self.places, inventory, in_a_pod=self._in_a_pod)
        yield from node_checks.holders(facts)

    def daemon_sets(self) -> DaemonSets:
        """Return the DaemonSets that give out GPUs. Raises DriverError."""
        return sorted_out(self.cluster.daemon_sets())

    def schedulers(self) -> Iterator[Seen]:
        """Judge what else decides over pods with claims."""
        cluster = self.cluster
        kai = cluster.serves(schedulers.KAI_GROUP)
        try:
            version = schedulers.kai_version(cluster.deployments()) if kai else ""
        except DriverError:
            version = ""  # an admin may list Deployments, and the driver may not
        yield from schedulers.judged(
            kai=schedulers.Kai(version=version) if kai else None,
            kueue=cluster.serves(schedulers.KUEUE_GROUP),
            slices=cluster.slices(),
        )

    def accounts(self) -> list[str]:
        """Return the driver's ServiceAccounts as users; none where DaemonSets cannot be seen."""
        try:
            return [one.user for one in self.daemon_sets().ours]
        except DriverError:
            return []

    def permissions(self) -> Iterator[Seen]:
        """Judge the driver's permissions: in its own pod its own, else those of its DaemonSet."""
        if self.cluster.is_driver:
            yield from cluster_checks.permissions(self._permissions_of(None))
            return
        installed = self.daemon_sets().ours
        for one in installed:
            yield from cluster_checks.permissions(self._permissions_of(one.subject))
        if not installed:
            yield unknown(
                "no DaemonSet of this driver says which ServiceAccount it has",
                "run doctor in the driver's pod, once it is installed",
            )

    def _permissions_of(self, subject: tuple[str, str] | None) -> PermissionFacts:
        return self.cluster.permissions(shipped.PERMISSIONS, subject)

    def runtimes(self) -> Mapping[str, list[str]]:
        """Return the nodes by the container runtime that each reports; none without a cluster."""
        found: dict[str, list[str]] = {}
        try:
            nodes = self._cluster.nodes() if self._cluster else []
        except DriverError:
            nodes = []  # the check of nodes says why
        for node in nodes:
            version = text(node, "status", "nodeInfo", "containerRuntimeVersion")
            if version:
                found.setdefault(version, []).append(text(node, "metadata", "name"))
        return found

    def runtime_cdi(self) -> Iterator[Seen]:
        """Judge whether containers get devices by CDI, by node and cluster together."""
        versions = self.runtimes()
        configs = self._runtime_configs(versions) if self.has_node else None
        yield from runtime_checks.runtime_cdi(configs, versions, self._own_node)

    def default_runtime(self) -> Iterator[Seen]:
        """Judge the runtime of pods that name none."""
        yield from runtime_checks.default_runtime(self._runtime_configs(self.runtimes()))

    def _runtime_configs(self, versions: Mapping[str, list[str]]) -> list[RuntimeConfig] | None:
        own = runtime_checks.containerd_version(versions, self._own_node)
        return node_facts.runtime_configs(self.places, own)

    def gpu_labels(self) -> Iterator[Seen]:
        """Judge the labels of nodes, and whether this one lacks one."""
        nodes = self.cluster.every_node()
        yield from cluster_checks.gpu_labels(nodes)
        own = [one for one in nodes if text(one, "metadata", "name") == self._own_node]
        if self.has_node and own:
            facts = node_facts.driver_facts(self.places)
            labels = cluster_checks.labels_of(own[0])
            yield from node_checks.labelled(facts, labels, self._own_node)
