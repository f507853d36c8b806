"""The local cluster, through the command `hack/cluster`."""

import json
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from testbed.api import Api, Object
from testbed.commands import REPOSITORY, run, stream

COMMAND = REPOSITORY / "hack" / "cluster"


def version_flags(**wanted: str) -> tuple[str, ...]:
    """The flags of hack/cluster for versions and runtimes, by name; none for its own."""
    return tuple(word for name, own in wanted.items() if own for word in (f"--{name}", own))


def fetched(group: str) -> Path:
    """Return the folder of a group of hack/cluster's programs, which are compiled if missing.

    Raises TestbedError if they are not available.
    """
    said = run((sys.executable, COMMAND, "fetch", group), timeout=1800)
    return Path(said.removeprefix(group).strip())


class Cluster:
    """One named cluster of hack/cluster. `up` first, then the rest.

    `kubernetes` is the version, such as `1.36`, and `containerd` that of the container runtime,
    such as `1.7`; empty for those that hack/cluster chooses. `runtime` is `containerd` or `crio`,
    and `oci` what it calls, `runc` or `crun`.
    `feature_gates` are for every component, such as `DRADeviceTaints=true`.
    `flags` are more flags for components, such as `kube-scheduler:--v=4`. With `for_pods` the API
    server listens where pods reach it.
    """

    def __init__(  # noqa: PLR0913 (all that a cluster is asked for)
        self,
        name: str,
        kubernetes: str = "",
        flags: Iterable[str] = (),
        *,
        feature_gates: str = "",
        containerd: str = "",
        runtime: str = "",
        oci: str = "",
        for_pods: bool = False,
    ) -> None:
        self.name = name
        self._versions = version_flags(
            version=kubernetes, containerd=containerd, runtime=runtime, oci=oci
        )
        self._flags = tuple(f"--flag={flag}" for flag in flags)
        if feature_gates:
            self._flags += (f"--feature-gates={feature_gates}",)
        if for_pods:
            self._flags += ("--apiserver=bridge",)
        self._env: dict[str, str] = {}
        self._api: Api | None = None

    def up(self, tell: Callable[[str], None]) -> None:
        """Bring the cluster up and report its output; its node is Ready afterwards.

        Raises TestbedError if that fails, with hack/cluster's output.
        """
        stream(self._words("up", *self._versions, *self._flags), tell, timeout=1800)
        self.attach()

    def attach(self) -> None:
        """Read the paths of a running cluster."""
        self._env = json.loads(self._do("env", "--json"))

    def down(self) -> None:
        """Remove the cluster and everything that runs on it."""
        if self._api is not None:
            self._api.close()
            self._api = None
        self._do("down", timeout=180)

    def start(self, component: str) -> None:
        """Start a component that was stopped, such as `kubelet`."""
        self._do("start", component)

    def stop(self, component: str, *, signal: str = "TERM") -> None:
        """Stop a component of the cluster."""
        self._do("stop", component, "--signal", signal)

    def pid(self, component: str) -> int:
        """The process id of a component's last start."""
        record = Path(self._env["CLUSTER_STATE"], "pids", f"{component}.json")
        return int(json.loads(record.read_text())["pid"])

    @property
    def env(self) -> Mapping[str, str]:
        """The output of `hack/cluster env`, by name of the variable."""
        return self._env

    @property
    def node(self) -> str:
        """The node's name."""
        return self._env["NODE_NAME"]

    @property
    def cdi_root(self) -> Path:
        """Where the container runtime reads the driver's CDI specs."""
        return Path(self._env["CDI_ROOT"])

    @property
    def plugins(self) -> Path:
        """The kubelet's folder for what belongs to drivers."""
        return Path(self._env["KUBELET_PLUGINS_DIR"])

    @property
    def registry(self) -> Path:
        """The folder in which the kubelet looks for new drivers' sockets."""
        return Path(self._env["KUBELET_REGISTRY_DIR"])

    @property
    def api(self) -> Api:
        """The API, as the cluster's administrator."""
        if self._api is None:
            self._api = Api.from_kubeconfig(Path(self._env["KUBECONFIG"]))
        return self._api

    def kubectl(self, *words: str | Path, stdin: str | None = None, timeout: float = 60) -> str:
        """Run kubectl as the cluster's administrator and return what it printed."""
        program = (self._env["KUBECTL"], "--kubeconfig", self._env["KUBECONFIG"])
        return run((*program, *words), stdin=stdin, timeout=timeout)

    def ctr(self, *words: str) -> str:
        """Run containerd's ctr in the kubelet's namespace."""
        program = (self._env["CTR"], "--address", self._env["CONTAINERD_ADDRESS"])
        return run((*program, "--namespace", "k8s.io", *words))

    def container_spec(self, container: str) -> Object:
        """The OCI spec with which the runtime started a container."""
        if self.runtime == "containerd":
            facts: Object = json.loads(self.ctr("containers", "info", container))
            spec: Object = facts["Spec"]
            return spec
        run = Path(self._env["CLUSTER_STATE"], "crio", "run")
        (path,) = run.glob(f"*-containers/{container}/userdata/config.json")
        written: Object = json.loads(path.read_text())
        return written

    @property
    def runtime(self) -> str:
        """The container runtime, which is also the name of its component."""
        return self._env["CONTAINER_RUNTIME"]

    def load(self, archive: Path) -> None:
        """Give an archive of an image to the runtime. Raises TestbedError if it refuses."""
        self._do("load", str(archive))

    def name_test_image(self, name: str) -> None:
        """Give the test image one more name."""
        self._do("tag", name)

    def _do(self, verb: str, *words: str, timeout: float = 120) -> str:
        return run(self._words(verb, *words), timeout=timeout)

    def _words(self, verb: str, *words: str) -> tuple[str | Path, ...]:
        return (sys.executable, COMMAND, verb, "--name", self.name, *words)
