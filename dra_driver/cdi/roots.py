"""Where the driver's files and device nodes are, for this process and for the runtime.

The plugin usually runs in a container: it sees the node's driver root at /driver-root, for example,
but a CDI spec must name files as the container runtime on the host sees them. So each root has two
paths. In: settings. Out: paths to look at, and host paths to write down.

A GPU driver in a container may start after this process, and make the device nodes only then. So
`Roots.now` looks up where they are each time.
"""

from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from dra_driver.commands.common_settings import RootSettings
from dra_driver.errors import SetupError

_CONTROL_NODE = "nvidiactl"
_USUAL_VIEW = Path("/driver-root")
_HOST_DEV = Path("/dev")


class Roots(Struct, frozen=True, kw_only=True):
    """The folders that a spec is made from. `driver` and `dev` are as this process sees them.

    `driver_on_host` and `dev_on_host` are the same folders as the container runtime sees them.
    `dev` is the folder that contains the nodes, usually /dev; likewise `proc` and `sys`.
    `dev_can_move`: it is in the driver root or in `/`, depending on where the nodes are.
    """

    driver: Path
    driver_on_host: str
    dev: Path
    dev_on_host: str
    proc: Path = Path("/proc")
    sys: Path = Path("/sys")
    dev_can_move: bool = False

    def now(self) -> "Roots":
        """Return the roots with the device nodes where they are at this moment."""
        if not self.dev_can_move:
            return self
        # A driver container of GPU Operator, for example, may have no nodes of its own.
        if (self.driver / "dev" / _CONTROL_NODE).exists():
            dev, on_host = self.driver / "dev", self.driver_file_on_host("dev")
        else:
            dev, on_host = _HOST_DEV, str(_HOST_DEV)
        return replace(self, dev=dev, dev_on_host=on_host)

    def host_roots(self) -> tuple[Path, ...]:
        """Return where the host's own root may be: the driver root, or that of its first process.

        The second one is the host's only if this process has the host's PIDs.
        """
        return self.driver, Path("/proc/1/root"), Path("/")

    def watched(self) -> tuple[Path, ...]:
        """Return paths, one of which looks different whenever the result of `now` changes."""
        return (self.driver / "dev" / _CONTROL_NODE,) if self.dev_can_move else ()

    def own_dev(self) -> Path | None:
        """Return the folder of the device nodes at this moment; None if it is the host's /dev."""
        roots = self.now()
        return None if roots.dev_on_host == str(_HOST_DEV) else roots.dev

    def own_dev_on_host(self) -> Path | None:
        """Return the same folder as the host sees it."""
        roots = self.now()
        return None if roots.dev_on_host == str(_HOST_DEV) else Path(roots.dev_on_host)

    def driver_file_on_host(self, path: str) -> str:
        """Return the host path of a file that is at `path` inside the driver root."""
        return f"{self.driver_on_host.rstrip('/')}/{path.lstrip('/')}"

    def driver_file_seen(self, host_path: str) -> str | None:
        """Return where this process sees a file of the driver root; None if it is not one."""
        root = self.driver_on_host.rstrip("/")
        is_inside = host_path.startswith(f"{root}/")
        return f"{self.driver}{host_path.removeprefix(root)}" if is_inside else None

    def node_on_host(self, name: str) -> str:
        """Return the host path of the device node `name`, such as `dri/card1`."""
        return f"{self.dev_on_host.rstrip('/')}/{name}"


def roots_of(settings: RootSettings) -> Roots:
    """Return the roots of the node that a command's settings name. Raises SetupError."""
    return find_roots(
        driver_root=settings.nvidia_driver_root,
        container_driver_root=settings.container_driver_root,
        dev_root=settings.nvidia_dev_root,
        container_dev_root=settings.container_dev_root,
        proc_root=settings.proc_root,
        sys_root=settings.sys_root,
    )


def find_roots(
    *,
    driver_root: Path,
    container_driver_root: Path | None = None,
    dev_root: Path | None = None,
    container_dev_root: Path | None = None,
    proc_root: Path = Path("/proc"),
    sys_root: Path = Path("/sys"),
) -> Roots:
    """Work out the roots from the settings and from what exists.

    This process sees the driver root at `container_driver_root`. The default is /driver-root if
    that is a folder, otherwise the same path as on the host. The device nodes are in the folder
    `dev` of `dev_root`. The default is the driver root if NVIDIA's control node is there, otherwise
    `/`. This process sees a given `dev_root` at `container_dev_root`. The default is where it sees
    the driver root if both are the same, otherwise the same path. Raises SetupError if
    `container_driver_root` is given but is not a folder.
    """
    seen = container_driver_root or _USUAL_VIEW
    if not seen.is_dir():
        if container_driver_root is not None:
            raise SetupError(
                f"--container-driver-root {container_driver_root} is not a folder;"
                f" mount the host's {driver_root} there, or leave the setting out"
            )
        seen = driver_root
    chosen = driver_root if dev_root is None else dev_root
    own = container_dev_root if dev_root is not None else None
    roots = Roots(
        driver=seen,
        driver_on_host=str(driver_root),
        dev=(own or (seen if chosen == driver_root else chosen)) / "dev",
        dev_on_host=str(chosen / "dev"),
        proc=proc_root,
        sys=sys_root,
        dev_can_move=dev_root is None and driver_root != Path("/"),
    )
    return roots.now()
