"""What a client's container gets, so that its CUDA programs are clients of the domain's daemon.

In: the domain's folders and the limits of this client. Out: container edits. A CUDA program finds
its daemon through the sockets in CUDA_MPS_PIPE_DIRECTORY and shares memory with it in /dev/shm; one
that finds no daemon runs without MPS and without its limits. So the variable is always set, the
default path is covered by the domain's own, and no pipe directory of the host's can show through.
A limit in a client's environment can only lower what the daemon allows.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from dra_driver.cdi.model import Edits, Mount
from dra_driver.mps.files import DomainPaths

CONTAINER_PIPE_DIRECTORY = "/tmp/nvidia-mps"  # noqa: S108 (CUDA's own default)
CONTAINER_SHM = "/dev/shm"  # noqa: S108 (where CUDA looks)
_OPTIONS = ("rw", "nosuid", "nodev", "bind")


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientLimits:
    """Limits of one client, below the domain's own. None and an absent device leave those alone.

    `pinned_memory_mib` is by GPU UUID, in MiB. A process has one active thread percentage,
    whichever GPUs it uses.
    """

    active_thread_percentage: int | None = None
    pinned_memory_mib: Mapping[str, int] = field(default_factory=dict)


def client_edits(paths: DomainPaths, limits: ClientLimits) -> Edits:
    """Return the edits for a container whose processes shall be clients of the domain."""
    env = [f"CUDA_MPS_PIPE_DIRECTORY={CONTAINER_PIPE_DIRECTORY}"]
    if limits.active_thread_percentage is not None:
        env.append(f"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE={limits.active_thread_percentage}")
    if limits.pinned_memory_mib:
        values = ",".join(f"{uuid}={mib}M" for uuid, mib in limits.pinned_memory_mib.items())
        env.append(f"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT={values}")
    return Edits(
        env=tuple(env),
        mounts=(
            Mount(host_path=str(paths.shm), container_path=CONTAINER_SHM, options=_OPTIONS),
            Mount(
                host_path=str(paths.pipe),
                container_path=CONTAINER_PIPE_DIRECTORY,
                options=_OPTIONS,
            ),
        ),
    )
