"""What the cluster's facts mean for pods with GPUs. Pure: facts in, findings out."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence

from dra_driver.admin.api.nodes import Node
from dra_driver.admin.doctor.checks.finding import (
    Seen,
    Severity,
    error,
    info,
    of_error,
    ok,
    unknown,
    warning,
)
from dra_driver.admin.doctor.checks.node_checks import NODE_LABEL
from dra_driver.admin.doctor.facts import shipped
from dra_driver.admin.doctor.facts.cluster_facts import (
    Feature,
    FeatureFacts,
    KubeletFacts,
    PermissionFacts,
    ServerFacts,
)
from dra_driver.admin.doctor.facts.installed import OPERATORS_LABEL, DaemonSets, Installed
from dra_driver.host.words import count, named
from dra_driver.kube.fields import Object, mapping, text, texts_by_name
from dra_driver.kube.resource import RESOURCE_CLAIMS
from dra_driver.kube.server_version import version_numbers
from dra_driver.slices.node import counted_by_plugin

FIRST_KUBERNETES = 1, 34
"""The first version that serves resource.k8s.io/v1."""

ALL_FEATURES_ON = 1, 36
"""The first version in which every `Feature` is on by default."""

INSTALL_AGAIN = "apply the driver's manifests of this version again"

_SKEW_SECONDS = 5.0
_GRAVE_SKEW_SECONDS = 300.0

GPU_LABELS: Mapping[str, frozenset[str]] = {
    "nvidia.com/dra-driver": frozenset({"true"}),
    "nvidia.com/gpu.present": frozenset({"true"}),
    "feature.node.kubernetes.io/pci-10de.present": frozenset({"true"}),
    "feature.node.kubernetes.io/pci-0302_10de.present": frozenset({"true"}),
    "feature.node.kubernetes.io/pci-0300_10de.present": frozenset({"true"}),
    "cloud.google.com/gke-accelerator": frozenset(),
    "kubernetes.azure.com/accelerator": frozenset({"nvidia"}),
    "karpenter.k8s.aws/instance-gpu-manufacturer": frozenset({"nvidia"}),
}
"""Labels by which the DaemonSets find nodes with GPUs, with their values; none: any value."""

LABEL_ADVICE = (
    f"kubectl label node NODE {NODE_LABEL} for each node with GPUs, or install Node Feature "
    "Discovery, which labels such nodes"
)

WITHOUT: Mapping[Feature, str] = {
    Feature.COUNTERS: (
        "only existing MIG devices are published, and devices that are divided into shares only as "
        "shares"
    ),
    Feature.TAINTS: "taints on devices are not stored",
    Feature.CONSUMABLE: "--consumable-shares has no effect",
    Feature.EXTENDED_RESOURCE: "nvidia.com/gpu in a pod's limits is not served by this driver",
}
"""What does not work in a cluster without a feature, as in docs/compatibility.md."""

GATE_FROM: Mapping[Feature, tuple[int, int]] = {
    Feature.COUNTERS: (1, 35),  # 1.34 expects counters elsewhere in slices
}
"""The first Kubernetes in which a feature's gate helps, if not the oldest supported one."""

_OLDEST, _WITH_ALL = (".".join(map(str, each)) for each in (FIRST_KUBERNETES, ALL_FEATURES_ON))


def server(facts: ServerFacts) -> Iterator[Seen]:
    """Check the API server's version."""
    numbers = version_numbers(facts.version)
    if numbers is None:
        yield unknown(f"Kubernetes {facts.version}: this version is not understood")
    elif numbers < FIRST_KUBERNETES:
        yield error(f"Kubernetes {facts.version}", f"update it to {_OLDEST} or newer")
    else:
        yield ok(f"Kubernetes {facts.version}")


def clock(facts: ServerFacts) -> Iterator[Seen]:
    """Check how far this machine's clock is from the server's."""
    ahead = facts.ahead_seconds
    if ahead is None:
        yield unknown("the API server does not report its time")
    elif abs(ahead) <= _SKEW_SECONDS:
        yield ok("this machine's clock agrees with the API server's within seconds")
    else:
        grave = Severity.ERROR if abs(ahead) > _GRAVE_SKEW_SECONDS else Severity.WARNING
        way = "behind" if ahead > 0 else "ahead of"
        yield Seen(
            severity=grave,
            text=f"this machine's clock is {abs(ahead):.0f} s {way} the API server's",
            advice="synchronise both with an NTP server (timedatectl, chronyc tracking)",
        )


