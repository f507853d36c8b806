"""What keeps the shares of this node to their memory, put together.

In: settings, NVML, where the node's control groups and CDI hooks are, and the claims. Out: the
means that may be chosen, best first (sharing/enforcement.py), and what limits pods, for the thread
that looks after them (claims/memory/watch.py).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from dra_driver.cdi.hooks import find_hook_program
from dra_driver.cdi.model import Hook
from dra_driver.cdi.roots import Roots
from dra_driver.claims.memory.pod_groups import PodGroups
from dra_driver.claims.memory.pod_limits import PodLimits
from dra_driver.claims.state.holdings import Holdings
from dra_driver.devices.control_groups import find_hierarchy
from dra_driver.devices.model import GpuUuid
from dra_driver.devices.session import DriverSession
from dra_driver.sharing.enforcement import MemoryPart, MpsLimits, ShareMemory
from dra_driver.sharing.memory_groups import MemoryGroups


@dataclass(frozen=True, slots=True, kw_only=True)
class MemorySettings:
    """What a person may choose: control groups or not, where they are, and the hook program."""

    by_groups: bool = True
    cgroup_root: Path | None = None
    hook_path: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeMemory:
    """What limits pods, and what chooses by which means shares are limited."""

    pods: PodLimits
    shares: ShareMemory


def node_memory(
    settings: MemorySettings,
    gpus: DriverSession,
    roots: Roots,
    holdings: Callable[[], Holdings],
) -> NodeMemory:
    """Return what keeps shares to their memory.

    Args:
        settings: what was chosen.
        gpus: sets limits.
        roots: where the GPU driver is.
        holdings: returns which claim has what, once there are claims.
    """
    pods = PodLimits(gpus=gpus, groups=PodGroups(find_hierarchy(settings.cgroup_root)))

    def tenants_of(gpu: GpuUuid) -> Sequence[MemoryPart]:
        return holdings().tenants(gpu)

    def all_of_pod(pod: str) -> Sequence[MemoryPart]:
        return holdings().parts_of_pod(pod)

    def hooks(uuids: Sequence[str]) -> tuple[Hook, ...]:
        program = find_hook_program(roots, settings.hook_path)
        return program.memory_limits(roots.driver_on_host, uuids) if program else ()

    groups = MemoryGroups(pods, tenants_of, all_of_pod, hooks, is_wanted=settings.by_groups)
    return NodeMemory(pods=pods, shares=ShareMemory([groups, MpsLimits()], tenants_of))
