"""A node as NVIDIA's own DRA driver has left it: its files, and the machine as it was then.

The files are `tests/data/nvidia-driver/`, as that driver wrote them; a test that changes one says
so. Of the simulated machine `h100x8` nothing has to be changed for them but the boot id, since its
GPUs and MIG devices have the same UUIDs and ids at each start with that seed.
"""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dra_driver.claims.model.claim import ClaimRef, ClaimUid
from dra_driver.simulator.layout import Fact
from dra_driver.simulator.machine import Machine
from worlds.node import Node
from worlds.nvidia import checkpoint

FOLDER = Path(__file__).parents[1] / "data" / "nvidia-driver"
FOLDERS = ("dynamic-mig", "static-mig", "shares")
CHECKPOINT = "checkpoint.json"
SEED = "h100-80gb-x8"
"""The seed of the machine's UUIDs."""
_SLICES = {"Default": 0, "Short": 1, "Medium": 2, "Long": 3}


class Left:
    """One of the folders."""

    def __init__(self, name: str) -> None:
        self.folder = FOLDER / name
        self.checkpoint = (self.folder / CHECKPOINT).read_bytes()
        self.boot_id = (self.folder / "boot_id").read_text().strip()
        self.claims = self._items("claims.json")

    @property
    def slices(self) -> list[dict[str, Any]]:
        """Its ResourceSlices."""
        return self._items("slices.json")

    def _items(self, file: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = json.loads((self.folder / file).read_bytes())["items"]
        return found

    @property
    def prepared(self) -> dict[str, dict[str, Any]]:
        """The claims of the checkpoint, as its part v2 has them."""
        found: dict[str, dict[str, Any]] = json.loads(self.checkpoint)["v2"]["preparedClaims"]
        return found

    @property
    def refs(self) -> dict[str, ClaimRef]:
        """The claims, by the names of their pods."""
        found = {}
        for claim in self.claims:
            metadata = claim["metadata"]
            (user,) = claim["status"]["reservedFor"]
            found[str(user["name"])] = ClaimRef(
                uid=ClaimUid(metadata["uid"]),
                namespace=metadata["namespace"],
                name=metadata["name"],
            )
        return found

    def restore_machine(self, machine: Machine) -> None:
        """Set the machine as its `settings.txt` and `mig.json` say, in the same boot."""
        machine.reboot(self.boot_id)
        for line in (self.folder / "settings.txt").read_text().splitlines():
            uuid, said = line.split(" ", 1)
            facts = dict(fact.split("=") for fact in said.strip("GpuSetings()").split(", "))
            interval, mode = (facts[name].strip("'") for name in ("time_slice", "mig_mode"))
            machine.set_fact(uuid, Fact.TIME_SLICE, _SLICES[interval])
            if mode == "Enabled":
                machine.set_mig_mode(uuid, enabled=True)
        uuids = {gpu.minor: gpu.uuid for gpu in machine.gpus}
        for line in json.loads((self.folder / "mig.json").read_bytes()):
            mig, minor, _, profile, _, place, *_ = line.split()
            made = machine.create_mig(
                uuids[int(minor.removeprefix("minor:"))], int(profile), int(place.split(":")[0])
            )
            assert made == mig, "the machine is not the one where the files were written"

    def restore_files(self, plugin: Path, cdi: Path, *, checkpoint: bytes | None = None) -> None:
        """Put its files where that driver had them; the checkpoint may be another."""
        plugin.mkdir(parents=True, exist_ok=True)
        (plugin / CHECKPOINT).write_bytes(checkpoint or self.checkpoint)
        for lock in ("cp.lock", "pu.lock"):
            (plugin / lock).touch()
        shutil.copytree(self.folder / "cdi", cdi, dirs_exist_ok=True)

    def restore(self, node: Node, *, checkpoint: bytes | None = None) -> None:
        """Put all of it on a node, and the claims into its API."""
        self.restore_machine(node.machine)
        self.restore_files(node.driver.plugin, node.root / "state" / "cdi", checkpoint=checkpoint)
        for claim in self.claims:
            metadata = claim["metadata"]
            node.driver.api.claims[metadata["namespace"], metadata["name"]] = claim


def entry_of(claim: Mapping[str, Any]) -> dict[str, Any]:
    """The only device of a claim of a checkpoint, to be changed."""
    (group,) = claim["preparedDevices"]
    (entry,) = group["devices"]
    found: dict[str, Any] = entry
    return found


def mended(left: Left) -> bytes:
    """As its next releases will: `migUUID` is the device's own."""
    claims = left.prepared
    own = {(m, g): u for u, m, g in migs_of(left)}
    for claim in claims.values():
        if mig := entry_of(claim)["mig"]:
            made = mig["concrete"]
            made["migUUID"] = own[made["parentMinor"], made["giId"]]
    return checkpoint(claims, boot_id=left.boot_id)


def migs_of(left: Left) -> list[tuple[str, int, int]]:
    """UUID, minor number of the GPU and GPU instance of each MIG device that there was."""
    lines = [line.split() for line in json.loads((left.folder / "mig.json").read_bytes())]
    return [(line[0], int(line[1].removeprefix("minor:")), int(line[7])) for line in lines]