def features(facts: FeatureFacts, version: str) -> Iterator[Seen]:
    """Check which features an API server of this version has."""
    numbers = version_numbers(version)
    on = [str(feature) for feature, has in facts.has.items() if has]
    if on:
        yield ok(f"the API server has {', '.join(on)}")
    for feature, has in facts.has.items():
        if not has:
            advice = f"run Kubernetes {_WITH_ALL} or newer"
            if numbers is not None and numbers >= ALL_FEATURES_ON:
                advice = f"remove {feature}=false and older emulated versions from the flags of "
                advice += "API server, scheduler and controller manager"
            elif numbers is None or numbers >= GATE_FROM.get(feature, FIRST_KUBERNETES):
                advice += (
                    f", or set the feature gate {feature}=true for API server, scheduler and"
                    " controller manager"
                )
            yield warning(f"the API server does not have {feature}: {WITHOUT[feature]}", advice)
    untried: dict[Seen, list[Feature]] = defaultdict(list)
    for feature, refusal in facts.refused.items():
        untried[of_error(Severity.UNKNOWN, refusal)].append(feature)
    for seen, gates in untried.items():
        yield unknown(f"{', '.join(gates)} could not be tested: {seen.text}", seen.advice)


def permissions(facts: PermissionFacts) -> Iterator[Seen]:
    """Check whether the driver has the permissions that it needs."""
    refused = [name for name, granted in facts.granted.items() if not granted]
    missing = [name for name in refused if name not in shipped.OF_CLAIM_STATUS]
    if refused and not missing:
        yield info(
            f"{facts.who} may not: {', '.join(refused)}; so the status of claims does not "
            "describe their devices",
            f"{INSTALL_AGAIN}, or set --claim-status=false if that is intended",
        )
    elif missing:
        yield error(
            f"{facts.who} may not: {', '.join(refused)}",
            f"{INSTALL_AGAIN}: the ClusterRole and ClusterRoleBinding must name this "
            "ServiceAccount",
        )
    else:
        yield ok(f"{facts.who} has the permissions that the driver needs")


def kubelet_versions(nodes: Iterable[Object]) -> Iterator[Seen]:
    """Check the versions of the kubelets."""
    by_version: dict[str, list[str]] = defaultdict(list)
    for node in nodes:
        version = text(node, "status", "nodeInfo", "kubeletVersion")
        by_version[version].append(text(node, "metadata", "name"))
    for version, names in sorted(by_version.items()):
        numbers = version_numbers(version)
        if numbers is None:
            yield unknown(f"kubelet {version or 'of unknown version'} on {named(names)}")
        elif numbers < FIRST_KUBERNETES:
            yield error(
                f"kubelet {version} on {named(names)}: DRA uses another protocol there",
                f"update these nodes to {_OLDEST} or newer",
            )
        else:
            yield ok(f"kubelet {version} on {named(names)}")
    if not by_version:
        yield unknown("there is no such Node", "check the node's name (--node-name)")


def kubelet_gates(facts: KubeletFacts) -> Iterator[Seen]:
    """Check the feature gates of kubelets."""
    needed = "DynamicResourceAllocation"  # up to 1.37; only 1.34 lets it be off
    off = [name for name, gates in facts.gates.items() if gates.get(needed) is False]
    if off:
        yield error(
            f"the feature gate {needed} is off on {named(off)}",
            "remove it from the kubelet's featureGates and restart the kubelet",
        )
    elif facts.gates:
        given = sorted({gate for gates in facts.gates.values() for gate in gates})
        what = f"; gates set there: {named(given)}" if given else ""
        every = len(facts.gates) + facts.not_asked
        yield ok(f"{len(facts.gates)} of {count(every, 'kubelet')} asked{what}")
    if facts.refused is not None:
        seen = of_error(Severity.UNKNOWN, facts.refused)
        yield unknown(seen.text, seen.advice)


