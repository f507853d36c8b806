"""Simulated GPUs in a folder of the host, through the command `dra-driver simulate`."""

import json
from pathlib import Path

from testbed.commands import REPOSITORY, run

DRIVER = REPOSITORY / ".venv" / "bin" / "dra-driver"


class SimulatedMachine:
    """A driver root with the GPUs of a profile, such as `h100x8`."""

    def __init__(self, root: Path, profile: str) -> None:
        self.root = root
        self.profile = profile

    def up(self) -> None:
        """Make the driver root; NVIDIA's user-space files are fetched the first time."""
        self._do("up", "--profile", self.profile, timeout=300)

    def down(self) -> None:
        """Remove the driver root."""
        self._do("down")

    def uuids(self) -> list[str]:
        """The UUIDs of the GPUs that the driver sees, in its own order."""
        words = ("--nvidia-driver-root", self.root, "--container-driver-root", self.root)
        found = json.loads(run((DRIVER, "inspect", "--output", "json", *words)))
        return [gpu["uuid"] for gpu in found["gpus"]]

    def _do(self, verb: str, *words: str, timeout: float = 60) -> None:
        run((DRIVER, "simulate", verb, "--root", self.root, *words), timeout=timeout)
