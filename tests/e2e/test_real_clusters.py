"""Real clusters on this machine, through the command line alone.

What is on the machine before and after is compared: processes, mounts, network devices, cgroups
and the folders that a kubelet and containerd like to leave behind. Other clusters may run beside
these, so only what carries a cluster's own names counts.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from cluster.state import ident_of

from readiness import lacks

pytestmark = [pytest.mark.e2e, pytest.mark.stream("two")]

COMMAND = Path(__file__).resolve().parents[2] / "hack" / "cluster"
POD = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "hello"},
    "spec": {
        "terminationGracePeriodSeconds": 0,
        "containers": [
            {
                "name": "hello",
                "image": "registry.local/gpu-test:1",
                "command": ["bash", "-c", "echo from $HOSTNAME in $LD_LIBRARY_PATH; sleep 3600"],
            }
        ],
    },
}


class Cluster:
    """One cluster under a root of the tests' own."""

    def __init__(self, name: str, root: Path) -> None:
        self.name = name
        self.state = root / name
        self._place = ("--name", name, "--root", str(root))

    def do(self, verb: str, *words: str, status: int | None = 0) -> str:
        """Run a command of hack/cluster; None allows any exit status."""
        command = [sys.executable, COMMAND, verb, *self._place, *words]
        done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
        assert status in (None, done.returncode), done.stdout + done.stderr
        return done.stdout

    @property
    def env(self) -> dict[str, str]:
        found: dict[str, str] = json.loads(self.do("env", "--json"))
        return found

    def kubectl(self, *words: str, stdin: str | None = None) -> str:
        env = self.env
        done = subprocess.run(
            [env["KUBECTL"], "--kubeconfig", env["KUBECONFIG"], *words],
            input=stdin,
            env={**os.environ, "KUBECACHEDIR": str(self.state / "kubectl-cache")},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def run_pod(self) -> None:
        self.kubectl("apply", "-f", "-", stdin=json.dumps(POD))
        self.kubectl("wait", "--for=condition=Ready", "pod/hello", "--timeout=90s")

    def pids(self) -> dict[str, int | None]:
        rows = json.loads(self.do("status", "--json", status=None))
        return {row["component"]: row["pid"] for row in rows}

    def cgroup_names(self) -> set[str]:
        found = Path("/sys/fs/cgroup").glob(f"**/dra-cluster-{self.name}-*")
        return {path.name for path in found}

    def devices(self) -> set[str]:
        """The cluster's bridge and the hosts' ends of its pods' networks."""
        bridge = f"dra-{ident_of(self.name, self.state).rsplit('-', 1)[1]}"
        ports = Path("/sys/class/net", bridge, "brif")
        return {bridge, *(path.name for path in ports.iterdir())} & interfaces()

    def traces(self) -> list[str]:
        """What on this machine carries this cluster's folder or names."""
        found = [f"cgroup {name}" for name in self.cgroup_names()]
        mountinfo = Path("/proc/self/mountinfo").read_text()
        found += [f"mount {line}" for line in mountinfo.splitlines() if str(self.state) in line]
        for entry in Path("/proc").glob("[0-9]*"):
            if int(entry.name) == os.getpid():
                continue
            try:
                command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
                root = (entry / "mountinfo").read_text()
            except OSError:
                continue
            if f"{self.state}/" in command or f"upperdir={self.state}/" in root:
                found.append(f"process {entry.name} {command}")
        ident = ident_of(self.name, self.state)
        run = Path("/run/dra-cluster")
        own = (self.state, run / ident, run / f"{ident.rsplit('-', 1)[1]}.shims")
        found += [f"path {path}" for path in own if path.is_symlink() or path.exists()]
        return found


def missing() -> str:
    if os.geteuid() != 0:
        return "a kubelet needs root"
    command = [sys.executable, COMMAND, "fetch"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        lacks("cluster", done.stderr)
    return ""


@pytest.fixture(scope="module")
def root() -> Iterator[Path]:
    if reason := missing():
        if os.environ.get("E2E_REQUIRED") == "1":
            pytest.fail(reason)
        pytest.skip(reason)
    # Not below pytest's folder: the kubelet's unix sockets need a short path.
    folder = Path(f"/var/lib/dra-cluster-test-{os.getpid()}")
    yield folder
    assert not folder.exists()


@pytest.fixture
def alpha(root: Path) -> Iterator[Cluster]:
    cluster = Cluster("alpha", root)
    yield cluster
    cluster.do("down")


def interfaces() -> set[str]:
    return {path.name for path in Path("/sys/class/net").iterdir()}


def sysctls() -> dict[str, str]:
    """Settings of the whole machine that a kubelet, a bridge plugin or containerd may change."""
    names = (
        *("vm/overcommit_memory", "vm/panic_on_oom", "kernel/panic", "kernel/panic_on_oops"),
        *("net/ipv4/ip_forward", "kernel/keys/root_maxkeys"),
    )
    return {name: Path("/proc/sys", name).read_text() for name in names}


def test_a_pod_runs_and_its_log_can_be_read(alpha: Cluster) -> None:
    before = sysctls()
    alpha.do("up")
    alpha.run_pod()
    devices = alpha.devices()
    assert len(devices) == 2
    assert alpha.kubectl("logs", "hello") == (
        "from hello in /usr/local/nvidia/lib:/usr/local/nvidia/lib64\n"
    )
    assert alpha.kubectl("exec", "hello", "--", "bash", "-c", "echo $$").strip().isdigit()
    node = json.loads(alpha.kubectl("get", "node", alpha.env["NODE_NAME"], "-o", "json"))
    assert node["metadata"]["labels"]["nvidia.com/gpu.present"] == "true"
    assert node["status"]["nodeInfo"]["kubeletVersion"] == (
        f"v{alpha.env['CLUSTER_KUBERNETES_VERSION']}"
    )
    assert "resourceslices" in alpha.kubectl("api-resources", "--api-group=resource.k8s.io")
    assert sysctls() == before
    # A second time it changes nothing.
    pids = alpha.pids()
    alpha.do("up")
    assert alpha.pids() == pids
    # Another cluster is not made out of this one behind its user's back.
    alpha.do("up", "--apiserver", "bridge", status=1)
    alpha.do("down")
    assert alpha.traces() == []
    assert not devices & interfaces()


def test_down_clears_up_after_half_an_up(alpha: Cluster) -> None:
    command = [sys.executable, COMMAND, "up", "--name", "alpha", "--root", alpha.state.parent]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as up:
        wait_for(alpha.state / "pids" / "kube-apiserver.json")
        up.kill()
    assert alpha.traces()
    devices = alpha.devices()
    assert devices
    alpha.do("down")
    assert alpha.traces() == []
    assert not devices & interfaces()


def test_down_without_a_cluster_is_no_error(alpha: Cluster) -> None:
    alpha.do("down")
    alpha.do("env", status=1)


def wait_for(path: Path) -> None:
    end = time.monotonic() + 60
    while not path.exists():
        assert time.monotonic() < end, f"{path} did not appear"
        time.sleep(0.05)
