"""A node on which the driver is installed as by an admin: the built image, by Helm.

In: the image's archive (hack/image) and the chart. Out: driver and MPS supervisor as DaemonSets on
a node of hack/cluster, whose paths are the chart's values; nothing else differs from an
installation. The label that selects nodes for the driver starts and stops it.
"""

import urllib.request
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

import yaml

from testbed import mps as mps_daemons
from testbed.api import Object
from testbed.cluster import Cluster
from testbed.commands import REPOSITORY, TestbedError, wait_until
from testbed.driver import logged
from testbed.helm import Helm
from testbed.node import GpuNode
from testbed.pods import explain, is_ready, wait_gone

CHART = REPOSITORY / "manifests" / "chart"
RELEASE = NAMESPACE = "dra-driver"
LABEL = "nvidia.com/dra-driver"
"""The label that brings the driver to a node without other labels of GPU nodes."""

_OTHER_LABEL = "nvidia.com/gpu.present"
_ROOT_IN_POD = "/driver-root"
_DRIVER = "app.kubernetes.io/component=kubelet-plugin"
_METRICS_PORT = 8080
"""The chart's default."""


class InstalledNode(GpuNode):
    """A node with the driver and the MPS supervisor as DaemonSets, of the image in an archive.

    The cluster has to be one `for_pods`: they reach the node, but not its loopback, and there are
    no Services here. `driver_env` are settings of the driver besides those that this machine needs;
    `platform` is the name of one of the chart's files of values.
    """

    def __init__(
        self,
        cluster: Cluster,
        folder: Path,
        image: Path,
        *,
        profile: str = "h100x8",
        driver_env: Mapping[str, str] | None = None,
        platform: str = "",
    ) -> None:
        super().__init__(cluster, folder, profile=profile)
        self._image = image
        self._platform = ("--values", CHART / "platforms" / f"{platform}.yaml") if platform else ()
        self._tag = ""
        self._settings = dict(driver_env or {})
        self._share_config = ""
        self._cleanup: Object = {"enabled": False}
        self._helm: Helm | None = None

    def up(self, tell: Callable[[str], None], *, detached: bool = False) -> None:
        """Bring everything up, in order, and report each step. `down` undoes what was done so far.

        Pods outlive this program anyway. Raises TestbedError if something is not available.
        """
        self.up_bare(tell)
        tell("installing the chart by Helm, which is compiled the first time (about four minutes)")
        self.install()
        self.start_driver(detached=detached)
        tell("driver and MPS supervisor up, as DaemonSets of the image")

    def up_bare(self, tell: Callable[[str], None]) -> None:
        """Bring up a node with GPUs and the image, without the driver."""
        super().up_bare(tell)
        self.machine.mount()
        self.cluster.kubectl("label", "node", self.cluster.node, f"{_OTHER_LABEL}-")
        self.cluster.load(self._image)
        tell("image given to the container runtime")

    def install(self) -> None:
        """Install the chart. No pod of it runs before `start_driver`."""
        self._undo.append(self.uninstall)
        self._helm = Helm(self.cluster, NAMESPACE)
        self._apply("install", "--create-namespace")

    def uninstall(self) -> None:
        """Uninstall the chart, if it is installed, and end MPS daemons, which outlive it."""
        self._label(on=False)
        if self._helm is not None:
            self._helm("uninstall", RELEASE, "--wait", "--ignore-not-found")
            self._helm = None
        self._cleanup = {"enabled": False}
        wait_gone(self.cluster.api, NAMESPACE)
        mps_daemons.end_all(self.place.plugins)

    def start_driver(self, *, detached: bool = False) -> None:  # noqa: ARG002 (pods always are)
        """Bring the driver to the node, and wait until it has published its GPUs."""
        self._label(on=True)
        self.wait_ready()
        self.wait_published()

    def without_driver(self, act: Callable[[], object], *, detached: bool = False) -> None:
        """Keep the driver off the node during a block."""
        self._label(on=False)
        wait_gone(self.cluster.api, NAMESPACE)
        act()
        self.start_driver(detached=detached)

    def upgrade(self, *, tag: str = "") -> None:
        """Upgrade to another image tag, or to the chart's own; wait until only that runs."""
        self._tag = tag
        self._apply("upgrade")
        self.wait_ready()

    def clean_up(self, *flags: str) -> None:
        """Replace the driver by the chart's cleanup, with flags of `dra-driver cleanup`."""
        self._cleanup = {"enabled": True, "args": list(flags)}
        self._apply("upgrade")

    def come_back(self) -> None:
        """Replace the cleanup by the driver, and wait until it has published its GPUs."""
        self._cleanup = {"enabled": False}
        self.upgrade(tag=self._tag)
        self.wait_published()

    def metrics(self) -> str:
        """The metrics of the driver's pod."""
        (pod,) = self.driver_pods(labelSelector=_DRIVER)
        address = f"http://{pod['status']['podIP']}:{_METRICS_PORT}/metrics"
        with urllib.request.urlopen(address, timeout=20) as answer:
            text: str = answer.read().decode()
        return text

    @property
    def driver_settings(self) -> dict[str, str]:
        """The driver's settings, by their variables, without those that this machine needs."""
        return dict(self._settings)

    def restart_driver(self, settings: Mapping[str, str]) -> None:
        """Give the driver other settings, by an upgrade, and wait until it publishes with them."""
        self._settings = dict(settings)
        self.upgrade(tag=self._tag)
        wait_until(self._has_published, "the new driver to publish its GPUs", timeout=60)
        self.wait_published()

    def share(self, config: str) -> None:
        """Give the node a share config, by the chart's value, which restarts nothing."""
        self._share_config = config
        if self._helm is not None:
            self._apply("upgrade")

    @property
    def follow_log(self) -> str:
        """The command that shows what the driver logs."""
        return f"kubectl --namespace {NAMESPACE} logs --follow daemonset/{RELEASE}"

    def wait_ready(self, *, timeout: float = 120) -> None:
        """Wait until one pod of each DaemonSet, of the chart's present version, is ready.

        Raises TestbedError if they were not in time. The text says why, with the end of their logs.
        """
        api = self.cluster.api

        def ready() -> bool:
            sets, pods = api.all("DaemonSet", NAMESPACE), api.all("Pod", NAMESPACE)
            return len(pods) == len(sets) > 0 and all(map(is_current, sets)) and _are_ready(pods)

        try:
            wait_until(ready, "the DaemonSets to be ready", timeout=timeout)
        except TestbedError as error:
            raise TestbedError(f"{error}\n{self.explain()}") from error

    def explain(self) -> str:
        """Describe the state of the driver's pods, with the end of their logs."""
        said = []
        for pod in self.driver_pods():
            said.append(explain(self.cluster.api, pod))
            words = ("logs", "--namespace", NAMESPACE, pod["metadata"]["name"], "--tail=25")
            with suppress(TestbedError):
                said.append(self.cluster.kubectl(*words))
        return "\n".join(said)

    def driver_pods(self, **selectors: str) -> list[Object]:
        """The pods of the DaemonSets, all or some."""
        return self.cluster.api.all("Pod", NAMESPACE, **selectors)

    def values(self) -> Object:
        """The chart's values for this node."""
        env = self.pod_environment() | self._settings
        # The chart sets this one from a value of its own.
        settle = env.pop("HEALTH_SETTLE", None)
        gpus = {"env": _listed(env)}
        # Cleanup and supervisor have the machine's boot id, by which cleanup knows the daemons.
        machines = {name: value for name, value in env.items() if name == "PROC_ROOT"}
        return {
            "image": {"tag": self._tag},
            "nvidiaDriverRoot": str(self.machine.root),
            "cdiRoot": str(self.place.cdi_root),
            "cleanup": self._cleanup,
            "usage": {"enabled": False},
            "health": {} if settle is None else {"settleSeconds": float(settle)},
            "config": {"map": {"default": self._share_config} if self._share_config else {}},
            "kubeletPlugin": {
                "kubeletRegistrarDirectoryPath": str(self.place.registry),
                "kubeletPluginsDirectoryPath": str(self.place.plugins),
                "containers": {"gpus": gpus},
            },
            "mpsSupervisor": {"env": _listed(machines)},
        }

    def pod_environment(self) -> dict[str, str]:
        """The settings of the driver's container for a simulated machine on hack/cluster."""
        node = self.cluster.api.get("Node", self.cluster.node)
        addresses = {address["type"]: address["address"] for address in node["status"]["addresses"]}
        return {
            "SYS_ROOT": f"{_ROOT_IN_POD}/sys",
            "PROC_ROOT": f"{_ROOT_IN_POD}/proc",
            "LOG_FORMAT": "json",
            "KUBERNETES_SERVICE_HOST": str(addresses["InternalIP"]),
            "KUBERNETES_SERVICE_PORT": str(urlsplit(self.cluster.env["KUBE_APISERVER"]).port),
        }

    def _apply(self, verb: str, *words: str) -> None:
        if self._helm is None:
            raise TestbedError("the chart is not installed")
        path = self.folder / "values.yaml"
        path.write_text(yaml.safe_dump(self.values()))
        self._helm(verb, RELEASE, CHART, *self._platform, "--values", path, *words)

    def _label(self, *, on: bool) -> None:
        word = f"{LABEL}=true" if on else f"{LABEL}-"
        self.cluster.kubectl("label", "node", self.cluster.node, word)

    def _has_published(self) -> bool:
        (pod,) = self.driver_pods(labelSelector=_DRIVER)
        log = self.cluster.api.log(pod["metadata"]["name"], "kubelet-plugin", NAMESPACE)
        return bool(logged(log.encode(), "slices published"))


def _listed(env: Mapping[str, str]) -> list[Object]:
    """Variables as a container has them."""
    return [{"name": name, "value": value} for name, value in env.items()]


def is_current(daemons: Object) -> bool:
    """Whether a DaemonSet has a node, and all its pods are ready and of its present version."""
    status = daemons.get("status", {})
    wanted = status.get("desiredNumberScheduled", 0)
    counts = ("updatedNumberScheduled", "numberReady", "numberAvailable")
    seen = status.get("observedGeneration") == daemons["metadata"]["generation"]
    return seen and wanted > 0 and all(status.get(count, 0) == wanted for count in counts)


def _are_ready(pods: list[Object]) -> bool:
    """Whether all run, and none is being deleted."""
    return all(is_ready(pod) and "deletionTimestamp" not in pod["metadata"] for pod in pods)
