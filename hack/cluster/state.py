"""A cluster's record: its name, versions, addresses, and the paths of its files.

The record is written before anything is made, so that `down` can clean up after a crash at any
point. Everything that a cluster writes is in one folder; the few things that cannot be (a bridge,
cgroups, a lock under /run) have names derived from that folder, so that no two clusters share one,
not even clusters of the same name under different roots.
"""

import fcntl
import hashlib
import json
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from cluster.errors import ClusterError

DEFAULT_ROOT = Path("/var/lib/dra-cluster")
RUN = Path("/run/dra-cluster")
# sun_path of a unix socket is 108 bytes, the last of them NUL. The longest socket below the
# state folder is a driver's registration socket that carries its pod's UID (rolling updates).
SOCKET_PATH_MAX = 107
LONGEST_PLAIN_SOCKET = "kubelet/plugins_registry/gpu.nvidia.com-reg.sock"
NAME_PATTERN = re.compile(r"[a-z0-9]([a-z0-9-]{0,18}[a-z0-9])?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Ports:
    """TCP ports on this machine, one per listener."""

    apiserver: int
    etcd_client: int
    etcd_peer: int
    controller_manager: int
    scheduler: int
    kubelet: int
    kubelet_healthz: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The options that a cluster's user may choose; kept, so that a second `up` uses them, too.

    `flags` are words such as `kube-scheduler:--kube-api-qps=1000`, each for one component.
    `apiserver` is where the API server listens: on the `loopback`, or on the `bridge`, where pods
    reach it as well. `containerd` is its exact version. `runtime` is the container runtime:
    `containerd` or `crio`, and `oci` what makes the containers below it: `runc` or `crun`.
    """

    kubernetes: str
    containerd: str = ""
    runtime: str = "containerd"
    oci: str = "runc"
    feature_gates: str = ""
    flags: str = ""
    apiserver: str = "loopback"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """One cluster's record, and the paths and names that follow from it."""

    name: str
    state: Path
    subnet: int
    ports: Ports
    options: Options

    @property
    def ident(self) -> str:
        """The name, made unique by the state folder."""
        return ident_of(self.name, self.state)

    @property
    def node_name(self) -> str:
        return f"{self.name}-node"

    @property
    def bridge(self) -> str:
        # Interface names have at most 15 characters.
        return f"dra-{self.ident.rsplit('-', 1)[1]}"

    @property
    def node_ip(self) -> str:
        return f"{self._prefix}.1"

    @property
    def pod_cidr(self) -> str:
        return f"{self._prefix}.0/24"

    @property
    def _prefix(self) -> str:
        return f"10.213.{self.subnet}"

    @property
    def cgroup(self) -> str:
        return f"/dra-cluster-{self.ident}"

    @property
    def network_name(self) -> str:
        return f"dra-cluster-{self.ident}"

    @property
    def apiserver_host(self) -> str:
        return self.node_ip if self.options.apiserver == "bridge" else "127.0.0.1"

    @property
    def apiserver_url(self) -> str:
        return f"https://{self.apiserver_host}:{self.ports.apiserver}"

    @property
    def kubeconfig(self) -> Path:
        return self.state / "admin.kubeconfig"

    @property
    def kubelet_root(self) -> Path:
        return self.state / "kubelet"

    @property
    def cri_socket(self) -> Path:
        return self.state / f"{self.options.runtime}.sock"

    @property
    def shim_sockets(self) -> Path:
        """Sockets of containerd's shims, which allows 42 bytes for the folder, or of CRI-O's
        containers: under /run."""
        return RUN / f"{self.ident.rsplit('-', 1)[1]}.shims"

    @property
    def cdi_dirs(self) -> tuple[Path, Path]:
        """Static and generated CDI specs, as /etc/cdi and /var/run/cdi on other nodes."""
        return self.state / "etc-cdi", self.state / "cdi"

    @property
    def pki(self) -> Path:
        return self.state / "pki"

    @property
    def config(self) -> Path:
        return self.state / "config"

    @property
    def logs(self) -> Path:
        return self.state / "logs"

    def save(self) -> None:
        """Write the record, completely or not at all."""
        record = {**asdict(self), "state": str(self.state)}
        write_whole(self.state / "cluster.json", json.dumps(record, indent=1))
        RUN.mkdir(mode=0o755, exist_ok=True)
        link = RUN / self.ident
        if not link.is_symlink():
            link.symlink_to(self.state)


def ident_of(name: str, state: Path) -> str:
    """A cluster's name with a hash of its folder: unique on the machine."""
    return f"{name}-{hashlib.sha256(str(state).encode()).hexdigest()[:8]}"


def state_folder(name: str, root: Path) -> Path:
    """Where a cluster of this name keeps its files.

    Raises:
        ClusterError: the name is no DNS label, or sockets below the folder could not be opened.
    """
    if not NAME_PATTERN.fullmatch(name):
        raise ClusterError(
            f"{name!r} is no name for a cluster: use at most 20 of a-z, 0-9 and -, "
            "starting and ending with a letter or digit"
        )
    folder = root.resolve() / name
    longest = len(os.fsencode(folder / LONGEST_PLAIN_SOCKET))
    if longest > SOCKET_PATH_MAX:
        raise ClusterError(
            f"{folder} is too long by {longest - SOCKET_PATH_MAX} bytes for the kubelet's unix "
            f"sockets; choose a shorter --name or --root"
        )
    return folder


def load(folder: Path) -> Cluster | None:
    """A cluster's record; None if the folder has none."""
    try:
        record = json.loads((folder / "cluster.json").read_text())
        return Cluster(
            name=record["name"],
            state=folder,
            subnet=record["subnet"],
            ports=Ports(**record["ports"]),
            options=Options(**record["options"]),
        )
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError) as error:
        raise ClusterError(
            f"{folder}/cluster.json is damaged ({error}); remove the cluster with `down`"
        ) from error


def addresses(folder: Path) -> tuple[int, tuple[int, ...]] | None:
    """Subnet and ports of a cluster, which another version may have made; None if none is known."""
    try:
        record = json.loads((folder / "cluster.json").read_text())
        return int(record["subnet"]), tuple(map(int, record["ports"].values()))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def all_folders(root: Path) -> list[Path]:
    """Folders of every cluster on this machine, under this root or known under /run."""
    folders = {path.resolve() for path in RUN.glob("*") if path.is_symlink()}
    folders.update(path.parent.resolve() for path in root.glob("*/cluster.json"))
    return sorted(folders)


def write_whole(path: Path, text: str, mode: int = 0o600) -> None:
    """Write a file under another name and rename it: readers never see half of it."""
    partial = path.with_name(f".{path.name}.partial")
    partial.write_text(text)
    partial.chmod(mode)
    partial.replace(path)


@contextmanager
def locked(what: str) -> Iterator[None]:
    """Hold a lock under /run/dra-cluster: one command at a time for each cluster."""
    path = RUN / f"{what}.lock"
    while True:
        RUN.mkdir(mode=0o755, parents=True, exist_ok=True)
        try:
            lock = path.open("w")
        except FileNotFoundError:
            # The last cluster has just been removed, and the folder with it.
            continue
        fcntl.flock(lock, fcntl.LOCK_EX)
        # Its last holder may have removed the file: then this lock does not count.
        with suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(lock.fileno()), path.stat()):
                break
        lock.close()
    try:
        yield
    finally:
        path.unlink(missing_ok=True)
        lock.close()
