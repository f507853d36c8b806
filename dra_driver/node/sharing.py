"""Builds what carries out sharing on this node: a strategy for each name that records have.

In: NVML, the GPU driver's root, the directory shared with the MPS supervisor, the node's control
groups, and the claims. Out: the strategies, and the choice of the backend that limits the memory of
shares and pods.
"""

from collections.abc import Callable
from functools import partial
from pathlib import Path

from msgspec import Struct

from dra_driver.cdi.roots import Roots
from dra_driver.claims.prepare.steps import Sharing
from dra_driver.claims.state.holdings import tenants
from dra_driver.claims.state.ledger import Ledger
from dra_driver.claims.state.locks import NodeLocks
from dra_driver.devices.control_groups import find_hierarchy
from dra_driver.devices.session import DriverSession
from dra_driver.host.process import first_procfs, has_pids_of_host
from dra_driver.mps.requests import DomainRequests
from dra_driver.node.passthrough import passthrough
from dra_driver.sharing.memory_groups import MemoryGroups
from dra_driver.sharing.mps import Mps
from dra_driver.sharing.nvidia_mps import NvidiaMps
from dra_driver.sharing.nvidia_smi import NvidiaSmi
from dra_driver.sharing.pod_groups import PodGroups
from dra_driver.sharing.shares import ShareMemory, Shares
from dra_driver.sharing.steps import JoinDomain, PassThrough, TimeSlice, UseShares
from dra_driver.sharing.time_slicing import TimeSlicing


def sees_processes(roots: Roots) -> bool:
    """Tell whether NVML lists all processes on GPUs here, as this process has the host's PIDs."""
    host = roots.driver / "proc"  # the host's own procfs, where its root is mounted
    return has_pids_of_host(
        first_procfs(roots.proc), host if (host / "self").is_symlink() else None
    )


def node_memory(
    gpus: DriverSession,
    roots: Roots,
    ledger: Ledger,
    *,
    cgroup_root: Path | None,
    by_groups: bool = True,
) -> ShareMemory:
    """Return what chooses the backend for memory limits of shares, and limits pods.

    `cgroup_root` is where control groups are, if it is set; `by_groups` is whether claims may be
    limited by control groups.
    """
    pods = PodGroups(find_hierarchy(cgroup_root))
    groups = MemoryGroups(gpus, pods, partial(tenants, ledger), is_wanted=by_groups)
    return ShareMemory(groups, sees_processes=sees_processes(roots))


class NodeSharing(Struct, frozen=True, kw_only=True):
    """The parts that carry out sharing, and the MPS domains that they use."""

    sharing: Sharing
    domains: DomainRequests


def node_sharing(  # noqa: PLR0913 (the one place where all parts meet)
    session: DriverSession,
    roots: Roots,
    *,
    locks: NodeLocks,
    mps_folder: Path,
    mps_ready_seconds: float,
    memory: ShareMemory,
    clock: Callable[[], float],
) -> NodeSharing:
    """Return the parts; a claim waits `mps_ready_seconds` for an MPS daemon."""
    domains = DomainRequests(mps_folder, clock, lock=locks.domain)
    time_slicing = TimeSlicing(NvidiaSmi(roots.driver, roots.proc, clock), session)
    mps = Mps(domains, clock, ready_seconds=mps_ready_seconds)
    machines = passthrough(roots)
    sharing = Sharing(
        planners={
            TimeSlice.name: time_slicing,
            JoinDomain.name: mps,
            UseShares.name: Shares(memory, session),
            PassThrough.name: machines,
        },
        time_slices=time_slicing,
        domains=mps,
        nvidia_mps=NvidiaMps(session),
        shares=memory.groups,
        passthrough=machines,
    )
    return NodeSharing(sharing=sharing, domains=domains)
