"""Which DaemonSets of a cluster give out GPUs: this driver's, NVIDIA's, device plugins'.

Installers choose the names of releases and images, so ours are recognised by any of three things:
their program, `dra-driver` with its sub-command; an image called dra-driver; the chart's labels.
The program `gpu-kubelet-plugin` is ours only with such an image or labels, because NVIDIA's DRA
driver is started in the same way.
"""

from collections.abc import Iterable, Mapping

from msgspec import Struct

from dra_driver.admin.doctor.facts.cluster_facts import Subject, containers
from dra_driver.kube.fields import Object, mapping, number, objects, text, texts_by_name
from dra_driver.node.feature_gates import PASSTHROUGH, gate_value

_OURS = "dra-driver"
"""Our program, the image's usual name, and the chart's."""

PLUGIN, SUPERVISOR = "kubelet-plugin", "mps-supervisor"
"""Our sub-commands that run on nodes; the chart's label of components has the same values."""

_NAME_LABEL, _COMPONENT_LABEL = "app.kubernetes.io/name", "app.kubernetes.io/component"
_NVIDIAS_PROGRAM = "gpu-kubelet-plugin"

_NVIDIAS = ("dra-driver-nvidia-gpu", "k8s-dra-driver-gpu", "k8s-dra-driver")
_NO_GPUS = "compute-domain-"
"""Prefix of the programs in the image of NVIDIA's DRA driver that give out no GPUs."""

_DEVICE_PLUGINS = ("k8s-device-plugin", "nvidia-device-plugin", "nvidia-gpu-device-plugin")
_NO_PLUGINS = ("gpu-feature-discovery", "mps-control-daemon")
"""Programs in the device plugin's image that give out nothing."""


OPERATORS_LABEL = "nvidia.com/gpu.deploy.dra-driver"
"""The node label by which GPU Operator's GPUCluster selects nodes for NVIDIA's DRA driver.

(26.7, manifests/state-dra-driver.) It does not change an existing value.
"""


_GENERATION = "deprecated.daemonset.template.generation"
"""The annotation that counts revisions; pods have the number in the label pod-template-generation
(the controller compares it and a hash: pkg/controller/daemon/util, IsPodUpdated)."""


class Installed(Struct, frozen=True, kw_only=True):
    """A DaemonSet: its pods' account, how many it should have and has ready, and on which nodes.

    Attributes:
        wanted: on how many nodes it should have a pod.
        present: on how many it has one at all, `ready` or not.
        updated: on how many it has one of its newest revision.
        generation: the label of its pods of the newest revision; empty if unknown.
        waits_for_deletion: whether a pod stays as it is until somebody deletes it (OnDelete).
        selector: the node labels that its pods ask for.
        pod_labels: the labels by which its pods are found.
    """

    namespace: str
    short_name: str
    account: str
    wanted: int
    ready: int
    present: int = 0
    updated: int = 0
    generation: str = ""
    waits_for_deletion: bool = False
    selector: Mapping[str, str] = {}
    pod_labels: Mapping[str, str] = {}
    pod: Object = {}

    def nodes(self, labels: Mapping[str, Mapping[str, str]]) -> list[str]:
        """Return the nodes with the labels that its selector asks for; without a selector, none."""
        wanted = self.selector.items()
        return sorted(node for node, has in labels.items() if wanted and wanted <= has.items())

    @property
    def name(self) -> str:
        """Return namespace and name."""
        return f"{self.namespace}/{self.short_name}"

    @property
    def offers_passthrough(self) -> bool:
        """Whether its driver offers GPUs to virtual machines."""
        for container in objects(self.pod, "containers"):
            env = {text(entry, "name"): text(entry, "value") for entry in objects(container, "env")}
            gate = gate_value(PASSTHROUGH, env.get("FEATURE_GATES", ""))
            if "--vfio" in _words(container).split() or env.get("VFIO") == "true" or gate:
                return True
        return False

    @property
    def subject(self) -> Subject:
        """Return the ServiceAccount of its pods."""
        return self.namespace, self.account

    @property
    def user(self) -> str:
        """Return the user name of that account."""
        return f"system:serviceaccount:{self.namespace}:{self.account}"


