"""Archives of simulated nodes, made as people make them."""

import json
import tarfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dra_driver.admin.gather.reading import MANIFEST
from dra_driver.admin.inspect.slices import OF_DEFAULTS, slices_of
from dra_driver.cli import main
from dra_driver.simulator.device_nodes import NodeKind
from dra_driver.simulator.driver_root import Options
from dra_driver.simulator.machine import Machine
from dra_driver.simulator.nodes import inventory_of
from dra_driver.simulator.profile import Profile

OPTIONS = Options(nodes=NodeKind.PLACEHOLDER, userspace="stand-in")


@dataclass
class GatheredNode:
    """A simulated node in a folder, with the kubelet's folders beside it."""

    folder: Path
    machine: Machine

    @property
    def plugins(self) -> Path:
        """The kubelet's folder of plugins."""
        return self.folder / "plugins"

    def words(self, archive: Path | str, *more: str) -> list[str]:
        """The command line that gathers it."""
        return [
            "gather",
            str(archive),
            f"--nvidia-driver-root={self.machine.driver_root}",
            f"--container-driver-root={self.machine.driver_root}",
            f"--sys-root={self.machine.sys_root}",
            f"--proc-root={self.machine.proc_root}",
            f"--host-root={self.folder / 'host'}",
            f"--cgroup-root={self.folder / 'cgroup'}",
            f"--kubelet-plugins-directory-path={self.plugins}",
            f"--kubelet-registrar-directory-path={self.folder / 'registry'}",
            f"--cdi-root={self.folder / 'cdi'}",
            *more,
        ]

    def gathered(self, *more: str, name: str = "node") -> Path:
        """Gather it; the archive."""
        archive = self.folder / f"{name}.tar.gz"
        assert main(self.words(archive, *more)) == 0
        return archive


@dataclass
class Archive:
    """What an archive of ours has: documents by file name, the profile as text."""

    manifest: dict[str, Any]
    documents: dict[str, Any]

    @property
    def missing(self) -> dict[str, str]:
        """What is missing, with the reason."""
        return {one["what"]: one["reason"] for one in self.manifest["missing"]}


def node(folder: Path, profile: Profile | str) -> GatheredNode:
    """A node with the GPUs of a profile."""
    return GatheredNode(folder, Machine.create(folder / "gpus", profile, OPTIONS))


def unpack(path: Path) -> Archive:
    """An archive that a test has made."""
    documents: dict[str, Any] = {}
    with tarfile.open(path) as tar:
        for member in tar:
            text = tar.extractfile(member).read().decode()  # type: ignore[union-attr]
            is_json = member.name.endswith(".json")
            documents[member.name] = json.loads(text) if is_json else text
    return Archive(documents.pop(MANIFEST), documents)


def slices(profile: Profile | str, node_name: str = "node-1") -> str:
    """The ResourceSlices that a node of a profile publishes, as text."""
    published = slices_of(inventory_of(profile), node_name, OF_DEFAULTS)
    return json.dumps(list(published), indent=1)
