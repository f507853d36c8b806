"""Whether this process sees those of containers: it does where its PIDs are the host's."""

from dra_driver.cdi.roots import Roots
from dra_driver.host.process import first_procfs, has_pids_of_host

NOT_SEEN = (
    "this container has its own PID namespace, so NVML does not list other containers' processes; "
    "set hostPID: true in its pod (the chart's value usage.enabled does that), or run this in the "
    "MPS supervisor's pod, which has it"
)
"""What is wrong where processes of containers cannot be seen."""


def sees_processes(roots: Roots) -> bool:
    """Tell whether NVML tells this process of all that use GPUs, as it has the host's PIDs."""
    host = roots.driver / "proc"  # the host's own procfs, where its root is mounted
    return has_pids_of_host(
        first_procfs(roots.proc), host if (host / "self").is_symlink() else None
    )
