"""What carries out sharing on this node, put together: a strategy by each name that records have.

In: settings, NVML, where the GPU driver is, and where the MPS supervisor looks for requests. Out:
the strategies, and what MPS is asked by.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from dra_driver.cdi.roots import Roots
from dra_driver.devices.session import DriverSession
from dra_driver.mps.members import SharedDomains
from dra_driver.mps.requests import DomainRequests
from dra_driver.sharing import nvidia_mps, shares
from dra_driver.sharing.base import EXCLUSIVE, Sharing
from dra_driver.sharing.enforcement import ShareMemory
from dra_driver.sharing.exclusive import Exclusive
from dra_driver.sharing.mps import Mps
from dra_driver.sharing.nvidia_smi import NvidiaSmi
from dra_driver.sharing.time_slicing import TimeSlicing
from resource_nvidia_com.v1beta1.sharing import SharingStrategy


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSharing:
    """The strategies by name, the MPS domains that are asked for, and those that claims share."""

    strategies: Mapping[str, Sharing]
    requests: DomainRequests
    shared_domains: SharedDomains


def node_sharing(
    session: DriverSession,
    roots: Roots,
    *,
    mps_folder: Path,
    mps_ready_seconds: float,
    memory: ShareMemory,
    clock: Callable[[], float],
) -> NodeSharing:
    """Return what carries out sharing on this node.

    Args:
        session: NVML.
        roots: where the GPU driver is.
        mps_folder: where `dra-driver mps-supervisor` looks for what is asked of it.
        mps_ready_seconds: how long a claim waits for an MPS daemon.
        memory: keeps shares to their memory.
        clock: seconds that only grow.
    """
    requests = DomainRequests(mps_folder, clock)
    shared_domains = SharedDomains(mps_folder, requests, clock)
    strategies: dict[str, Sharing] = {
        EXCLUSIVE: Exclusive(),
        str(SharingStrategy.TIME_SLICING): TimeSlicing(
            NvidiaSmi(roots.driver, roots.proc, clock), session
        ),
        str(SharingStrategy.MPS): Mps(requests, clock, ready_seconds=mps_ready_seconds),
        nvidia_mps.NAME: nvidia_mps.NvidiaMps(session),
        shares.NAME: shares.Shares(
            requests,
            shared_domains,
            session,
            clock,
            memory=memory,
            ready_seconds=mps_ready_seconds,
        ),
    }
    return NodeSharing(strategies=strategies, requests=requests, shared_domains=shared_domains)
