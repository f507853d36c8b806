"""Archives of simulated nodes, made as people make them, and the machines that play them."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dra_driver import gathered
from dra_driver.admin.inspect.slices import slices_of
from dra_driver.cli import main
from dra_driver.gathered import Archive
from dra_driver.simulator.archive import profile_of
from dra_driver.simulator.device_nodes import NodeKind
from dra_driver.simulator.driver_root import Options
from dra_driver.simulator.machine import Machine
from dra_driver.simulator.nodes import inventory_of
from dra_driver.simulator.profile import Profile
from dra_driver.slices.project import OF_DEFAULTS

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


def node(folder: Path, profile: Profile | str) -> GatheredNode:
    """A node with the GPUs of a profile."""
    return GatheredNode(folder, Machine.create(folder / "gpus", profile, OPTIONS))


def slices(profile: Profile | str, node_name: str = "node-1") -> str:
    """The ResourceSlices that a node of a profile publishes, as text."""
    published = slices_of(inventory_of(profile), node_name, OF_DEFAULTS)
    return json.dumps(list(published), indent=1)


def facts(archive: Path) -> dict[str, Any]:
    """All that an archive says of a machine, but for sizes of stand-ins."""
    documents = gathered.unpack(archive).documents
    names = (gathered.NVML, gathered.PCI, gathered.NODE, gathered.FILES)
    found = {name: documents[name] for name in names}
    for listed in found[gathered.FILES].values():
        for one in listed if isinstance(listed, list) else ():
            if isinstance(one, dict):
                one.pop("bytes", None)
    return found


def played(folder: Path, archive: Path) -> GatheredNode:
    """The node that plays an archive."""
    folder.mkdir()
    return node(folder, profile_of(archive))


def uuids(archive: Archive) -> list[str]:
    """The UUIDs of its GPUs and their MIG devices, in order."""
    gpus = archive.documents[gathered.NVML]["gpus"]
    answers = [gpu["calls"].get("nvmlDeviceGetUUID", {}) for gpu in gpus]
    whole = [answer["value"] for answer in answers if "value" in answer]
    migs = [
        mig["nvmlDeviceGetMigDeviceHandleByIndex"]["value"]["uuid"]
        for gpu in gpus
        for mig in gpu.get("migDevices", ())
        if "value" in mig["nvmlDeviceGetMigDeviceHandleByIndex"]
    ]
    return whole + migs
