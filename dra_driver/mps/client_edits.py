"""Builds the edits that make CUDA programs in a container clients of a domain's daemon.

A CUDA program finds its daemon through the sockets in CUDA_MPS_PIPE_DIRECTORY, and may share memory
with it in /dev/shm; a program that finds no daemon runs without MPS and without limits. So the
variable is always set, and the domain's own folder is mounted over the default path, where a pipe
directory of the host might be visible otherwise. A client's share of threads or memory lowers what
the daemon allows. A program can evade it: without the variables it has the daemon's limits, and
with a bad CUDA_MPS_PINNED_DEVICE_MEM_LIMIT no memory limit (docs/hardware.md).
"""

from collections.abc import Mapping

from dra_driver.cdi.model import Edits, Mount
from dra_driver.mps.files import DomainPaths

CONTAINER_PIPE_DIRECTORY = "/tmp/nvidia-mps"  # noqa: S108 (CUDA's own default)
CONTAINER_SHM = "/dev/shm"  # noqa: S108 (where CUDA looks)
_OPTIONS = ("rw", "nosuid", "nodev", "bind")
# A client connects to a socket and writes to a FIFO, which needs no writable file system.
_READ_ONLY = ("ro", "nosuid", "nodev", "noexec", "bind")


def client_edits(
    paths: DomainPaths,
    *,
    active_thread_percentage: int | None = None,
    pinned_memory_mib: Mapping[str, int] | None = None,
) -> Edits:
    """Return the edits for a container whose processes are clients of the domain's daemon.

    Limits apply to each client process if they are below the domain's own. Threads are in percent,
    for all GPUs; memory is in MiB, by the GPU's UUID. Set memory only for GPUs that the container
    sees: if CUDA finds the UUID of another GPU, it drops every limit, even the daemon's.
    """
    env = [f"CUDA_MPS_PIPE_DIRECTORY={CONTAINER_PIPE_DIRECTORY}"]
    if active_thread_percentage is not None:
        env.append(f"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE={active_thread_percentage}")
    if pinned_memory_mib:
        limits = ",".join(f"{uuid}={mib}M" for uuid, mib in sorted(pinned_memory_mib.items()))
        env.append(f"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT={limits}")
    return Edits(
        env=tuple(env),
        mounts=(
            Mount(host_path=str(paths.shm), container_path=CONTAINER_SHM, options=_OPTIONS),
            Mount(
                host_path=str(paths.pipe),
                container_path=CONTAINER_PIPE_DIRECTORY,
                options=_READ_ONLY,
            ),
        ),
    )
