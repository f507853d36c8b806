"""Where doctor looks on a node, and how it reads files there.

In a pod, the node's files are below a mount of its root, which the driver's pod has at /driver-root
if the GPU driver is installed on the host; a pod without one cannot see them. Such files are not
trusted: nothing waits for a pipe or a device, and at most a megabyte is read.
"""

import os
import stat
from pathlib import Path

from msgspec import Struct

from dra_driver.cdi.roots import Roots, roots_of
from dra_driver.commands import common_settings
from dra_driver.commands.command_line import PLACES, option
from dra_driver.devices.driver_root import rooted

_MOST_BYTES = 1024**2


class Places(Struct, frozen=True, kw_only=True):
    """The node's folders, as this process sees them.

    Attributes:
        host: the node's root folder; None if it is not visible.
        plugins: the kubelet's folder with the drivers' own folders.
        registrar: the kubelet's folder with the sockets by which drivers register.
        cgroup_root: the node's /sys/fs/cgroup, if it was set.
    """

    roots: Roots
    host: Path | None
    plugins: Path
    registrar: Path
    cdi_root: Path
    cgroup_root: Path | None = None

    def on_host(self, path: str) -> Path | None:
        """Return where this process sees a path of the node, links followed; None if nowhere."""
        if self.host is None:
            return None
        try:
            inside = rooted.resolve(self.host, path)
        except OSError:
            return None
        return None if inside is None else rooted.outside(self.host, inside)

    def why_without(self) -> str:
        """Return why a file of the node is not found."""
        if self.host is None:
            return "the node's root folder is not visible; name it with --host-root"
        return f"it does not exist below {self.host}"


class NodeSettings(common_settings.RootSettings):
    """The settings of a command that examines a whole node; its own come before them."""

    host_root: Path | None = option(
        group=PLACES,
        default=None,
        variable=True,
        help="The node's root as this process sees it; unset: / on the node, and in a pod the "
        "driver root if that is the host's.",
    )
    kubelet_plugins_directory_path: Path = common_settings.KUBELET_PLUGINS_DIRECTORY_PATH
    kubelet_registrar_directory_path: Path = common_settings.KUBELET_REGISTRAR_DIRECTORY_PATH
    cdi_root: Path = common_settings.CDI_ROOT
    cgroup_root: Path | None = common_settings.CGROUP_ROOT

    def places(self) -> Places:
        """Return the node's places. Raises SetupError if the driver root is not there."""
        roots = roots_of(self)
        in_a_pod = "KUBERNETES_SERVICE_HOST" in os.environ
        return Places(
            roots=roots,
            host=host_root(self.host_root, roots, in_a_pod=in_a_pod),
            plugins=self.kubelet_plugins_directory_path,
            registrar=self.kubelet_registrar_directory_path,
            cdi_root=self.cdi_root,
            cgroup_root=self.cgroup_root,
        )


def host_root(named: Path | None, roots: Roots, *, in_a_pod: bool) -> Path | None:
    """Return where the node's root folder is, `named` by a setting or found; None if not visible.

    A pod sees it at the driver root if the GPU driver is installed on the host itself.
    """
    if named is not None:
        return named
    if not in_a_pod:
        return Path("/")
    return roots.driver if roots.driver_on_host == "/" and roots.driver != Path("/") else None


def read_text(path: Path) -> str:
    """Return the content of a plain file, with replacements for what is not UTF-8.

    Raises OSError if it is not a readable plain file, ValueError if it is over a megabyte.
    """
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    with os.fdopen(file, "rb") as stream:
        if not stat.S_ISREG(os.fstat(file).st_mode):
            raise OSError(f"{path} is not a plain file")
        data = stream.read(_MOST_BYTES + 1)
    if len(data) > _MOST_BYTES:
        raise ValueError(f"{path} has more than {_MOST_BYTES} bytes")
    return data.decode(errors="replace")


def names_in(folder: Path) -> list[str]:
    """Return the names in a folder, sorted; none if it is not there or cannot be read."""
    try:
        return sorted(os.listdir(folder))  # noqa: PTH208 (names are what is wanted)
    except OSError:
        return []