class DaemonSets(Struct, frozen=True, kw_only=True):
    """DaemonSets that give out GPUs, and those of our MPS supervisor."""

    ours: tuple[Installed, ...] = ()
    supervisors: tuple[Installed, ...] = ()
    nvidias: tuple[Installed, ...] = ()
    device_plugins: tuple[Installed, ...] = ()


def sorted_out(daemon_sets: Iterable[Object]) -> DaemonSets:
    """Return the DaemonSets that give out GPUs, and our MPS supervisor's, by what they run."""
    ours, supervisors, nvidias, plugins = [], [], [], []
    for daemon_set in daemon_sets:
        component = _our_component(daemon_set)
        if component == PLUGIN:
            ours.append(_installed(daemon_set))
        elif component == SUPERVISOR:
            supervisors.append(_installed(daemon_set))
        elif any(_is_nvidias(container) for container in containers(daemon_set)):
            nvidias.append(_installed(daemon_set))
        elif any(_is_plugin(container) for container in containers(daemon_set)):
            plugins.append(_installed(daemon_set))
    return DaemonSets(
        ours=tuple(ours),
        supervisors=tuple(supervisors),
        nvidias=tuple(nvidias),
        device_plugins=tuple(plugins),
    )


def _our_component(daemon_set: Object) -> str | None:
    """Return which of our programs a DaemonSet runs; None if it is not ours."""
    for container in containers(daemon_set):
        words = _words(container).split()
        if _image(container) == _OURS or any(word.rpartition("/")[2] == _OURS for word in words):
            for component in (PLUGIN, SUPERVISOR):
                if any(word.endswith(component) for word in words):
                    return component
    labels = texts_by_name(daemon_set, "spec", "template", "metadata", "labels")
    labelled = labels.get(_COMPONENT_LABEL)
    is_named = labels.get(_NAME_LABEL) == _OURS
    return labelled if is_named and labelled in (PLUGIN, SUPERVISOR) else None


def _is_nvidias(container: Object) -> bool:
    words = _words(container)
    return (_image(container) in _NVIDIAS or _NVIDIAS_PROGRAM in words) and _NO_GPUS not in words


def _is_plugin(container: Object) -> bool:
    words = _words(container)
    if any(command in words for command in _NO_PLUGINS):
        return False
    return _image(container) in _DEVICE_PLUGINS or "nvidia-device-plugin" in words


def _image(container: Object) -> str:
    """Return the last part of an image's name, without tag and digest."""
    return text(container, "image").partition("@")[0].rpartition("/")[2].partition(":")[0]


def _words(container: Object) -> str:
    """Return command and arguments; a shell's command line is one of these."""
    given = (container.get(key) for key in ("command", "args"))
    return " ".join(str(word) for words in given if isinstance(words, list) for word in words)


def _installed(daemon_set: Object) -> Installed:
    status, spec = mapping(daemon_set, "status"), mapping(daemon_set, "spec")
    pod = mapping(spec, "template", "spec")
    annotations = texts_by_name(daemon_set, "metadata", "annotations")
    return Installed(
        namespace=text(daemon_set, "metadata", "namespace"),
        short_name=text(daemon_set, "metadata", "name"),
        account=text(pod, "serviceAccountName") or "default",
        wanted=number(status, "desiredNumberScheduled"),
        ready=number(status, "numberReady"),
        present=number(status, "currentNumberScheduled"),
        updated=number(status, "updatedNumberScheduled"),
        generation=annotations.get(_GENERATION, ""),
        waits_for_deletion=text(spec, "updateStrategy", "type") == "OnDelete",
        selector=texts_by_name(pod, "nodeSelector"),
        pod_labels=texts_by_name(spec, "selector", "matchLabels"),
        pod=pod,
    )
