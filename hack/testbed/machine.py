"""Simulated GPUs in a folder of the host, through the command `dra-driver simulate`."""

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

    def fault(self, kind: str, gpu: str) -> None:
        """Do to a GPU what `dra-driver simulate fault` offers: lose, restore, remove, add."""
        run((DRIVER, "simulate", "fault", kind, "--gpu", gpu, "--root", self.root))

    def _do(self, verb: str, *words: str, timeout: float = 60) -> None:
        run((DRIVER, "simulate", verb, "--root", self.root, *words), timeout=timeout)
