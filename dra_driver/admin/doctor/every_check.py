"""The checks of `dra-driver doctor`: what each looks at, why that matters, and how it is judged.

Each check is a question to the sources and a pure judgement of the answer, so the failure of one
affects no other. An id never changes, because programs use it.
"""

from collections.abc import Callable, Iterable
from functools import partial

from msgspec import Struct

from dra_driver.admin.api.objects import DEVICE_CLASSES, POLICIES, POLICY_BINDINGS
from dra_driver.admin.doctor.checks import cluster_checks, node_checks, slice_checks
from dra_driver.admin.doctor.checks.finding import Place, Seen, Severity
from dra_driver.admin.doctor.facts import node_facts
from dra_driver.admin.doctor.sources import Sources
from dra_driver.kube.resource import NODES, RESOURCE_SLICES

_CLUSTER = frozenset({Place.CLUSTER})


class Check(Struct, frozen=True, kw_only=True):
    """One question, and how it is answered from the available sources.

    Attributes:
        needs: what has to be available, node or cluster; with both, either is enough.
        look: answers the question; may raise anything.
        silence: the severity if there is no answer in time.
    """

    id: str
    title: str
    why: str
    needs: frozenset[Place] = _CLUSTER
    look: Callable[[Sources], Iterable[Seen]]
    silence: Severity = Severity.UNKNOWN


SERVER: Check = Check(
    id="api-server",
    title="API server",
    why="the driver needs resource.k8s.io/v1, which Kubernetes serves from 1.34 on",
    look=lambda sources: cluster_checks.server(sources.cluster.server()),
    silence=Severity.ERROR,
)
"""Made before all others that need the cluster, which are skipped if it does not answer."""

_of_node = partial(Check, needs=frozenset({Place.NODE}))

OF_NODES: tuple[Check, ...] = (
    _of_node(
        id="kernel-driver",
        title="GPU driver",
        why="without it there are no device nodes, and NVML finds no GPU",
        look=lambda sources: sources.of_driver(
            lambda: node_checks.kernel_driver(node_facts.driver_facts(sources.places))
        ),
    ),
    _of_node(
        id="driver-library",
        title="GPU driver root",
        why="the driver finds GPUs through libnvidia-ml.so.1 of the running version",
        look=lambda sources: sources.of_driver(
            lambda: node_checks.library(node_facts.library(sources.places))
        ),
        silence=Severity.ERROR,
    ),
    _of_node(
        id="gpus",
        title="GPUs",
        why="GPUs that do not answer NVML are not offered to pods",
        look=lambda sources: sources.of_driver(sources.nvml),
        silence=Severity.ERROR,
    ),
    _of_node(
        id="excluded-gpus",
        title="GPUs that are left out",
        why="a GPU that --exclude-gpus names is never offered, and an entry that matches none has "
        "no effect",
        look=lambda sources: sources.of_gpus(node_checks.excluded),
    ),
    _of_node(
        id="persistence-mode",
        title="persistence mode",
        why="without it, a GPU shuts down when its last program closes it: the next one waits for "
        "seconds, and time-slices, compute modes and memory limits are lost",
        look=lambda sources: sources.of_gpus(node_checks.persistence),
    ),
    _of_node(
        id="mig-mode",
        title="MIG mode",
        why="a GPU in MIG mode is offered only as MIG devices, and before Kubernetes 1.37 only as "
        "existing ones",
        look=lambda sources: sources.of_gpus(sources.mig_modes),
    ),
    _of_node(
        id="gpu-holders",
        title="processes that have GPUs open",
        why="a GPU cannot be reset, nor its MIG mode changed, while a process has it open",
        look=lambda sources: sources.of_gpus(sources.holders),
    ),
    _of_node(
        id="passthrough",
        title="GPUs for virtual machines",
        why="a virtual machine can get only a GPU that the node's admin has bound to a VFIO "
        "driver, and gets all of its IOMMU group",
        look=Sources.passthrough,
    ),
    _of_node(
        id="device-nodes",
        title="device nodes",
        why="no CUDA program runs without nvidiactl and nvidia-uvm",
        look=lambda sources: sources.of_driver(
            lambda: node_checks.device_nodes(node_facts.node_files(sources.places))
        ),
    ),
    _of_node(
        id="cgroup",
        title="control groups",
        why="only control groups of version 2 can limit the memory of shares, and by default "
        "kubelets from 1.35 on do not start without them",
        look=lambda sources: node_checks.control_groups(node_facts.group_facts(sources.places)),
    ),
    _of_node(
        id="cdi-folder",
        title="CDI specs",
        why="the container runtime finds a claim's devices in the folder to which the driver "
        "writes, and drops a device that two files name",
        look=lambda sources: node_checks.specs(node_facts.spec_facts(sources.places)),
    ),
    _of_node(
        id="mounted-files",
        title="files that claims mount",
        why="no container starts if a file that its CDI spec names is gone, such as a library of "
        "a GPU driver that was upgraded",
        look=lambda sources: node_checks.missing(node_facts.missing_of_claims(sources.places)),
    ),
    _of_node(
        id="gone-claims",
        title="claims that are gone",
        why="a claim that was deleted keeps its GPU while its pod runs, and other claims wait",
        look=Sources.gone_claims,
    ),
    _of_node(
        id="damaged-records",
        title="records of claims",
        why="if a claim's record is damaged, what was made for the claim is never undone",
        look=Sources.damaged_records,
    ),
    Check(
        id="runtime-cdi",
        title="CDI in the container runtime",
        why="containers get their devices through CDI, and none if CDI is off",
        needs=frozenset(Place),
        look=Sources.runtime_cdi,
    ),
    _of_node(
        id="default-runtime",
        title="default container runtime",
        why="NVIDIA's runtime gives GPUs to any image whose environment asks for them, without "
        "claims",
        look=Sources.default_runtime,
    ),
    _of_node(
        id="registration",
        title="registration with the kubelet",
        why="the kubelet calls the driver that listens in its plugins_registry",
        look=lambda sources: node_checks.sockets(node_facts.socket_facts(sources.places)),
    ),
    _of_node(
        id="others-on-node",
        title="other software that gives out GPUs",
        why="a GPU that both offer can be given out twice",
        look=lambda sources: node_checks.others(node_facts.other_facts(sources.places)),
    ),
    Check(
        id="share-config",
        title="share configs",
        why="a config that cannot be used has no effect on its nodes",
        needs=frozenset(Place),
        look=Sources.share_config,
    ),
)

