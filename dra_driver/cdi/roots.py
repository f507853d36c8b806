"""Where the driver's files and device nodes are, for this process and for the runtime.

The plugin usually runs in a container: it sees the node's driver root at, say, /driver-root, but a
CDI spec must name files as the container runtime on the host sees them. Each root therefore has
two paths. In: settings. Out: paths to look at, and host paths to write down.
"""

from dataclasses import dataclass
from pathlib import Path

_CONTROL_NODE = "nvidiactl"


@dataclass(frozen=True, slots=True, kw_only=True)
class Roots:
    """The folders a spec is made from. `driver` and `dev` are the process's view.

    `driver_on_host` and `dev_on_host` are the same folders as the container runtime sees them.
    `dev` is the folder with the nodes itself, usually /dev; likewise `proc` and `sys`.
    """

    driver: Path
    driver_on_host: str
    dev: Path
    dev_on_host: str
    proc: Path = Path("/proc")
    sys: Path = Path("/sys")

    def driver_file_on_host(self, path: str) -> str:
        """Return the host path of a file that is at `path` inside the driver root."""
        return f"{self.driver_on_host.rstrip('/')}/{path.lstrip('/')}"

    def node_on_host(self, name: str) -> str:
        """Return the host path of the device node `name`, such as `dri/card1`."""
        return f"{self.dev_on_host.rstrip('/')}/{name}"


def find_roots(
    *,
    driver_root: Path,
    container_driver_root: Path | None = None,
    dev_root: Path | None = None,
    proc_root: Path = Path("/proc"),
    sys_root: Path = Path("/sys"),
) -> Roots:
    """Work out the roots from the settings and from what is there.

    Args:
        driver_root: the driver root on the host, `/` or a driver container's tree.
        container_driver_root: where this process sees it; absent or not a folder means the same
            path, as for a process on the host itself.
        dev_root: the folder with the device nodes, seen alike by process and runtime. Without it,
            it is the driver root's `dev` if that has NVIDIA's control node, else /dev.
        proc_root: the folder that is mounted as /proc.
        sys_root: the folder that is mounted as /sys.
    """
    seen = driver_root
    if container_driver_root is not None and container_driver_root.is_dir():
        seen = container_driver_root
    if dev_root is not None:
        dev, dev_on_host = dev_root, str(dev_root)
    elif (seen / "dev" / _CONTROL_NODE).exists():
        dev, dev_on_host = seen / "dev", str(driver_root / "dev")
    else:
        # GPU Operator's driver container, for one, has no nodes of its own.
        dev, dev_on_host = Path("/dev"), "/dev"
    return Roots(
        driver=seen,
        driver_on_host=str(driver_root),
        dev=dev,
        dev_on_host=dev_on_host,
        proc=proc_root,
        sys=sys_root,
    )