def gpu_labels(nodes: Sequence[Object]) -> Iterator[Seen]:
    """Check whether any node is labelled as a GPU node."""
    names = [text(node, "metadata", "name") for node in nodes if labels_of(node)]
    if names:
        yield ok(f"{count(len(names), 'node')} with a label of GPU nodes: {named(names)}")
    else:
        yield warning(
            "no node has a label of GPU nodes, so the driver's DaemonSets, as shipped, have no "
            "pods",
            LABEL_ADVICE,
        )


def labels_of(node: Object) -> list[str]:
    """Return the labels that mark a node as a GPU node."""
    labels = mapping(node, "metadata", "labels")
    return [
        label
        for label, values in GPU_LABELS.items()
        if label in labels and (not values or labels[label] in values)
    ]


def daemon_sets(sets: DaemonSets) -> Iterator[Seen]:
    """Check whether driver and MPS supervisor run where they should."""
    for ds in (*sets.ours, *sets.supervisors):
        if ds.wanted == 0:
            yield error(
                f"DaemonSet {ds.name} has no pod: its affinity matches no node", LABEL_ADVICE
            )
        elif ds.ready < ds.wanted:
            yield error(
                f"DaemonSet {ds.name} has {ds.ready} of {count(ds.wanted, 'pod')} ready",
                "see driver-pods",
            )
        else:
            yield ok(f"DaemonSet {ds.name} has {count(ds.ready, 'pod')} ready")
    if not sets.ours:
        yield warning(
            "there is no DaemonSet of this driver: none runs `dra-driver kubelet-plugin`, and none "
            "has the labels of its chart",
            "install it, unless it runs in another way (see slices)",
        )
    elif not sets.supervisors:
        yield info(
            "there is no DaemonSet of the MPS supervisor: pods with MPS claims or shares do not "
            "start",
            "set mpsSupervisor.enabled, unless that is intended",
        )


def other_drivers(sets: DaemonSets, nodes: Iterable[Object]) -> Iterator[Seen]:
    """Check whether other software gives out the same GPUs."""
    nodes = list(nodes)
    labels = {node.name: node.labels for node in map(Node.of, nodes)}
    yield from (_nvidias(nvidia, nvidia.nodes(labels)) for nvidia in sets.nvidias)
    for plugin in sets.device_plugins:
        if plugin.wanted:
            yield info(
                f"a device plugin is installed: DaemonSet {plugin.name}, "
                f"{count(plugin.wanted, 'pod')} wanted",
                "keep it off the nodes of this driver",
            )
    plugged = {
        text(node, "metadata", "name"): what
        for node in nodes
        if (what := counted_by_plugin(texts_by_name(node, "status", "allocatable")))
    }
    for name, counted in plugged.items():
        words = ", ".join(f"{resource}: {amount}" for resource, amount in counted.items())
        yield warning(
            f"a device plugin gives out GPUs of node {name} ({words})",
            "remove the device plugin's pod from this node; meanwhile the driver there publishes "
            "none (--beside-device-plugin)",
        )
    if not (sets.nvidias or plugged):
        yield ok("no other software gives out the nodes' GPUs")


def _nvidias(ds: Installed, nodes: list[str]) -> Seen:
    """Check a DaemonSet of NVIDIA's DRA driver, and the nodes with its labels."""
    pods = count(ds.wanted, "pod")
    what = f"NVIDIA's DRA driver is installed: DaemonSet {ds.name}, {pods} wanted"
    if nodes:
        what += f"; its node selector matches {named(nodes)}"
    advice = (
        "run only one of the two drivers on a node: they have the same name, sockets and folders"
    )
    if OPERATORS_LABEL in ds.selector:
        advice += (
            "; GPU Operator's GPUCluster runs it: set its value gpuCluster.deployCR=false, or keep "
            f"it off a node: kubectl label node NODE --overwrite {OPERATORS_LABEL}=false"
        )
    return error(what, advice) if ds.wanted else info(what, advice)


