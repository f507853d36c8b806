"""Which DaemonSets of a cluster give out GPUs: this driver's, NVIDIA's, device plugins'.

In: DaemonSets. Out: those that matter, known by image and command, since names and labels are the
installer's choice. An image of this driver is called dra-driver, whatever it is asked to run.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from dra_driver.doctor.cluster_facts import Subject, containers, mapping, text, texts
from dra_driver.slices.pool import Object

_OURS = "dra-driver"
_OUR_COMMAND = "kubelet-plugin"
"""In every way in which it is started: `dra-driver kubelet-plugin`, or as NVIDIA's is."""

_NVIDIAS = ("dra-driver-nvidia-gpu", "k8s-dra-driver-gpu", "k8s-dra-driver")
_NO_GPUS = "compute-domain-kubelet-plugin"
"""What runs from the image of NVIDIA's DRA driver and gives out no GPUs, under another name."""

_DEVICE_PLUGINS = ("k8s-device-plugin", "nvidia-device-plugin", "nvidia-gpu-device-plugin")
_NO_PLUGINS = ("gpu-feature-discovery", "mps-control-daemon")
"""What runs from the device plugin's image and gives out nothing."""


OPERATORS_LABEL = "nvidia.com/gpu.deploy.dra-driver"
"""By it GPU Operator says on which nodes its GPUCluster runs NVIDIA's DRA driver (26.7,
manifests/state-dra-driver). It leaves a value alone that is there already."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Installed:
    """A DaemonSet: its pods' account, how many it should have and has ready, and for what nodes."""

    namespace: str
    short_name: str
    account: str
    wanted: int
    ready: int
    selector: Mapping[str, str] = field(default_factory=dict)

    def nodes(self, labels: Mapping[str, Mapping[str, str]]) -> list[str]:
        """Return the nodes that have what its selector asks for, of labels by node.

        Without a selector none is said to have: affinity and taints are not looked at.
        """
        wanted = self.selector.items()
        return sorted(node for node, has in labels.items() if wanted and wanted <= has.items())

    @property
    def name(self) -> str:
        """Return namespace and name."""
        return f"{self.namespace}/{self.short_name}"

    @property
    def subject(self) -> Subject:
        """Return the ServiceAccount of its pods."""
        return self.namespace, self.account

    @property
    def user(self) -> str:
        """Return the same as the API server names it."""
        return f"system:serviceaccount:{self.namespace}:{self.account}"


@dataclass(frozen=True, slots=True, kw_only=True)
class DaemonSets:
    """DaemonSets that give out GPUs."""

    ours: tuple[Installed, ...] = ()
    nvidias: tuple[Installed, ...] = ()
    device_plugins: tuple[Installed, ...] = ()


def sorted_out(daemon_sets: Iterable[Object]) -> DaemonSets:
    """Return those that give out GPUs."""
    ours, nvidias, plugins = [], [], []
    for one in daemon_sets:
        if any(_is_ours(container) for container in containers(one)):
            ours.append(_installed(one))
        elif any(_is_nvidias(container) for container in containers(one)):
            nvidias.append(_installed(one))
        elif any(_is_plugin(container) for container in containers(one)):
            plugins.append(_installed(one))
    return DaemonSets(ours=tuple(ours), nvidias=tuple(nvidias), device_plugins=tuple(plugins))


def _is_ours(container: Object) -> bool:
    return _image(container) == _OURS and _OUR_COMMAND in _words(container)


def _is_nvidias(container: Object) -> bool:
    return _image(container) in _NVIDIAS and _NO_GPUS not in _words(container)


def _is_plugin(container: Object) -> bool:
    words = _words(container)
    if any(command in words for command in _NO_PLUGINS):
        return False
    return _image(container) in _DEVICE_PLUGINS or "nvidia-device-plugin" in words


def _image(container: Object) -> str:
    """Return the last part of an image's name, without tag and digest."""
    return text(container, "image").partition("@")[0].rpartition("/")[2].partition(":")[0]


def _words(container: Object) -> str:
    """Return command and arguments; a shell has all of them in one."""
    given = (container.get(key) for key in ("command", "args"))
    return " ".join(str(word) for one in given if isinstance(one, list) for word in one)


def _installed(daemon_set: Object) -> Installed:
    status = mapping(daemon_set, "status")
    pod = mapping(daemon_set, "spec", "template", "spec")
    return Installed(
        namespace=text(daemon_set, "metadata", "namespace"),
        short_name=text(daemon_set, "metadata", "name"),
        account=text(pod, "serviceAccountName") or "default",
        wanted=_number(status.get("desiredNumberScheduled")),
        ready=_number(status.get("numberReady")),
        selector=texts(pod, "nodeSelector"),
    )


def _number(value: object) -> int:
    return value if isinstance(value, int) else 0