OF_CLUSTERS: tuple[Check, ...] = (
    Check(
        id="clock",
        title="clock",
        why="if clocks differ, tokens and certificates may not be valid yet, or may have expired",
        look=lambda sources: cluster_checks.clock(sources.cluster.server()),
    ),
    Check(
        id="api-server-features",
        title="features of the API server",
        why="it drops fields of features that are off: tested by creating objects with "
        "dryRun=All, which stores nothing",
        look=lambda sources: cluster_checks.features(
            sources.cluster.features(), sources.cluster.server().version
        ),
    ),
    Check(
        id="permissions",
        title="permissions of the driver",
        why="without them it cannot read claims, or cannot publish devices",
        look=Sources.permissions,
    ),
    Check(
        id="kubelet-version",
        title="kubelets",
        why="kubelets use DRA's current protocol from 1.34 on",
        look=lambda sources: cluster_checks.kubelet_versions(sources.cluster.nodes()),
    ),
    Check(
        id="kubelet-gates",
        title="feature gates of kubelets",
        why="a kubelet with DynamicResourceAllocation off calls no driver",
        look=lambda sources: cluster_checks.kubelet_gates(sources.cluster.kubelets()),
    ),
    Check(
        id="gpu-labels",
        title="labels of GPU nodes",
        why="the driver's DaemonSets run only on nodes with a label that marks GPU nodes",
        look=Sources.gpu_labels,
    ),
    Check(
        id="daemonset",
        title="the driver's DaemonSet",
        why="a node without the driver's pod offers no GPUs, and cannot start pods that use them",
        look=lambda sources: cluster_checks.daemon_sets(sources.daemon_sets()),
    ),
    Check(
        id="driver-pods",
        title="pods of driver and MPS supervisor",
        why="a pod that keeps failing can be ready in between, and pods with GPUs cannot start on "
        "a node whose driver does not run",
        look=Sources.driver_pods,
    ),
    Check(
        id="past-scheduler",
        title="pods that bypassed the scheduler",
        why="a pod that names its node gets no devices allocated, and may run without any error",
        look=Sources.past_scheduler,
    ),
    Check(
        id="others-in-cluster",
        title="other drivers and device plugins",
        why="a GPU that both offer can be given out twice",
        look=lambda sources: cluster_checks.other_drivers(
            sources.daemon_sets(), sources.cluster.nodes()
        ),
    ),
    Check(
        id="slices",
        title="published GPUs",
        why="the scheduler gives out only what is in ResourceSlices",
        look=lambda sources: slice_checks.published(sources.cluster.slices(), sources.cluster.node),
    ),
    Check(
        id="counters-cost",
        title="counters of shared GPUs",
        why="before Kubernetes 1.37 the scheduler goes through all nodes' counters for each node",
        look=lambda sources: slice_checks.counters_cost(
            sources.cluster.slices(), sources.cluster.server().version
        ),
    ),
    Check(
        id="taint-rules",
        title="DeviceTaintRules",
        why="a rule with an empty selector taints every device of every driver",
        look=lambda sources: slice_checks.taint_rules(sources.cluster.taint_rules()),
    ),
    Check(
        id="slices-of-others",
        title="publishers of the driver's name",
        why="the scheduler cannot tell publishers with the same name apart",
        look=lambda sources: (
            *slice_checks.of_others(sources.cluster.slices()),
            *slice_checks.in_others_names(
                sources.cluster.every(RESOURCE_SLICES),
                sources.cluster.every(NODES),
                sources.cluster.node,
            ),
        ),
    ),
    Check(
        id="schedulers",
        title="other schedulers, and quotas",
        why="other schedulers and quotas read slices in their own ways",
        look=Sources.schedulers,
    ),
    Check(
        id="cluster-autoscaler",
        title="Cluster Autoscaler",
        why="a node that it considers unready or idle is removed, with the pods on it",
        look=Sources.autoscalers,
    ),
    Check(
        id="device-classes",
        title="DeviceClasses",
        why="claims and resource names select devices through them",
        look=lambda sources: cluster_checks.classes(
            sources.cluster.every(DEVICE_CLASSES), sources.cluster.features().has
        ),
    ),
    Check(
        id="config-policy",
        title="admission policy of claim configs",
        why="it refuses wrong configs when they are written, not when a pod starts",
        look=lambda sources: cluster_checks.config_policy(
            sources.cluster.every(POLICIES), sources.cluster.every(POLICY_BINDINGS)
        ),
    ),
    Check(
        id="own-node-policy",
        title="admission policies of ResourceSlices and claims' status",
        why="RBAC alone cannot restrict a driver to its own node's slices and devices",
        look=lambda sources: cluster_checks.own_node_policy(
            sources.cluster.every(POLICIES),
            sources.cluster.every(POLICY_BINDINGS),
            sources.accounts(),
        ),
    ),
)

CHECKS: tuple[Check, ...] = (*OF_NODES, SERVER, *OF_CLUSTERS)
"""All checks, in the order in which they are reported."""
