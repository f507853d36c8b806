"""Removes a cluster completely, whatever state it is in.

In: a state folder, with or without a readable record. Each step works on what really exists
(processes in /proc, mounts in mountinfo, folders in the cgroup hierarchies) and not on what should
exist, so it also works after a crash, a kill -9 of everything or half an `up`.
"""

import re
import shutil
from contextlib import suppress
from pathlib import Path

from cluster import cgroups, kubelet_view, mounts, network
from cluster.errors import ClusterError
from cluster.processes import kill_owned, wait_until
from cluster.progress import Progress
from cluster.state import RUN, Cluster, Options, Ports, all_folders, load, locked

VETH_S = 10.0
FOLDER_S = 5.0
KILL_S = 30.0
# Where the CNI library keeps the results of pods' networks, by the name of the network.
CNI_RESULTS = Path("/var/lib/cni/results")
CONTAINERD_SHIMS = Path("/run/containerd/s")


def down(folder: Path, progress: Progress) -> bool:
    """Remove the cluster in a folder; return whether there was one.

    Raises ClusterError if something is left; the text says what.
    """
    cluster = _record(folder)
    with locked(cluster.ident):
        known = folder.exists() or (RUN / cluster.ident).is_symlink()
        _end_processes(cluster)
        still = mounts.unmount_below(folder)
        if still:
            raise ClusterError(f"still mounted: {', '.join(map(str, still))}; unmount and retry")
        _remove_network(cluster)
        left = cgroups.remove(cluster.cgroup)
        if left:
            raise ClusterError(f"cgroups still in use: {', '.join(map(str, left))}; retry")
        _remove_shim_sockets(cluster)
        _remove_folder(folder)
        (RUN / cluster.ident).unlink(missing_ok=True)
    _remove_shared(folder.parent)
    if known:
        progress.say(f"cluster {cluster.name}: removed")
    return known


def _remove_folder(folder: Path) -> None:
    """Delete the state folder, again if someone (a driver, a test) still wrote into it."""

    def gone() -> bool:
        shutil.rmtree(folder, ignore_errors=True)
        return not folder.exists()

    if not wait_until(gone, FOLDER_S):
        raise ClusterError(f"{folder} cannot be removed: does something still write there?")


def _record(folder: Path) -> Cluster:
    """The cluster's record; if it is unreadable, what the folder alone tells."""
    with suppress(ClusterError):
        cluster = load(folder)
        if cluster is not None:
            return cluster
    # Names of the bridge, the cgroup and the network depend only on the folder.
    nothing = Ports(**dict.fromkeys(Ports.__dataclass_fields__, 0))
    return Cluster(
        name=folder.name, state=folder, subnet=0, ports=nothing, options=Options(kubernetes="")
    )


def _end_processes(cluster: Cluster) -> None:
    # Killed at once, because nothing that they would write at their end is needed.
    left = kill_owned(cluster.state, lambda: cgroups.folders(cluster.cgroup), KILL_S)
    if left:
        pids = ", ".join(str(process.pid) for process in left)
        raise ClusterError(f"processes {pids} cannot be killed; look at /proc/PID/stack, retry")


def _remove_network(cluster: Cluster) -> None:
    # The kernel removes veth pairs some time after their pod's namespace.
    wait_until(lambda: not network.bridge_ports(cluster.bridge), VETH_S)
    network.delete_bridge(cluster.bridge)
    _remove_network_results(cluster)


def _remove_network_results(cluster: Cluster) -> None:
    """Delete CNI's files of pods that were killed."""
    for result in CNI_RESULTS.glob(f"{cluster.network_name}-*"):
        result.unlink(missing_ok=True)
    # containerd 1.7 calls each pod's loopback by the pod's id, whatever the cluster.
    sandboxes = cluster.state / "containerd" / "io.containerd.grpc.v1.cri" / "sandboxes"
    for sandbox in sandboxes.glob("*"):
        (CNI_RESULTS / f"cni-loopback-{sandbox.name}-lo").unlink(missing_ok=True)


def _remove_shim_sockets(cluster: Cluster) -> None:
    """Delete the sockets of killed shims; containerd before 2.4 has them in a fixed folder."""
    shutil.rmtree(cluster.shim_sockets, ignore_errors=True)
    tasks = cluster.state / "containerd-run" / "io.containerd.runtime.v2.task"
    for file in (*tasks.glob("*/*/address"), *tasks.glob("*/*/bootstrap.json")):
        with suppress(OSError):
            for path in re.findall(rf"unix://({CONTAINERD_SHIMS}/[0-9a-f]+)", file.read_text()):
                Path(path).unlink(missing_ok=True)


def _remove_shared(root: Path) -> None:
    """Remove what clusters share, if this was the last one."""
    folders = [root]
    if not all_folders(root):
        kubelet_view.remove_host_folders(root)
        folders += [CNI_RESULTS, CNI_RESULTS.parent, CONTAINERD_SHIMS, CONTAINERD_SHIMS.parent, RUN]
    for folder in folders:
        # Only empty folders are removed: others may use them.
        with suppress(OSError):
            folder.rmdir()