def classes(present: Iterable[Object], has: Mapping[Feature, bool]) -> Iterator[Seen]:
    """Check whether the DeviceClasses are as shipped, as far as the API server stores them."""
    there = {text(each, "metadata", "name"): mapping(each, "spec") for each in present}
    wanted = shipped.device_classes()
    if not has.get(Feature.EXTENDED_RESOURCE, True):
        wanted = {
            name: {key: value for key, value in spec.items() if key != "extendedResourceName"}
            for name, spec in wanted.items()
        }
    good = []
    for name, spec in wanted.items():
        if name not in there:
            yield error(
                f"there is no DeviceClass {name}",
                f"{INSTALL_AGAIN}; a claim that names the class waits for it",
            )
        elif wrong := shipped.class_difference(spec, there[name]):
            yield warning(
                f"DeviceClass {name} is not as shipped: {wrong}",
                f"{INSTALL_AGAIN}, unless that is intended",
            )
        else:
            good.append(name)
    names = {text(spec, "extendedResourceName") for spec in wanted.values()} - {""}
    for name, spec in there.items():
        resource = text(spec, "extendedResourceName")
        if resource in names and name not in wanted:
            yield warning(
                f"DeviceClass {name} also serves {resource}",
                "delete it, unless that is intended: the newer of the two is used",
            )
    if good:
        yield ok(f"as shipped: {', '.join(good)}")


def config_policy(policies: Sequence[Object], bindings: Sequence[Object]) -> Iterator[Seen]:
    """Check whether wrong claim configs are refused at admission."""
    current = shipped.config_policies(policies)
    if not current:
        yield warning(
            "no ValidatingAdmissionPolicy checks claim configs",
            f"{INSTALL_AGAIN}; without it, a wrong config is reported only in a pod's events",
        )
    for name, is_current in current.items():
        if not is_current:
            yield warning(
                f"the rules of ValidatingAdmissionPolicy {name} are those of another version",
                INSTALL_AGAIN,
            )
        yield from _bound(name, bindings)


def own_node_policy(
    policies: Sequence[Object], bindings: Sequence[Object], accounts: Sequence[str]
) -> Iterator[Seen]:
    """Check whether a node's driver cannot write slices and claims' status of other nodes."""
    of_claims = shipped.own_node_policies(policies, f"{RESOURCE_CLAIMS.plural}/status")
    if not of_claims:
        yield warning(
            "no ValidatingAdmissionPolicy restricts a driver to the status of its own node's "
            "claims",
            f"{INSTALL_AGAIN}; without it, an attacker on one node who may write the status of "
            "claims can change which devices any claim has",
        )
    for name in of_claims:
        yield from _bound(name, bindings)
    covering = shipped.own_node_policies(policies)
    if not covering:
        yield warning(
            "no ValidatingAdmissionPolicy restricts a driver to its own node's ResourceSlices",
            f"{INSTALL_AGAIN}; without it, an attacker on one node can offer devices in the name "
            "of another",
        )
        return
    covered = frozenset().union(*covering.values())
    for account in accounts:
        if account not in covered:
            yield warning(
                f"the policies {named(covering)} do not apply to {account}",
                "name the driver's ServiceAccount in the policy's match condition",
            )
    for name in shipped.without_names(policies) & covering.keys():
        if not accounts or covering[name] & {*accounts}:  # skips those of other drivers
            what = "lets a node's driver use the slice names and the pool of another node"
            yield warning(f"ValidatingAdmissionPolicy {name} {what}", INSTALL_AGAIN)
    for name in covering:
        yield from _bound(name, bindings)


def _bound(policy: str, bindings: Sequence[Object]) -> Iterator[Seen]:
    actions = shipped.actions_of(policy, bindings)
    if "Deny" in actions:
        yield ok(f"ValidatingAdmissionPolicy {policy} is in force")
    elif actions:
        yield info(
            f"ValidatingAdmissionPolicy {policy} denies nothing: {', '.join(sorted(actions))}",
            "set validationActions to [Deny] in its binding, unless that is intended",
        )
    else:
        yield warning(
            f"ValidatingAdmissionPolicy {policy} has no binding, so it does nothing",
            INSTALL_AGAIN,
        )
