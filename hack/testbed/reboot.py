"""A power failure of a node: all processes end, and those of an init system start again.

In: a node that is up. Out: one with a new boot id, GPUs as after power-on, and no earlier CDI
specs, mounts and processes. Its disk is unchanged.
"""

import os
import signal
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from cluster import cgroups
from cluster.processes import MARK

from dra_driver.mps.processes import environment_of
from testbed import mps
from testbed.commands import run
from testbed.machine import DRIVER
from testbed.mounts import mounts_below
from testbed.node import GpuNode

_SHIM = b"containerd-shim"


def reboot(node: GpuNode) -> None:
    """Reboot a node with a driver and an MPS supervisor."""
    cluster = node.cluster
    state = Path(cluster.env["CLUSTER_STATE"])
    node.driver.kill()
    node.supervisor.kill()
    for component in ("kubelet", cluster.runtime):
        cluster.stop(component, signal="KILL")
    kill_all([*_shims(str(state)), *_in_pods(cluster.env["CLUSTER_CGROUP"])])
    # On other nodes this is in /run; its absence tells CRI-O that its containers are gone.
    (state / "crio" / "version").unlink(missing_ok=True)
    mps.end_all(node.place.plugins)
    for point in mounts_below(node.place.mps):
        run(("umount", "--lazy", point))
    wipe_cdi(node)
    run((DRIVER, "simulate", "boot", "--root", node.machine.root))
    for component in (cluster.runtime, "kubelet"):
        cluster.start(component)
    node.supervisor.start()
    node.driver.start()


def wipe_cdi(node: GpuNode) -> None:
    """Delete all CDI specs of a node."""
    for path in node.cluster.cdi_root.iterdir():
        path.unlink()


def kill_all(pids: Iterable[int]) -> None:
    """Send SIGKILL to processes; ended ones are no error."""
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _in_pods(cgroup: str) -> set[int]:
    """The processes in the control groups of a cluster."""
    pids: set[int] = set()
    for folder in cgroups.folders(cgroup):
        with suppress(OSError):  # its pod was deleted
            pids.update(map(int, (folder / "cgroup.procs").read_text().split()))
    return pids


def _shims(state: str) -> list[int]:
    """The processes between containerd and the containers of a cluster."""
    pids = []
    for name in Path("/proc").glob("[0-9]*/comm"):
        with suppress(OSError):
            pid = int(name.parent.name)
            if name.read_bytes().startswith(_SHIM) and environment_of(pid).get(MARK) == state:
                pids.append(pid)
    return pids
